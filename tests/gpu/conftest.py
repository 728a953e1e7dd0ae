"""The fixtures of the cells' tests."""

from tests.cells.conftest import case, interpreter, poison

__all__ = ["case", "interpreter", "poison"]
