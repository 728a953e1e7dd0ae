"""The kernels shared by all kinds of cells."""

from charlm.native.linear import LOOKUP, PRODUCT
from charlm.native.loss import LOSS
from charlm.native.random import RANDOM
from charlm.native.update import UPDATE

SHARED_KERNELS = (PRODUCT, LOOKUP, RANDOM, LOSS, UPDATE)
"""The kernels that training needs besides the kind's own."""
