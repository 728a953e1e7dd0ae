"""Programs that pass the check go every path: derivative, passes, kernels, equations, exports."""

from random import Random

import pytest
import torch

from tests.cells.forged import (
    assert_every_path,
    assert_names_differ,
    compare_kernels,
    compare_onnx,
    renamed,
    some_programs,
)


def test_every_path_of_random_programs() -> None:
    for program, square in some_programs(40):
        try:
            assert_every_path(program, square)
        except Exception as error:
            raise AssertionError(f"{program}") from error


def test_graphs_of_random_programs_with_names_that_could_be_confused() -> None:
    pytest.importorskip("onnxruntime")
    for program, square in some_programs(12):
        compare_onnx(renamed(program, Random(0)), square)


def test_names_in_equations_differ() -> None:
    for program, _ in some_programs(40):
        assert_names_differ(renamed(program, Random(0)))


@pytest.mark.slow
@pytest.mark.usefixtures("needs_kernels")
def test_kernels_of_random_programs() -> None:
    torch.set_num_threads(2)
    compare_kernels(some_programs(3))
