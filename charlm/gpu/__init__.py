"""Recurrent layers on GPUs.

recurrence.py   the loop over a window, in both directions, and as CUDA graphs or single kernels
kernels.py      its steps in Triton's kernels, which charlm/cells/triton.py writes for a cell
functions.py    functions of these kernels
graphs.py       CUDA graphs: many launches become one
product.py      matrix products
"""
