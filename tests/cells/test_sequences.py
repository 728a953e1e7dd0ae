"""What holds of any recurrent layer: windows join, streams keep apart, layers stack, resets begin a stream."""

import re
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from charlm.cells import CELLS, LSTM
from charlm.layers import RecurrentLayers
from tests.cells.measure import (
    RESET_STEPS,
    Case,
    Run,
    assert_equal_runs,
    random_input,
    random_state,
    resets_of,
    run,
    seeded,
)


def test_windows_join_and_streams_keep_apart(case: Case) -> None:
    stack = case.build(3, 5, 3, residual=True, zoneout=0.3).eval()
    x, state = random_input(stack, 7, 3), random_state(stack, 3)
    whole = results(stack(x, state))
    first_y, between = stack(x[:3], state)
    second_y, last = stack(x[3:], between)
    assert_equal_runs(results((torch.cat([first_y, second_y]), last)), whole)
    order = [2, 0, 1]
    permuted = {name: tensor[:, order] for name, tensor in whole.items()}
    assert_equal_runs(results(stack(x[:, order], tuple(tensor[:, order] for tensor in state))), permuted)

    x.requires_grad_()
    y, _ = stack(x)
    (dx,) = torch.autograd.grad(y[1, 1].sum(), x)
    assert (dx[:, [0, 2]] == 0).all()
    assert (dx[2:] == 0).all()
    assert (dx[:2, 1] != 0).any(dim=1).all()


def results(outcome: Any) -> Run:
    y, last = outcome
    return {"y": y} | {str(number): tensor for number, tensor in enumerate(last)}


@pytest.mark.parametrize("residual", [False, True])
def test_a_layer_reads_the_outputs_of_the_one_below(case: Case, residual: bool) -> None:
    stack = case.build(3, 4, 3, residual=residual)
    x, state = random_input(stack, 3, 2), random_state(stack, 2)
    y, last = x, []
    for layer in range(3):
        single = case.build(stack.layer_input_size(layer), 4)
        weights = {n: w for n, w in stack.state_dict().items() if n.endswith(f"_l{layer}")}
        single.load_state_dict({name.replace(f"_l{layer}", "_l0"): w for name, w in weights.items()})
        of_layer = slice(layer, layer + 1)
        output, last_of_layer = single(y, tuple(tensor[of_layer] for tensor in state))
        y = y + output if residual and layer > 0 else output
        last.append(last_of_layer)
    expected = y, tuple(torch.cat(layers) for layers in zip(*last, strict=True))
    assert_equal_runs(results(stack(x, state)), results(expected))


def test_a_reset_begins_a_stream(case: Case) -> None:
    """As if the stream ended there and another began."""
    steps = 7
    stack = case.build(3, 5, 2, zoneout=0.3, residual=True).eval()

    def one_by_one(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Every stretch between two resets by itself, without the others of its window."""
        outputs, last = [], []
        for b, resets in enumerate(RESET_STEPS):
            of_stream = tuple(tensor[:, b : b + 1] for tensor in state)
            stretches = []
            for start, end in zip((0, *resets), (*resets, steps), strict=True):
                if start in resets:
                    of_stream = stack.zero_state(1)
                if end > start:
                    y, of_stream = stack.forward_reference(x[start:end, b : b + 1], of_stream)
                    stretches.append(y)
            outputs.append(torch.cat(stretches))
            last.append(of_stream)
        return torch.cat(outputs, dim=1), tuple(torch.cat(tensors, dim=1) for tensors in zip(*last, strict=True))

    x, state = random_input(stack, steps, 4), random_state(stack, 4)
    found = run(seeded(stack.forward_reference, resets_of(steps, 4)), stack, x, state)
    assert_equal_runs(found, run(one_by_one, stack, x, state), tolerance=1e-11)


def test_no_state_is_a_state_of_zeros_and_shapes_are_kept(case: Case) -> None:
    stack = case.build(3, 5, 2).float()
    x = torch.randn(4, 2, 3)
    (y, last), (expected_y, expected_last) = stack(x), stack(x, stack.zero_state(2))
    assert torch.equal(y, expected_y)
    assert all(map(torch.equal, last, expected_last))
    assert (y.shape, y.dtype) == ((4, 2, 5), torch.float32)
    assert [tensor.shape for tensor in last] == [(2, 2, 5)] * len(stack.state_names)
    assert torch.equal(last[0][-1], y[-1])


# What a caller can get wrong


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("rnn", {"nonlinearity": "sigmoid"}, "Input should be 'tanh' or 'relu'"),
        ("lstm", {"layer_norm": "yes"}, "Input should be a valid boolean"),
        ("lstm", {"forget_bias": float("nan")}, "Input should be a finite number"),
        ("rhn", {"depth": 0}, "Input should be greater than or equal to 1"),
        ("rhn", {"depth": 101}, "Input should be less than or equal to 100"),
        ("gru", {"hidden": -1}, "Input should be greater than or equal to 1"),
        ("gru", {"hidden": 2.0}, "Input should be a valid integer"),
        ("gru", {"hiden": 4}, "Extra inputs are not permitted"),
    ],
    ids=str,
)
def test_options_of_a_cell(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        CELLS[kind](**options)
    [error] = refused.value.errors()
    assert (error["loc"], error["msg"]) == (tuple(options), message)


ZEROS = torch.zeros(2, 2, 4)
X = torch.zeros(5, 2, 3)
PACKED = nn.utils.rnn.pack_padded_sequence(X, torch.tensor([5, 3]))
MIXED_UP: list[tuple[str, tuple[Any, ...], str]] = [
    *(
        ("gru", (torch.zeros(shape),), f"input: found torch.float32 {list(shape)} on cpu; allowed: torch.float32 [")
        for shape in ((5, 3), (5, 2, 4), (5, 2, 3, 1))
    ),
    ("gru", (torch.zeros(0, 2, 3),), "input: found no steps; allowed: [T, B, 3] with T ≥ 1"),
    ("gru", (PACKED,), "input: found a PackedSequence; allowed: a tensor ["),
    ("gru", (X.numpy(),), "input: found a ndarray; allowed: a tensor ["),
    ("gru", (X.to("meta"),), "input: found torch.float32 [5, 2, 3] on meta; allowed: torch.float32 [5, 2, 3] on cpu"),
    (
        "gru",
        (X.transpose(0, 1), (ZEROS,)),
        "state h: found torch.float32 [2, 2, 4] on cpu; allowed: torch.float32 [2, 5",
    ),
    (
        "lstm",
        (X, (ZEROS, torch.zeros(2, 2, 3))),
        "state c: found torch.float32 [2, 2, 3] on cpu; allowed: torch.float32 [",
    ),
    ("lstm", (X, (ZEROS,)), "state: found a tuple of 1; allowed: a tuple (h, c) of tensors"),
    ("gru", (X, (ZEROS,) * 2), "state: found a tuple of 2; allowed: a tuple (h) of tensors"),
    ("gru", (X, (ZEROS.double(),)), "state h: found torch.float64 [2, 2, 4] on cpu; allowed: torch.float32 ["),
    # An LSTM of two layers must not take the layers of one tensor for h and c.
    ("lstm", (X, ZEROS), "state: found a Tensor of 2; allowed: a tuple (h, c) of tensors"),
    ("gru", (X, [ZEROS.numpy()]), "state h: found a ndarray; allowed: a tensor [2, 2, 4]"),
    *(
        ("gru", (X.to(dtype),), f"input: found {dtype} [5, 2, 3] on cpu; allowed: torch.float32 [5, 2, 3] on cpu")
        for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.complex64)
    ),
    ("gru", (X, None, [[True] * 2] * 5), "resets: found a list; allowed: a tensor [5, 2]"),
    (
        "gru",
        (X, None, torch.zeros(5, 2)),
        "resets: found torch.float32 [5, 2] on cpu; allowed: torch.bool [5, 2]",
    ),
    (
        "gru",
        (X, None, torch.zeros(2, 5).bool()),
        "resets: found torch.bool [2, 5] on cpu; allowed: torch.bool [5, 2]",
    ),
]


@pytest.mark.parametrize(("kind", "arguments", "message"), MIXED_UP, ids=lambda value: str(value)[:60])
def test_arguments_that_do_not_fit(kind: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(f'{kind}: {message}')}"):
        Case(kind).start(3, 4, 2)(*arguments)


def test_layers_take_an_object_of_a_cell_and_whole_numbers() -> None:
    for cell in (LSTM, "lstm", 5):
        with pytest.raises(
            TypeError, match=r"^cell: found .*; allowed: an object of a cell, such as LSTM\(hidden=256\)$"
        ):
            RecurrentLayers(cell, 5)  # type: ignore[arg-type]
    for sizes in ((5.0, 1), (0, 1), (5, 0)):
        with pytest.raises(ValueError, match=r"^lstm: (input_size|num_layers): found .*; allowed: a whole number ≥ 1$"):
            RecurrentLayers(LSTM(), *sizes)  # type: ignore[arg-type]
