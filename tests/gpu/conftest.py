"""The fixtures of the cells' tests."""

from tests.cells.conftest import case, poison

__all__ = ["case", "poison"]
