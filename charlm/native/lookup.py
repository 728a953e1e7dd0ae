"""The gradient of a table whose rows were looked up (lookup.cpp)."""

from torch import Tensor

from charlm.native.kernels import LOOKUP


def table_gradient(d_rows_TBN: Tensor, ids_TB: Tensor, V: int) -> Tensor:
    """For each of V rows of the table the sum of the gradients of its lookups, [V, N]."""
    columns = d_rows_TBN.shape[-1]
    d_table_VN = d_rows_TBN.new_empty(V, columns)
    LOOKUP("lookup_gradient", N=ids_TB.numel(), V=V, columns=columns, ids=ids_TB, d_rows=d_rows_TBN, d_table=d_table_VN)
    return d_table_VN
