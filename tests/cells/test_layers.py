"""What holds of any layers: starts, resets, what they do not take, and which backend computes them."""

import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch

from charlm.cells import CELLS, GRU, LSTM, RNN, Cell, tanh
from charlm.config.schema import Dropout
from charlm.layers import Lookup, RecurrentLayers, dropout_mask
from tests.cells.measure import (
    RESET_STEPS,
    Case,
    TensorParameters,
    assert_equal_runs,
    by_kernel,
    in_dtype_of,
    own,
    random_input,
    random_state,
    resets_of,
    run,
    seeded,
)


@pytest.mark.parametrize(
    ("way", "resets_of_streams"), [("kernel", RESET_STEPS), ("reference", RESET_STEPS), ("kernel", [()] * 4)]
)
def test_a_reset_begins_a_stream_which_ends_at_its_length(case, way, resets_of_streams):
    """As if each stretch of a stream were alone; with the batch first."""
    T, lengths = 7, (4, 7, 6, 0)
    stack = case.build(3, 5, 2, zoneout=0.3, residual=True).eval()
    if way == "kernel":
        stack = stack.float()
    forward = by_kernel(stack) if way == "kernel" else stack.forward_reference
    x, state = in_dtype_of(stack, random_input(stack, T, 4), random_state(stack, 4))

    def stretch_by_stretch(x, state):
        y, last = x.new_zeros(4, T, 5), []
        for b, (resets, length) in enumerate(zip(resets_of_streams, lengths, strict=True)):
            of_stream = tuple(tensor[:, b : b + 1] for tensor in state)
            for start, end in itertools.pairwise(sorted({0, *resets, T})):
                if start in resets and start < length:
                    of_stream = stack.initial_state(1)
                steps = slice(start, min(end, length))
                if start < length:
                    y[b : b + 1, steps], of_stream = stack.forward_reference(x[b : b + 1, steps], of_stream)
            last.append(of_stream)
        return y, tuple(torch.cat(tensors, dim=1) for tensors in zip(*last, strict=True))

    stack.batch_first, x = True, x.transpose(0, 1)
    expected = run(stretch_by_stretch, stack, x, state)
    x = x.clone()
    for b, length in enumerate(lengths):
        x[b, length:] = torch.nan
    resets_TB = resets_of(T, 4) if any(resets_of_streams) else None
    found = run(seeded(forward, resets_TB, torch.tensor(lengths)), stack, x, state)
    assert_equal_runs(found, expected, tolerance=1e-5 if way == "kernel" else 1e-11)


def from_a_learned_start(stack, x, resets_TB, lengths_B):
    """Two layers by hand: each state that is not internal begins with its row of `start`."""
    inputs, last = x, []
    for layer in range(2):
        parameters = stack.layer_parameters(layer)
        rows = iter(parameters["start"].view(-1, stack.hidden_size))
        names = stack.state_names
        first = [x.new_zeros(()) if name in stack.cell.internal else next(rows) for name in names]
        states, outputs = [start.expand(x.shape[1], stack.hidden_size) for start in first], []
        p = TensorParameters(parameters, square=layer > 0)
        for x_BI, begins_B, t in zip(inputs, resets_TB, itertools.count(), strict=False):
            goes_on_B1 = (t < lengths_B)[:, None]
            begins_B1 = begins_B[:, None] & goes_on_B1
            old = [torch.where(begins_B1, *pair) for pair in zip(first, states, strict=True)]
            new = stack.cell.step(p, x_BI, *old)
            new = new if isinstance(new, tuple) else (new,)
            states = [torch.where(goes_on_B1, *pair) for pair in zip(new, states, strict=True)]
            outputs.append(torch.where(goes_on_B1, states[0], 0))
        inputs = torch.stack(outputs)
        last.append(states)
    return inputs, tuple(torch.stack(tensors) for tensors in zip(*last, strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of Triton's interpreter
@pytest.mark.parametrize(
    ("way", "kind", "resets", "lengths"),
    [
        ("needs_kernels", "lstm", True, True),
        ("needs_kernels", "lstm", False, False),
        ("interpreter", "lstm", True, False),
        ("reference", "slstm", True, True),
        ("reference", "slstm", False, True),
        ("no_kernels", "lstm", True, False),
        ("no_kernels", "gru", False, False),
    ],
)
def test_each_stream_begins_with_the_learned_start(request, way, kind, resets, lengths):
    stack = Case(kind).build(3, 5, 2, learned_start=True)
    x, unread = random_input(stack, 7, 4), random_state(stack, 4)
    resets_TB = resets_of(7, 4) if resets else torch.zeros(7, 4, dtype=torch.bool)
    lengths_B = torch.tensor((4, 7, 6, 0) if lengths else [7] * 4)
    expected = run(lambda x, _: from_a_learned_start(stack, x, resets_TB, lengths_B), stack, x, unread)
    assert expected["dstart_l1"].all()
    if way != "reference":
        request.getfixturevalue(way)
    is_exact = way in ("reference", "no_kernels")
    stack = stack if is_exact else stack.float()
    forwards: dict[str, Any] = {"reference": stack.forward_reference, "interpreter": own(stack)}
    more = resets_TB if resets else None, lengths_B if lengths else None
    found = run(lambda x, _: forwards.get(way, stack)(x, None, *more), stack, *in_dtype_of(stack, x, unread))
    found = {name: tensor.double() for name, tensor in found.items()}
    assert_equal_runs(found, expected, tolerance=1e-11 if is_exact else 1e-5)
    backend = {"needs_kernels": "fused CPU kernel", "no_kernels": "fused torch layer"}.get(way)
    assert backend in (None, stack.select_backend("cpu", resets=resets, lengths=lengths).backend.name)


class Inverse(Cell):
    def step(self, p: Any, x: Any, h: Any) -> Any:
        return 1 / p.product("w", x) + tanh(p.product("u", h))


def test_what_follows_a_streams_end_is_not_computed_with():
    """The inverse of an input of zeros is infinite."""
    layers = RecurrentLayers(Inverse(hidden=4), 3)
    x = torch.randn(3, 2, 3)
    x[2, 1] = 0
    y, (h,) = layers.forward_reference(x, lengths_B=[3, 2])
    alone, (h_alone,) = layers.forward_reference(x[:2, 1:])
    torch.testing.assert_close(y[:2, 1:], alone)
    torch.testing.assert_close(h[:, 1:], h_alone)


def test_parameters_start_within_the_range_of_torch_or_of_the_config(case):
    """Within ±1/√H, as in torch.nn; `init_uniform_` draws weights within its bound and clears biases."""
    stack = case.start(9, 64, 2)
    first = {name: parameter.detach().clone() for name, parameter in stack.named_parameters()}
    stack.init_uniform_(0.01)
    for layer in range(2):
        for declared in stack.forms[layer].program.parameters:
            name = f"{declared.name}_l{layer}"
            if declared.bound is not None or any(start is not None for start in declared.starts):
                continue
            assert 0.8 / 8 < first[name].abs().max() <= 1 / 8, name
            largest = stack.get_parameter(name).abs().max()
            assert (0.009 < largest <= 0.01) if name.startswith("weight") else largest == 0, name


# Kind and options; a parameter of a layer with H = 500, in rows of H; what each row starts with (None: random).
STARTS: list[tuple[str, dict[str, Any], str, list[float | None]]] = [
    ("lstm", {"forget_bias": -0.5}, "bias_ih", [None, -0.5, None, None]),
    ("lstm", {"forget_bias": -0.5}, "bias_hh", [None, 0, None, None]),
    ("lstm", {"layer_norm": True, "forget_bias": 0.5}, "bias_ln_gates", [0, 0.5, 0, 0]),
    ("lstm", {"layer_norm": True, "forget_bias": 0.5}, "weight_ln_gates", [1] * 4),
    ("slstm", {"forget_bias": 2.5}, "bias", [None, 2.5, None, None]),
    ("rhn", {"depth": 2, "couple_gates": False, "gate_bias": -1.5}, "bias_hh", [None, -1.5, 1.5] * 2),
    ("sru", {"highway_bias": -2.0}, "bias", [0, -2.0]),
]


@pytest.mark.parametrize(("kind", "options", "name", "rows"), STARTS)
def test_special_biases(kind, options, name, rows):
    """They are the same after `init_uniform_`, which clears the others."""
    stack = Case(kind).start(3, 500, 2, **options)
    for is_cleared in (False, True):
        if is_cleared:
            stack.init_uniform_(0.1)
        for layer in range(2):
            found = stack.get_parameter(f"{name}_l{layer}").view(-1, 500)
            for values, start in zip(found, rows, strict=True):
                assert (len(values.unique()) > 1) == (start is None and not is_cleared)
                assert start is None or (values == start).all()


def test_peepholes_of_an_sru_start_with_a_variance_of_one_half():
    stack = Case("sru").start(3, 500)
    assert stack.get_parameter("peephole_l0").var().item() == pytest.approx(0.5, rel=0.2)


ZEROS = torch.zeros(2, 2, 4)
X = torch.zeros(5, 2, 3)
# Arguments of two layers with I = 3 and H = 4.
MIXED_UP: dict[str, tuple[Any, ...]] = {
    "an input of two dimensions": (torch.zeros(5, 3),),
    "another number of inputs": (torch.zeros(5, 2, 4),),
    "another device": (X.to("meta"),),
    "a state of another size": (X, (ZEROS, torch.zeros(2, 2, 3))),
    "a state too few": (X, (ZEROS,)),
    "resets with the batch first": (X, None, torch.zeros(2, 5).bool()),
    "a length of more steps than there are": (X, None, None, [5, 6]),
    "a lookup without a tensor": (Lookup([[1, 1]], torch.zeros(4, 3)),),
    "a lookup below the table": (Lookup(torch.tensor([[1, -1]]), torch.zeros(4, 3)),),
    "a lookup beyond the table": (Lookup(torch.tensor([[1, 4]]), torch.zeros(4, 3)),),
    "a lookup beyond the inputs": (Lookup(torch.tensor([[1, 3]]), None),),
}


@pytest.mark.parametrize("way", ["forward", "forward_reference"])
@pytest.mark.parametrize("arguments", MIXED_UP.values(), ids=MIXED_UP)
def test_arguments_that_do_not_fit_are_named(arguments, way):
    with pytest.raises((TypeError, ValueError), match=r"^(lstm: |ids |table ).*found .*; allowed: "):
        getattr(Case("lstm").start(3, 4, 2), way)(*arguments)


WRONG = [
    ("input_size", 2.0), ("num_layers", 0), ("dropout", 1), ("dropout", "0.3"), ("dropout", True), ("zoneout", 2.0),
    ("zoneout", -1), ("zoneout", float("nan")), ("residual", "no"), ("learned_start", 1), ("batch_first", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_an_option_that_is_not_allowed_is_named(name, value):
    options: dict[str, Any] = {"input_size": 3, name: value}
    with pytest.raises((TypeError, ValueError), match=rf"^lstm: {name}: found {value!r}; allowed: "):
        RecurrentLayers(LSTM(hidden=4), **options)
    if name == "zoneout":
        with pytest.raises(ValueError, match=rf"^p: found {value!r}; allowed: "):
            dropout_mask((2, 3), value, torch.zeros(1))


def test_a_number_for_dropout_is_dropout_between_layers():
    number, place = (RecurrentLayers(LSTM(hidden=4), 3, 2, dropout=p) for p in (0.5, Dropout(between_layers=0.5)))
    number.load_state_dict(place.state_dict())
    y, _ = seeded(number)(X + 1)
    assert torch.equal(y, seeded(place)(X + 1)[0])
    number.dropout = 0.0
    assert not torch.equal(y, seeded(number)(X + 1)[0])
    with pytest.warns(UserWarning, match="^lstm: dropout: found 0.5 with one layer; "):
        RecurrentLayers(LSTM(hidden=4), 3, dropout=0.5)


def test_a_printed_stack_shows_sizes_and_options():
    assert repr(RecurrentLayers(GRU(), 3)) == "RecurrentLayers(GRU(hidden=256), input_size=3, num_layers=1)"
    layers = RecurrentLayers(LSTM(hidden=4, layer_norm=True), 3, 2, dropout=0.3, zoneout=0.1, batch_first=True)
    places = "dropout=Dropout(between_layers=0.3), zoneout=0.1, batch_first=True"
    expected = f"RecurrentLayers(LSTM(hidden=4, layer_norm=True), input_size=3, num_layers=2, {places})"
    assert repr(layers) == expected


def test_layers_without_parameters_of_their_own_compute_the_same():
    """As in the copies that DataParallel makes."""
    layers = Case("gru").start(3, 4, 2)
    copied = layers._replicate_for_data_parallel()
    for name, parameter in layers.named_parameters():
        setattr(copied, name, parameter.detach().clone())
    assert torch.equal(copied(X)[0], layers(X)[0])


@pytest.mark.slow
def test_torch_compile_costs_nothing_where_it_is_not_used():
    program = "import sys, charlm.layers; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# The backend that computes a layer, and the line that says which it is and why.

NO_KERNEL = "; no fused CPU kernel: switched off by CHARLM_KERNELS"
LACKS = f"reference loop{NO_KERNEL}; no fused torch layer: it lacks"

LINES = [
    ("gru", {"between_layers": 0.5, "weights": 0.5}, True, f"fused torch layer (ATen){NO_KERNEL}"),
    ("lstm", {"layer_norm": True}, True, f"{LACKS} layer_norm"),
    ("gru", {"state": 0.5}, True, f"{LACKS} dropout.state"),
    ("gru", {"state": 0.5}, False, f"fused torch layer (ATen){NO_KERNEL}"),  # evaluation needs no mask
    ("rhn", {}, True, f"reference loop{NO_KERNEL}"),
]


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(("kind", "options", "training", "line"), LINES)
def test_lines_without_a_kernel(kind, options, training, line):
    selection = Case(kind).start(3, 4, **options).select_backend("cpu", training)
    assert selection.description == f"{kind}: {line}"


def test_lines_on_a_gpu(monkeypatch):
    monkeypatch.setattr("charlm.layers.selection.fault_on_device", lambda *loop: None)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    assert Case("lstm").start(3, 4).select_backend("cuda").description == "lstm: fused torch layer (cuDNN)"
    for kind in CELLS:  # cuDNN takes no resets
        selection = Case(kind).start(3, 4).select_backend("cuda", resets=True)
        assert (selection.backend.name, selection.passed_over) == ("loop in CUDA graphs", {})
    monkeypatch.setenv("CHARLM_KERNELS", "none")
    way = Case("rhn").start(3, 4).select_backend("cuda").way
    assert way == "reference loop; no loop in CUDA graphs and no loop of single kernels: switched off by CHARLM_KERNELS"


@pytest.mark.usefixtures("no_kernels")
def test_layers_run_what_the_line_says():
    """Two backends seldom round alike."""
    layers, x = Case("lstm").start(30, 40), torch.randn(20, 3, 30)
    chosen = layers.select_backend("cpu").backend
    assert chosen.name != "reference loop"
    y, _ = layers(x)
    assert torch.equal(y, layers.forward_by(chosen, x)[0])
    assert not torch.equal(y, layers.forward_reference(x)[0])


@pytest.mark.parametrize("kernels", ["needs_kernels", "no_kernels"])
def test_an_infinity_ends_at_a_reset_and_does_not_reach_a_stream_that_has_ended(kernels, request):
    request.getfixturevalue(kernels)
    layers = RecurrentLayers(RNN(hidden=2, nonlinearity="relu"), 2)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.fill_(1e20)
    x, steps = torch.ones(3, 1, 2), torch.arange(3)[:, None]
    for forward in (layers, layers.forward_reference):
        y, _ = forward(x, None, steps == 2)
        assert y[1].isinf().all()
        torch.testing.assert_close(y[2], y[0])
        y, (last,) = forward(x, None, None, torch.tensor([1]))
        torch.testing.assert_close(last[0], y[0])
