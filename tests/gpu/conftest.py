"""The fixtures of the cells' tests."""

from tests.cells.conftest import case, interpreter, no_launches, poison

__all__ = ["case", "interpreter", "no_launches", "poison"]
