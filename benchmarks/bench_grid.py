"""Small layers at many shapes: on 1, 2 and all cores, in both precisions, and beside busy processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from bench_kernels import Subject, T, both_passes, matrix_elements, torch_layer
from bench_measure import Effort, Report, Row, Way, has_fast_bf16, interleave, rate, ratio

UNITS = [128, 224, 384, 512]
STREAMS = [8, 16, 32, 64]
SHAPES = [(H, B) for H in UNITS for B in STREAMS]
QUICK_SHAPES = [(128, 8), (224, 16), (384, 16)]
KINDS = [
    Subject("LSTM", "lstm", SHAPES, QUICK_SHAPES),
    Subject("LSTM layer norm", "lstm", SHAPES, [(384, 16)], options={"layer_norm": True}),
    Subject("GRU", "gru", SHAPES, [(224, 16)]),
    Subject("RNN", "rnn", SHAPES, [(512, 64)]),
    Subject("RHN D4", "rhn", SHAPES, [(224, 16)], options={"depth": 4}),
    Subject("sLSTM", "slstm", SHAPES, []),
]
CPU = torch.device("cpu")


def measure_grid(report: Report, effort: Effort) -> None:
    """The section `grid`."""
    columns = ["GF/s", "÷ torch", "bf16 ÷ fp32", "backward ÷ forward"]
    has_bf16 = has_fast_bf16()
    for threads in sorted({1, 2, os.cpu_count() or 1} & set(range(1, (os.cpu_count() or 1) + 1))):
        if effort.quick and threads not in (2, os.cpu_count()):
            continue
        report.table(
            f"grid: forward and backward, T {T}, fp32, {threads} thread{'s' * (threads > 1)}",
            "÷ torch: speed divided by that of torch.nn's layer (without layer norm); bf16 ÷ fp32: on CPUs where "
            "bf16 is faster; backward ÷ forward: time, in bf16 where it is measured",
            columns,
        )
        with thread_count(threads):
            for subject in KINDS:
                for H, B in subject.quick_sizes if effort.quick else subject.sizes:
                    report.add(measure_shape(subject, H, B, threads, effort, has_bf16))


def measure_shape(subject: Subject, H: int, B: int, threads: int, effort: Effort, has_bf16: bool) -> Row:
    """One row of the grid."""
    stack = subject.build(H, CPU)
    x_TBH, dy_TBH = torch.randn(T, B, H, requires_grad=True), torch.randn(T, B, H)
    precision = torch.bfloat16 if has_bf16 else None

    def forward_only() -> None:
        with torch.autocast("cpu", precision) if precision else nullcontext():
            stack(x_TBH)

    ways: dict[str, Way] = {"fp32": both_passes(stack, stack, x_TBH, dy_TBH), "forward": forward_only}
    if layer := torch_layer(stack):
        ways["torch"] = both_passes(layer, layer, x_TBH, dy_TBH)
    if has_bf16:
        ways["bf16"] = both_passes(stack, stack, x_TBH, dy_TBH, torch.bfloat16)
    times = interleave(ways, effort)
    whole = times["bf16" if has_bf16 else "fp32"]
    backward = {n: seconds - times["forward"][n] for n, seconds in whole.items()}
    figures = {
        "GF/s": rate(6 * matrix_elements(stack) * T * B / 1e9, times["fp32"], "GF/s"),
        "backward ÷ forward": ratio(times["forward"], backward),
    }
    if layer:
        figures["÷ torch"] = ratio(times["fp32"], times["torch"])
    if has_bf16:
        figures["bf16 ÷ fp32"] = ratio(times["bf16"], times["fp32"])
    return Row("grid", "cpu", subject.name, {"H": H, "B": B, "threads": threads}, figures)


def measure_busy(report: Report, effort: Effort) -> None:
    """The section `busy`."""
    for count in (1, 2):
        report.table(
            f"busy: forward and backward, T {T}, fp32, beside {count} process{'es' * (count > 1)} that never wait",
            "÷ torch: speed divided by that of torch.nn.LSTM beside the same processes",
            ["GF/s", "÷ torch"],
        )
        with busy_processes(count):
            for H, B in QUICK_SHAPES if effort.quick else SHAPES:
                subject = KINDS[0]
                row = measure_shape(subject, H, B, torch.get_num_threads(), effort, has_bf16=False)
                shape = {"H": H, "B": B, "busy": count}
                report.add(Row("busy", "cpu", subject.name, shape, row.figures))


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Run the block on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep so many cores busy during the block."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
