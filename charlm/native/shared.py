"""The kernels shared by all kinds of cells."""

from charlm.native.linear import LOOKUP, PRODUCT
from charlm.native.loss import LOSS
from charlm.native.random import RANDOM

SHARED_KERNELS = (PRODUCT, LOOKUP, RANDOM, LOSS)
"""The kernels that training needs besides the kind's own."""
