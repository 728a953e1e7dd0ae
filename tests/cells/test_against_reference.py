"""Every way to compute layers on the CPU and on GPUs, held to the reference loop in float64 at odd sizes."""

from typing import Any
from unittest import mock

import pytest
import torch

from charlm.cells import CELLS
from charlm.layers import Lookup
from tests.cells.measure import (
    CASES,
    EXTREMES,
    Case,
    assert_as_accurate,
    by_kernel,
    hold_to_the_rule,
    in_dtype_of,
    own,
    random_input,
    random_state,
    run,
    seeded,
)
from tests.pairwise import pairwise

# T, B, I, H, L; the first is the one of --quick. In the last, some of four threads have no unit to compute.
SIZES = [
    (7, 4, 5, 17, 2),
    (1, 1, 1, 1, 1),
    (8, 1, 4, 17, 3),
    (5, 4, 33, 130, 1),
    (3, 65, 5, 130, 2),
    (9, 17, 1, 65, 1),
    (2, 400, 3, 9, 2),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"zoneout": 0.4, "state": 0.3, "weights": 0.2},
    {"variational": True, "state": 0.4, "between_layers": 0.2},
    {"weights": 0.3, "between_layers": 0.2, "residual": True},
    {"zoneout": 0.3, "residual": True},
]


@pytest.mark.usefixtures("needs_kernels", "poison")
@pairwise(
    case=CASES,
    size=SIZES,
    options=OPTIONS,
    threads=[1, 2, 3, 4],
    training=[True, False],
    resets=[True, False],
)
def test_the_cpu_kernels(case, size, options, threads, training, resets):
    steps, batch_size, *sizes = size
    torch.set_num_threads(threads)
    hold_to_the_rule(case.build(*sizes, **options).train(training), steps, batch_size, by_kernel, resets)


@pytest.mark.usefixtures("no_kernels")
@pairwise(
    case=[case for case in CASES if case.kind in ("rnn", "lstm", "gru") and not case.options.get("layer_norm")],
    size=SIZES[:4],
    options=[{}, {"weights": 0.3, "between_layers": 0.2, "residual": True}],
)
def test_torchs_fused_layers(case, size, options):
    steps, batch_size, *sizes = size
    stack = case.build(*sizes, **options)
    hold_to_the_rule(stack, steps, batch_size, lambda stack: stack)
    assert "fused torch layer" in stack.select_backend("cpu").description


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pairwise(
    case=[Case(kind) for kind in CELLS],
    size=[(4, 5, 3), (4, 5, 40), (50, 40, 4)],
    forward_of=[by_kernel, own],
    one_hot=[False, True],
)
def test_lookups(case, size, forward_of, one_hot, request):
    """With fewer characters than inputs the table is mapped, with more its rows in use; most inputs are one of them."""
    steps, batch_size, vocabulary = size
    if forward_of is own:
        request.getfixturevalue("interpreter")
        steps, batch_size = min(steps, 4), min(batch_size, 5)  # the interpreter is slow
    input_size = vocabulary if one_hot else 6
    stack = case.build(input_size, 21, 2)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter *= 0.5  # Long windows: no chaos, in which every error grows without bound.
    state = random_state(stack, batch_size)
    ids = torch.randint(vocabulary, (batch_size, steps)).t() * (torch.rand(steps, batch_size) < 0.3)
    table = torch.randn(vocabulary, input_size, dtype=torch.float64)
    upstream = torch.randn(steps, batch_size, 21, dtype=torch.float64) + 0.5

    def result(forward):
        _, first = in_dtype_of(stack, upstream, state)
        rows = table.to(next(stack.parameters()).dtype).requires_grad_()
        y, _ = forward(Lookup(ids, None if one_hot else rows), first)
        parameters = dict(stack.named_parameters()) | ({} if one_hot else {"table": rows})
        gradients = torch.autograd.grad(y, list(parameters.values()), upstream.to(rows.dtype))
        return {"y": y.detach()} | dict(zip(parameters, gradients, strict=True))

    truth = result(stack.forward_reference)
    stack = stack.float()
    assert_as_accurate([result(forward_of(stack))], [result(stack.forward_reference)], [truth])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers that Triton's interpreter does not store
@pairwise(case=CASES, forward_of=[by_kernel, own])
def test_gates_far_out_of_their_range(case, forward_of, request):
    """The input is the arguments, in most combinations; from the zero state on, nothing else reaches the gates."""
    request.getfixturevalue("interpreter" if forward_of is own else "needs_kernels")
    rows = case.start(1, 3).get_parameter("weight_ih_l0").shape[0]
    stack = case.build(rows, 3).float()
    with torch.no_grad():
        for name, parameter in stack.named_parameters():
            if name == "weight_ih_l0":
                parameter.copy_(torch.eye(rows))
            elif not name.startswith("weight_ln"):
                parameter.zero_()
    streams = 12 if forward_of is own else 200  # Triton's interpreter is slow
    x = torch.tensor(EXTREMES)[torch.randint(len(EXTREMES), (4, streams, rows))]
    upstream = torch.randn(4, streams, 3)

    def results(forward, x):
        x = x.clone().requires_grad_()
        y, last = forward(x, None)
        (dx,) = torch.autograd.grad((y * upstream).sum(), x)
        return {"y": y, **dict(zip(stack.state_names, last, strict=True)), "dx": dx}

    found = results(forward_of(stack), x)
    for name, tensor in results(stack.double().forward_reference, x.double()).items():
        # In single precision the m of an sLSTM is known to a ten-thousandth.
        torch.testing.assert_close(found[name].double(), tensor, rtol=5e-4, atol=5e-4, msg=name)


def test_the_loop_of_gpus_reads_no_number(case, monkeypatch):
    """On the meta device, whose tensors have no values: what a GPU would have to wait for raises."""
    pytest.importorskip("triton")
    monkeypatch.setattr("charlm.gpu.kernels.compiled", mock.MagicMock())  # nothing is launched
    stack = case.build(5, 17, 2, **OPTIONS[1]).float().to("meta")
    found = run(own(stack), stack, torch.randn(3, 2, 5, device="meta"), stack.initial_state(2))
    assert all(tensor.device.type == "meta" for tensor in found.values())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pairwise(case=CASES, size=SIZES, options=OPTIONS, training=[True, False])
def test_a_gpu_errs_no_more_than_the_reference(case, size, options, training):
    steps, batch_size, *sizes = size
    stack = case.build(*sizes, **options).train(training).cuda()
    # TF32, cuDNN's default for recurrent layers, has ten bits of mantissa: no error of float32.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        inputs = [(random_input(stack, steps, batch_size), random_state(stack, batch_size)) for _ in range(5)]
        truth = [run(seeded(stack.forward_reference), stack, *pair) for pair in inputs]
        stack = stack.float()
        pairs = [in_dtype_of(stack, *pair) for pair in inputs]
        found, expected = ([run(seeded(f), stack, *pair) for pair in pairs] for f in (stack, stack.forward_reference))
        # cuDNN approximates tanh and σ: on an H100 it erred up to 17 times as much as is allowed to others.
        assert_as_accurate(found, expected, truth, 35 if "cuDNN" in stack.select_backend("cuda").description else 1)
