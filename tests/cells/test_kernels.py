"""The CPU kernels beyond what holds for every implementation: threads, lookups, memory, sizes, products."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from charlm.cells import Lookup, RecurrentBase, RecurrentState, cross_entropy, linear
from charlm.native.linear import matmul

from .measure import Case, Run, as_tuple, assert_as_accurate, error, join, random_input, random_state, run

pytestmark = pytest.mark.usefixtures("needs_kernels")

# T, B, I, H; in the last, some of four threads have no unit to compute.
LARGE = [(3, 65, 5, 130), (2, 3, 130, 17), (9, 17, 1, 65), (2, 400, 3, 9)]


@pytest.fixture
def threads() -> Any:
    """Sets torch's number of threads; the test's end sets one again."""
    yield torch.set_num_threads
    torch.set_num_threads(1)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tensors hold NaN, so that memory which nothing writes shows in the results."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        original = getattr(owner, name)

        def poisoned(*args: Any, original: Any = original, **options: Any) -> Tensor:
            tensor = original(*args, **options)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        monkeypatch.setattr(owner, name, poisoned)


def in_dtype_of(stack: RecurrentBase, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
    tensors = tuple(tensor.to(next(stack.parameters()).dtype) for tensor in as_tuple(state))
    return x.to(tensors[0].dtype), tensors[0] if len(tensors) == 1 else tensors


def in_float32(stack: RecurrentBase, steps: int, batch_size: int) -> tuple[RecurrentBase, Tensor, RecurrentState]:
    x, state = random_input(stack, steps, batch_size), random_state(stack, batch_size)
    return stack.float(), *in_dtype_of(stack, x, state)


def hold_to_the_rule(stack: RecurrentBase, steps: int, batch_size: int) -> None:
    """The kernel against the reference, over several inputs."""
    inputs = [(random_input(stack, steps, batch_size), random_state(stack, batch_size)) for _ in range(3)]

    def runs(forward: Any, stack: RecurrentBase) -> Run:
        torch.manual_seed(1)  # The masks of the state: drawn alike in both precisions.
        return join([run(forward, stack, *in_dtype_of(stack, *pair)) for pair in inputs])

    truth = runs(stack.forward_reference, stack)
    stack = stack.float()
    assert "fused CPU kernel" in stack.select_backend("cpu").description
    assert_as_accurate(runs(stack, stack), runs(stack.forward_reference, stack), truth)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("size", LARGE, ids=lambda size: "T{}-B{}-I{}-H{}".format(*size))
@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("variational", [False, True])
def test_any_number_of_threads(case: Case, size: tuple[int, ...], number: int, variational: bool, threads: Any) -> None:
    steps, batch_size, input_size, hidden_size = size
    threads(number)
    dropout = {"state_dropout": 0.4, "dropout": 0.2} if variational else {}
    stack = case.build(input_size, hidden_size, 2, variational=variational, **dropout)
    hold_to_the_rule(stack, steps, batch_size)


@pytest.mark.parametrize("number", [1, 4])
def test_dropped_weights_and_residual_connections(case: Case, number: int, threads: Any) -> None:
    threads(number)
    stack = case.build(5, 40, 3, weight_dropout=0.3, dropout=0.2, residual=True)
    hold_to_the_rule(stack, steps=4, batch_size=30)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("size", LARGE, ids=lambda size: "T{}-B{}-I{}-H{}".format(*size))
@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("training", [True, False])
def test_zoneout(case: Case, size: tuple[int, ...], number: int, training: bool, threads: Any) -> None:
    steps, batch_size, input_size, hidden_size = size
    threads(number)
    stack = case.build(input_size, hidden_size, 2, zoneout=0.4, state_dropout=0.3).train(training)
    hold_to_the_rule(stack, steps, batch_size)


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("options", [{}, {"state_dropout": 0.4, "zoneout": 0.3}], ids=str)
def test_great_depth(number: int, options: dict[str, float], threads: Any) -> None:
    threads(number)
    stack = Case("rhn", {"depth": 10}).build(3, 40, **options)
    hold_to_the_rule(stack, steps=4, batch_size=30)


class RoundedProduct(torch.autograd.Function):
    """x w of operands rounded to bfloat16, forwards and backwards, in the dtype they have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return rounded(x) @ rounded(w)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, w = ctx.saved_tensors
        dw = rounded(x).flatten(0, -2).t() @ rounded(dy).flatten(0, -2)
        return rounded(dy) @ rounded(w).t(), dw


def rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().to(tensor.dtype)


class RoundedProducts(TorchFunctionMode):
    """The reference's products of operands rounded to bfloat16."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.addmm:
            return args[0] + RoundedProduct.apply(*args[1:])
        if function is torch.nn.functional.linear:
            return RoundedProduct.apply(args[0], args[1].t()) + args[2]
        return function(*args, **kwargs or {})


@pytest.mark.usefixtures("poison")
# B, H: rows that fill no tile of 16, or end just behind one, or behind a pair of them; more than two chains of sums.
@pytest.mark.parametrize(("batch_size", "hidden_size"), [(20, 33), (1, 5), (17, 70), (33, 33), (47, 64), (3, 270)])
@pytest.mark.parametrize("options", [{}, {"state_dropout": 0.4}, {"zoneout": 0.3}], ids=str)
@pytest.mark.parametrize("number", [1, 3])
def test_bf16_is_float32_of_rounded_operands(
    case: Case, batch_size: int, hidden_size: int, options: dict[str, float], number: int, threads: Any
) -> None:
    threads(number)
    stack = case.build(7, hidden_size, 2, variational=True, **options)
    x, state = random_input(stack, 4, batch_size), random_state(stack, batch_size)

    def found(forward: Any, autocast: bool = False) -> Run:
        def seeded(*args: Any) -> Any:
            torch.manual_seed(1)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                return forward(*args)

        return run(seeded, stack, *in_dtype_of(stack, x, state))

    with RoundedProducts():
        truth = found(stack.forward_reference)
    stack = stack.float()
    in_float32, in_bf16 = found(stack), found(stack, autocast=True)
    for name, true in truth.items():
        # Where sums in float32 and float64 lie on two sides of a tie they are rounded apart, seldom.
        assert (in_bf16[name] - true).norm() <= 0.3 * (in_float32[name] - true).norm(), name


def test_results_depend_on_nothing_but_the_arguments(case: Case, threads: Any) -> None:
    threads(3)
    stack = case.build(5, 70, 2)
    stack, x, state = in_float32(stack, 6, 9)
    first = run(stack, stack, x, state)
    run(stack, stack, x[:2] * 3, state)
    again = run(stack, stack, x, state)
    assert all(torch.equal(again[name], tensor) for name, tensor in first.items())


@pytest.mark.parametrize("one_hot", [False, True], ids=["table", "one-hot"])
@pytest.mark.parametrize(("steps", "batch_size", "vocabulary"), [(4, 5, 3), (4, 5, 40), (50, 40, 4)])
def test_lookup_errs_no_more_than_the_reference(
    case: Case, one_hot: bool, steps: int, batch_size: int, vocabulary: int
) -> None:
    """With fewer characters than inputs the table is mapped, with more its rows in use; most inputs are one of them."""
    input_size = vocabulary if one_hot else 6
    stack = case.build(input_size, 21, 2)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter *= 0.5  # Long windows: no chaos, in which every error grows without bound.
    state = random_state(stack, batch_size)
    ids = torch.randint(vocabulary, (batch_size, steps)).t() * (torch.rand(steps, batch_size) < 0.3)
    table = torch.randn(vocabulary, input_size, dtype=torch.float64)
    upstream = torch.randn(steps, batch_size, 21, dtype=torch.float64) + 0.5

    def found(forward: Any, stack: RecurrentBase) -> Run:
        dtype = next(stack.parameters()).dtype
        rows = table.to(dtype).requires_grad_()
        _, first = in_dtype_of(stack, upstream, state)
        y, _ = forward(Lookup(ids, None if one_hot else rows), first)
        parameters = dict(stack.named_parameters()) | ({} if one_hot else {"table": rows})
        gradients = torch.autograd.grad(y, list(parameters.values()), upstream.to(dtype))
        return {"y": y.detach()} | dict(zip(parameters, gradients, strict=True))

    truth = found(stack.forward_reference, stack)
    stack = stack.float()
    assert_as_accurate(found(stack, stack), found(stack.forward_reference, stack), truth)


@pytest.mark.parametrize("id", [-1, 4, 10**12])
def test_lookup_of_a_row_that_is_not_there(case: Case, id: int) -> None:
    for table in (None, torch.zeros(4, 4)):
        with pytest.raises(ValueError, match=r"^ids of a lookup: found .*; allowed are 0 to 3$"):
            case.build(4, 5).float()(Lookup(torch.tensor([[1, id]]), table))


@pytest.mark.parametrize("options", [{}, {"state_dropout": 0.4, "zoneout": 0.3}], ids=str)
def test_no_streams(case: Case, options: dict[str, float]) -> None:
    stack = case.build(3, 20, **options).float()
    y, _ = stack(torch.zeros(4, 0, 3))
    y.sum().backward()
    assert y.shape == (4, 0, 20)
    assert all((parameter.grad == 0).all() for parameter in stack.parameters() if parameter.grad is not None)


def test_a_generator_outlives_a_change_of_threads(case: Case, threads: Any) -> None:
    stack = case.build(4, 5, 2).float()
    decoder = torch.randn(4, 5), torch.zeros(4)
    draws = torch.rand(9, 300, dtype=torch.float64).t()
    texts = []
    for number in (1, 3):
        generator = stack.generator(stack.zero_state(9), None, decoder)
        assert generator is not None
        threads(number)
        texts.append(generator.draw(draws, temperature=1.0, top_k=0, top_p=1.0))
        threads(1)
    assert torch.equal(*texts)


def test_operands_of_another_device_or_type_are_left_to_torch() -> None:
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    linear(x, w.to("meta"))  # Torch's answer is of no use, but nobody reads memory that is not there.
    with pytest.raises(RuntimeError):
        linear(x, w, torch.zeros(4, dtype=torch.float64))
    assert linear(x[0], w).shape == (4,)
    assert linear(x.double(), w.double()).dtype == torch.float64


def test_lookup_of_a_wrong_width(case: Case) -> None:
    stack = case.build(6, 4)
    with pytest.raises(ValueError, match=rf"^{case.kind}: input of shape \[2, 3, 5\]; allowed is \[T, B, 6\]"):
        stack(Lookup(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(9, 5)))


def test_forwards_and_backwards_may_interleave(case: Case) -> None:
    stack = case.build(3, 20)
    stack, x, state = in_float32(stack, 5, 2)
    expected = run(stack, stack, x, state)["dweight_hh_l0"]
    one, two = stack(x, state)[0], stack(x * 2, state)[0]
    two.sum().backward()
    upstream = torch.randn(one.shape)
    (first,) = torch.autograd.grad(one, [stack.get_parameter("weight_hh_l0")], upstream, retain_graph=True)
    (second,) = torch.autograd.grad(one, [stack.get_parameter("weight_hh_l0")], upstream)
    assert torch.equal(first, second)
    assert first.shape == expected.shape


@pytest.mark.parametrize("zoneout", [0.0, 0.3])
def test_without_gradients_the_outputs_are_the_same(case: Case, zoneout: float) -> None:
    stack = case.build(3, 20, 2, zoneout=zoneout).eval()
    stack, x, state = in_float32(stack, 5, 2)
    expected, expected_last = stack(x, state)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            y, last = stack(x, state)
        assert torch.equal(y, expected)
        assert all(map(torch.equal, as_tuple(last), as_tuple(expected_last)))
        assert not y.requires_grad


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_do_not_hide(case: Case, value: float) -> None:
    stack = case.build(3, 20).float()
    with torch.no_grad():
        stack.get_parameter("weight_hh_l0").view(-1)[0] = torch.nan
    x = torch.full((2, 3, 3), value)
    y, _ = stack(x)
    reference, _ = stack.forward_reference(x)
    assert torch.equal(y.isnan(), reference.isnan())
    assert y.isnan().any()


SIZES = [(1, 1, 1), (7, 65, 33), (130, 17, 1000), (65, 130, 513), (13, 16, 256)]
# About those of tiles: 16 rows, 16 columns, 32 of K.
SIZES += [(1, 48, 64), (15, 15, 31), (16, 33, 32), (17, 31, 95), (31, 32, 1025), (33, 16, 512), (47, 64, 1100)]


@pytest.mark.parametrize(("M", "N", "K"), SIZES)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("number", [1, 3])
def test_product_of_matrices(M: int, N: int, K: int, transposed: tuple[bool, bool], number: int, threads: Any) -> None:
    threads(number)
    a = torch.randn(K, M).t() if transposed[0] else torch.randn(M, K)
    b = torch.randn(N, K).t() if transposed[1] else torch.randn(K, N)
    bias = torch.randn(N)
    truth = a.double() @ b.double() + bias
    allowed = 4 * error(a @ b + bias, truth) + 1e-6
    assert error(matmul(a, b, bias), truth) <= allowed
    assert error(matmul(a, b), truth - bias) <= allowed

    truth = rounded(a).double() @ rounded(b).double()
    assert error(matmul(a, b, bf16=True), truth) <= 1e-5 * K**0.5 + 1e-6
    assert error(matmul(a, b, bias, bf16=True), truth + bias) <= 1e-5 * K**0.5 + 1e-6


def test_product_of_operands_with_gaps() -> None:
    a, b = torch.randn(40, 3, 70)[:, 1, ::2], torch.randn(70, 2, 40)[::2, 0, ::2]
    torch.testing.assert_close(matmul(a, b), a @ b)
    torch.testing.assert_close(matmul(a, b, bf16=True), rounded(a) @ rounded(b))


@pytest.mark.parametrize("rows", [1, 16])
def test_rounding_to_bf16_is_torch_s(rows: int) -> None:
    """To nearest, ties to even, NaN of any bits to NaN."""
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F817FFF, 0x7F7F7FFF, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF]
    x = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    x_N = torch.cat([x, -x, torch.tensor([0.0, 1e-30, torch.pi])])
    ones = torch.ones(rows, 1)
    expected = rounded(x_N).expand(rows, -1)
    torch.testing.assert_close(matmul(ones, x_N[None], bf16=True), expected, rtol=0, atol=0, equal_nan=True)
    for x_NK in (x_N[:, None], torch.stack([x_N, torch.zeros_like(x_N)]).t()):
        y_NM = matmul(x_NK, torch.ones(x_NK.shape[1], rows), bf16=True)
        torch.testing.assert_close(y_NM, expected.t(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has to be asked for tiles")
def test_bf16_where_tiles_are_refused() -> None:
    """The tests of bfloat16 in a process whose signals have no room for tiles, so that it is given none."""
    program = """\
import ctypes, sys, pytest
memory = ctypes.create_string_buffer(8192)
assert ctypes.CDLL(None).sigaltstack((ctypes.c_size_t * 3)(ctypes.addressof(memory), 0, len(memory)), None) == 0
sys.exit(pytest.main([sys.argv[1], "-q", "-p", "no:faulthandler", "-k", "(bf16_is and 17-70) or rounding or product"]))
"""
    done = subprocess.run([sys.executable, "-c", program, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 5), (40, 30, 65), (2, 1, 1000)])
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("number", [1, 4])
def test_cross_entropy(shape: tuple[int, int, int], scale: float, number: int, threads: Any) -> None:
    threads(number)
    logits = (scale * torch.randn(shape, dtype=torch.float64) + 100).float().double()
    targets = torch.randint(shape[-1], shape[:-1])
    upstream = torch.randn(shape[:-1], dtype=torch.float64)

    def found(function: Any, dtype: torch.dtype) -> Run:
        inputs = logits.to(dtype).requires_grad_()
        nats = function(inputs, targets)
        (gradient,) = torch.autograd.grad(nats, inputs, upstream.to(dtype))
        return {"nats": nats.detach(), "gradient": gradient}

    def reference(logits: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits.movedim(-1, 1), targets, reduction="none")

    truth = found(reference, torch.float64)
    assert_as_accurate(found(cross_entropy, torch.float32), found(reference, torch.float32), truth)


@pytest.mark.parametrize("V", [3, 40])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_cross_entropy_of_numbers_that_are_not_finite(V: int, value: float) -> None:
    logits = torch.where(torch.eye(V, dtype=torch.bool), value, 0.0).requires_grad_()
    nats = cross_entropy(logits, torch.arange(V).roll(1))
    nats.sum().backward()
    assert nats.isnan().all()
    assert logits.grad is not None
    assert logits.grad.isnan().any(1).all()


def test_cross_entropy_of_characters_that_are_out_of_the_question() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0]], requires_grad=True)
    nats = cross_entropy(logits, torch.tensor([2]))
    nats.sum().backward()
    torch.testing.assert_close(nats.detach(), torch.tensor([2.0]).log())
    torch.testing.assert_close(logits.grad, torch.tensor([[0.5, 0.0, -0.5]]))


@pytest.mark.parametrize("target", [-1, 3])
def test_cross_entropy_of_a_target_that_is_not_there(target: int) -> None:
    with pytest.raises(ValueError, match=r"^targets: found .*; allowed are 0 to 2$"):
        cross_entropy(torch.zeros(2, 3), torch.tensor([0, target]))


@pytest.mark.parametrize("shape", [(2,), (5, 7), (7, 5, 1), ()])
def test_cross_entropy_of_targets_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^targets of shape .*; allowed: that of the logits but V, \[7, 5, 3\]$"):
        cross_entropy(torch.zeros(7, 5, 3), torch.zeros(shape, dtype=torch.int64))


def test_operands_need_not_lie_side_by_side() -> None:
    logits, targets = torch.randn(3, 6, 4).movedim(1, 2), torch.arange(24).view(3, 8)[:, ::2] % 6
    expected = torch.nn.functional.cross_entropy(logits.movedim(-1, 1), targets, reduction="none")
    torch.testing.assert_close(cross_entropy(logits, targets), expected)
    x, w, bias = torch.randn(2, 3), torch.randn(4, 3), torch.randn(8)[::2]
    torch.testing.assert_close(linear(x, w, bias), torch.nn.functional.linear(x, w, bias))
    torch.testing.assert_close(linear(torch._neg_view(x), w), torch.nn.functional.linear(-x, w))
    assert linear(torch.zeros(2, 0), torch.zeros(4, 0)).shape == (2, 4)


def test_second_derivatives_are_refused(case: Case) -> None:
    stack = case.build(3, 5).float()
    x = torch.randn(2, 1, 3, requires_grad=True)
    logits = torch.randn(2, 3, requires_grad=True)
    for value, of in (
        (stack(x)[0].sum(), x),
        (linear(x, torch.randn(4, 3)).sum(), x),
        (cross_entropy(logits, torch.tensor([0, 2])).sum(), logits),
    ):
        with pytest.raises(RuntimeError, match="has no second derivative; use forward_reference"):
            torch.autograd.grad(value, of, create_graph=True)


def test_linear_is_torch_s() -> None:
    x, w, b = (torch.randn(*shape, requires_grad=True) for shape in ((4, 3, 20), (7, 20), (7,)))
    upstream = torch.randn(4, 3, 7)
    for bias in (b, None):
        inputs = [x, w] if bias is None else [x, w, b]
        found, expected = linear(x, w, bias), torch.nn.functional.linear(x, w, bias)
        torch.testing.assert_close(found, expected)
        gradients = (torch.autograd.grad(y, inputs, upstream) for y in (found, expected))
        for mine, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, theirs)
