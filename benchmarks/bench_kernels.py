"""Forward and backward of recurrent layers, beside the reference loop, torch.nn's layers and a matrix product."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from bench_measure import Effort, Report, Row, Way, figure, has_fast_bf16, interleave, rate, ratio
from torch import Tensor, nn

from charlm.cells import CELLS
from charlm.cells.derivative import passes_of
from charlm.layers import Lookup, RecurrentLayers
from charlm.native import loading
from charlm.native.kernels import PRODUCT
from charlm.native.operators import matmul

T = 64
GEMM = (2048, 2048, 512)
GEMM_FLOP = 2 * GEMM[0] * GEMM[1] * GEMM[2]

Size = tuple[int, int]
"""H, B"""
SIZES: list[Size] = [(128, 32), (256, 32), (512, 64), (1024, 64)]


class Subject(NamedTuple):
    """A stack to measure."""

    name: str
    kind: str
    sizes: list[Size]
    quick_sizes: list[Size]
    layers: int = 1
    options: dict[str, Any] = {}  # noqa: RUF012
    zoneout: float = 0.0

    def build(self, H: int, device: torch.device) -> RecurrentLayers:
        cell = CELLS[self.kind](hidden=H, **self.options)
        return RecurrentLayers(cell, H, self.layers, zoneout=self.zoneout).to(device)


SUBJECTS = [
    Subject("RHN D5", "rhn", [(128, 32), (512, 64), (1024, 64)], [(128, 32), (512, 64)], options={"depth": 5}),
    Subject("RHN D5 uncoupled", "rhn", [(512, 64)], [], options={"depth": 5, "couple_gates": False}),
    Subject("LSTM", "lstm", [*SIZES, (256, 1), (256, 128)], [(128, 32), (512, 64)]),
    Subject("LSTM ×2", "lstm", SIZES, [], layers=2),
    Subject("LSTM layer norm", "lstm", SIZES, [(512, 64)], options={"layer_norm": True}),
    Subject("GRU", "gru", [*SIZES, (256, 1), (256, 128)], [(128, 32), (512, 64)]),
    Subject("GRU ×2", "gru", SIZES, [], layers=2),
    Subject("RNN", "rnn", SIZES, [(128, 32), (512, 64)]),
    Subject("RNN ×2", "rnn", SIZES, [], layers=2),
    Subject("sLSTM", "slstm", [(512, 64)], []),
    Subject("Mogrifier LSTM", "mogrifier", [(512, 64)], []),
    Subject("SRU ×4", "sru", [(384, 16)], [(384, 16)], layers=4),
    Subject("minGRU ×4", "mingru", [(384, 16)], [], layers=4),
]


def measure_kernels(report: Report, effort: Effort) -> None:
    """The section `kernels`, on the CPU and on a GPU if there is one."""
    measure_device(torch.device("cpu"), report, effort)
    measure_products(report, effort)
    measure_bf16(report, effort)
    if torch.cuda.is_available():
        measure_device(torch.device("cuda"), report, effort)


def measure_device(device: torch.device, report: Report, effort: Effort) -> None:
    report.table(
        f"kernels, {device.type}: forward and backward, T {T}, fp32",
        "GF/s counts 6 × weights × T × B; ÷ x: speed divided by that of x, the reference loop, torch.nn's layer "
        "(without layer norm), a matrix product of 2048 × 2048 × 512, or the matrix products alone of a cell that has "
        "none in the loop over time",
        ["GF/s", "÷ reference", "÷ torch", "÷ GEMM", "÷ products"],
    )
    rows = []
    for subject in SUBJECTS:
        for H, B in subject.quick_sizes if effort.quick else subject.sizes:
            stack = subject.build(H, device)
            row = measure_stack(subject.name, stack, B, effort, device)
            report.add(row)
            rows.append(row)
    report.note(f"computed by: {'; '.join(dict.fromkeys(row.implementation for row in rows))}")
    speeds = [row.figures["GEMM GF/s"].median for row in rows]
    report.note(f"GEMM: {gemm(device)[0]}; {min(speeds):.0f} to {max(speeds):.0f} GF/s in the rounds of these rows")


def measure_stack(name: str, stack: RecurrentLayers, B: int, effort: Effort, device: torch.device) -> Row:
    """One row of the kernel table."""
    H = stack.hidden_size
    x_TBH = torch.randn(T, B, H, device=device, requires_grad=True)
    dy_TBH = torch.randn(T, B, H, device=device)
    ways = {
        "kernel": both_passes(stack, stack, x_TBH, dy_TBH),
        "reference": both_passes(stack.forward_reference, stack, x_TBH, dy_TBH),
        "gemm": gemm(device)[1],
    }
    if not passes_of(stack.forms[0].program).products and device.type == "cpu":
        ways["products"] = products_alone(stack, B)
    if layer := torch_layer(stack):
        ways["torch"] = both_passes(layer.to(device), layer, x_TBH, dy_TBH)
    times = interleave(ways, effort, rare=["reference"])
    flop = 6 * matrix_elements(stack) * T * B
    kernel = times["kernel"]
    figures = {
        "GF/s": rate(flop / 1e9, kernel, "GF/s"),
        "÷ reference": ratio(kernel, times["reference"]),
        "÷ GEMM": ratio(kernel, times["gemm"], flop / GEMM_FLOP),
        "GEMM GF/s": rate(GEMM_FLOP / 1e9, times["gemm"], "GF/s"),
        "ms": figure((1000 * seconds for seconds in kernel.values()), "ms"),
    }
    if layer:
        figures["÷ torch"] = ratio(kernel, times["torch"])
    if "products" in times:
        figures["÷ products"] = ratio(kernel, times["products"])
    return Row(
        "kernels", device.type, name, {"H": H, "B": B, "T": T}, figures, stack.select_backend(device).description
    )


def both_passes(
    forward: Callable[..., Any], module: nn.Module, x: Tensor | Lookup, dy_TBH: Tensor, dtype: torch.dtype | None = None
) -> Way:
    """Forward, then gradients of the weights and of an input that requires one; products in `dtype` if given."""
    inputs: list[Tensor] = list(module.parameters())
    if isinstance(x, Tensor) and x.requires_grad:
        inputs.append(x)

    def call() -> None:
        with torch.autocast(dy_TBH.device.type, dtype, enabled=dtype is not None):
            y_TBH, _ = forward(x)
        torch.autograd.grad(y_TBH, inputs, dy_TBH)

    return call


def products_alone(stack: RecurrentLayers, B: int) -> Way:
    """The products of every layer for a whole window: of inputs, and for the gradients of inputs and weights."""
    weights = [p.detach() for name, p in stack.named_parameters() if name.startswith("weight_ih")]
    operands = [(w_GI, torch.randn(T * B, w_GI.shape[1]), torch.randn(T * B, w_GI.shape[0])) for w_GI in weights]

    def call() -> None:
        for w_GI, x_NI, d_NG in operands:
            matmul(x_NI, w_GI.t())
            matmul(d_NG, w_GI)
            matmul(d_NG.t(), x_NI)

    return call


def matrix_elements(stack: RecurrentLayers) -> int:
    """How many weights multiply each character."""
    return sum(p.numel() for name, p in stack.named_parameters() if name.startswith(("weight_ih", "weight_hh")))


def torch_layer(stack: RecurrentLayers) -> nn.Module | None:
    """torch.nn's layer with the stack's weights, without those of layer norm."""
    classes = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
    if stack.kind not in classes:
        return None
    layer = classes[stack.kind](stack.input_size, stack.hidden_size, stack.num_layers)
    layer.load_state_dict({name: weight for name, weight in stack.state_dict().items() if "_ln_" not in name})
    return layer


def gemm(device: torch.device) -> tuple[str, Way]:
    """Torch's fastest plain product of two fp32 matrices: its name, and a call."""
    M, N, K = GEMM
    a_MK, w_NK = torch.randn(M, K, device=device), torch.randn(N, K, device=device)
    if device.type == "cuda":
        return "torch.mm (cuBLAS) in fp32; torch lets cuDNN's layers use TF32", lambda: a_MK @ w_NK.t()
    onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if onednn is None or not torch.backends.mkldnn.is_available():
        return "F.linear", lambda: F.linear(a_MK, w_NK)
    return "oneDNN's fp32 product (torch.ops.mkldnn)", lambda: onednn(a_MK, w_NK, None, "none", [], "")


def measure_products(report: Report, effort: Effort) -> None:
    """The kernels' matrix product, used for whole windows and weight gradients."""
    M, N, K = GEMM
    explanation = "charlm.native.operators.matmul, which the kernels use for whole windows, beside torch's products"
    report.table("products, cpu: fp32", explanation, ["GF/s", "÷ GEMM", "÷ F.linear", "GEMM GF/s"])
    if not loading.works(PRODUCT):
        report.note("skipped: no kernel can be compiled on this machine")
        return
    a_MK, w_NK = torch.randn(M, K), torch.randn(N, K)
    ways: dict[str, Way] = {
        "own": lambda: matmul(a_MK, w_NK.t()),
        "gemm": gemm(torch.device("cpu"))[1],
        "linear": lambda: F.linear(a_MK, w_NK),
    }
    times = interleave(ways, effort)
    figures = {
        "GF/s": rate(GEMM_FLOP / 1e9, times["own"], "GF/s"),
        "÷ GEMM": ratio(times["own"], times["gemm"]),
        "÷ F.linear": ratio(times["own"], times["linear"]),
        "GEMM GF/s": rate(GEMM_FLOP / 1e9, times["gemm"], "GF/s"),
    }
    report.add(Row("products", "cpu", "matmul", {"M": M, "N": N, "K": K}, figures))


def measure_bf16(report: Report, effort: Effort) -> None:
    """The kernels with bfloat16 products, if the CPU has instructions for them."""
    if not has_fast_bf16():
        report.note("bf16, cpu: skipped: this CPU has no fast instructions for bfloat16")
        return
    title, columns = f"bf16, cpu: forward and backward, T {T}, under autocast", ["GF/s", "÷ fp32"]
    report.table(title, "÷ fp32: speed divided by that of the same kernel in fp32", columns)
    cpu = torch.device("cpu")
    for subject in SUBJECTS:
        if subject.name not in ("RHN D5", "LSTM"):
            continue
        for H, B in ((512, 64),) if effort.quick else ((512, 64), (1024, 64)):
            stack = subject.build(H, cpu)
            x_TBH, dy_TBH = torch.randn(T, B, H, requires_grad=True), torch.randn(T, B, H)
            ways = {
                "bf16": both_passes(stack, stack, x_TBH, dy_TBH, torch.bfloat16),
                "fp32": both_passes(stack, stack, x_TBH, dy_TBH),
            }
            times = interleave(ways, effort)
            flop = 6 * matrix_elements(stack) * T * B
            figures = {
                "GF/s": rate(flop / 1e9, times["bf16"], "GF/s"),
                "÷ fp32": ratio(times["bf16"], times["fp32"]),
            }
            report.add(Row("bf16", "cpu", subject.name, {"H": H, "B": B, "T": T}, figures))


def measure_shipped(report: Report, effort: Effort) -> None:
    """The section `shipped`: the kernels of a wheel beside those compiled on this machine."""
    loading.SHIPPED = Path(__file__).parents[1] / f"build/kernels/linux-{platform.machine()}"
    explanation = "speed with the kernels that ./scripts/wheels has built ÷ with those compiled on this machine"
    report.table(f"shipped, cpu: forward and backward, T {T}", explanation, ["÷ compiled, fp32", "÷ compiled, bf16"])
    if not loading.SHIPPED.is_dir():
        report.note(f"skipped: run ./scripts/wheels linux-{platform.machine()} first")
        return
    dtypes = {"fp32": None, "bf16": torch.bfloat16} if has_fast_bf16() else {"fp32": None}
    for subject in SUBJECTS:
        if subject.name not in ("RHN D5", "LSTM", "LSTM layer norm"):
            continue
        H, B = 512, 64
        stack = subject.build(H, torch.device("cpu"))
        x_TBH, dy_TBH = torch.randn(T, B, H, requires_grad=True), torch.randn(T, B, H)
        figures = {}
        for name, dtype in dtypes.items():
            call = both_passes(stack, stack, x_TBH, dy_TBH, dtype)
            times = interleave({kernels: with_kernels(kernels, call) for kernels in ("shipped", "compile")}, effort)
            figures[f"÷ compiled, {name}"] = ratio(times["shipped"], times["compile"])
        report.add(Row("shipped", "cpu", subject.name, {"H": H, "B": B, "T": T}, figures))


def with_kernels(kernels: str, call: Way) -> Way:
    """The call with kernels loaded as CHARLM_KERNELS allows."""
    os.environ["CHARLM_KERNELS"] = kernels
    outcomes = loading._outcomes = {}
    call()

    def way() -> None:
        loading._outcomes = outcomes
        call()

    return way


def measure_growth(report: Report, effort: Effort) -> None:
    """The section `scaling`: time of forward and backward against T, D and L."""
    columns = ["ms at 1×", "2×", "4×", "8×"]
    explanation = "time for n× the work ÷ (n × the time for 1×); 1.00 is proportional"
    report.table(f"scaling: forward and backward (T {T} unless varied)", explanation, columns)
    H, B, V = 256, 32, 65

    def passes(kind: str, steps: int, layers: int = 1, one_hot: bool = False, **options: Any) -> Way:
        stack = RecurrentLayers(CELLS[kind](hidden=H, **options), V if one_hot else H, layers)
        ids = torch.randint(V, (steps, B))
        x = Lookup(ids, None) if one_hot else torch.randn(steps, B, H, requires_grad=True)
        return both_passes(stack, stack, x, torch.randn(steps, B, H))

    cases: dict[str, tuple[dict[str, int], Callable[[int], Way]]] = {
        "LSTM over T": ({"T": 16, "H": H, "B": B}, lambda n: passes("lstm", 16 * n)),
        # One-hot input: a dense input map would cost as much as one more micro-layer at every depth.
        "RHN over D": ({"D": 1, "H": H, "B": B, "T": T}, lambda n: passes("rhn", T, one_hot=True, depth=n)),
        "LSTM over L": ({"L": 1, "H": H, "B": B, "T": T}, lambda n: passes("lstm", T, layers=n)),
        "RHN D5 over T": ({"T": 16, "H": H, "B": B}, lambda n: passes("rhn", 16 * n)),
        "GRU over T": ({"T": 16, "H": H, "B": B}, lambda n: passes("gru", 16 * n)),
        "GRU over L": ({"L": 1, "H": H, "B": B, "T": T}, lambda n: passes("gru", T, layers=n)),
    }
    for name, (shape, way) in list(cases.items())[: 3 if effort.quick else None]:
        times = interleave({str(n): way(n) for n in (1, 2, 4, 8)}, effort)
        figures = {"ms at 1×": figure((1000 * seconds for seconds in times["1"].values()), "ms")}
        figures |= {f"{n}×": ratio(times["1"], times[str(n)], 1 / n) for n in (2, 4, 8)}
        report.add(Row("scaling", "cpu", name, shape, figures))
