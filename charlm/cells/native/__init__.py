"""What the kernels of all kinds of cells share."""

from charlm.cells.native.linear import LOOKUP, PRODUCT
from charlm.cells.native.loss import LOSS
from charlm.cells.native.random import RANDOM

SHARED_KERNELS = (PRODUCT, LOOKUP, RANDOM, LOSS)
"""What training needs beside a kind's own."""
