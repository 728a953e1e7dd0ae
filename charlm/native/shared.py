"""What the kernels of all kinds of cells share."""

from charlm.native.linear import LOOKUP, PRODUCT
from charlm.native.loss import LOSS
from charlm.native.random import RANDOM

SHARED_KERNELS = (PRODUCT, LOOKUP, RANDOM, LOSS)
"""What training needs beside a kind's own."""
