"""Speed of two processes that share a batch, beside one process with as many threads."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_measure import Effort, Report, Row, figure, has_fast_bf16
from bench_uses import generated_text

ROUNDS = 3
KINDS = ("lstm", "gru", "rnn", "rhn")


def measure_processes(report: Report, effort: Effort) -> None:
    """The section `processes`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    report.table(
        f"processes: two with half of {cores} cores each ÷ one with all, by `charlm plan`",
        "communication: the part of an update that processes spend on each other's gradients",
        ["characters/s", "÷ one process", "communication"],
    )
    if cores == 1:
        report.note("one core: nothing to share")
        return
    H, B, T = 512, 64, 64
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text(generated_text(), encoding="utf-8")
        precisions = ["fp32", *(["bf16"] if has_fast_bf16() else [])]
        for kind, precision in itertools.product(KINDS[:1] if effort.quick else KINDS, precisions):
            settings = [f"data.source={text}", f"model.cell={{kind: {kind}, hidden: {H}}}", "device=cpu"]
            settings += [f"precision={precision}"]
            settings += [f"train.batch_size={B}", f"train.bptt={T}"]
            rounds = [(plan(1, cores, settings), plan(2, cores // 2, settings)) for _ in range(ROUNDS)]
            figures = {
                "characters/s": figure([many["chars_per_s"] for _, many in rounds], "characters/s"),
                "÷ one process": figure([many["chars_per_s"] / one["chars_per_s"] for one, many in rounds], "ratio"),
                "communication": figure([many["communication_s"] / many["step_s"] for _, many in rounds], "ratio"),
            }
            report.add(Row("processes", "cpu", f"{kind.upper()} {precision}", {"H": H, "B": B, "T": T}, figures))


def plan(processes: int, threads: int, settings: list[str]) -> dict[str, Any]:
    """What `charlm plan --json` prints."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "charlm", "plan", "--config", "lstm", "--json"]
    for setting in (*settings, f"threads={threads}"):
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
