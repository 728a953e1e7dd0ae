"""The CPU: its model, cores and instructions. Imports only the standard library."""

import os
import platform
import subprocess
import sys
from pathlib import Path

_FLAGS = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "sve2", "bf16")
"""Flags of /proc/cpuinfo that decide how fast kernels are."""


def describe_cpu() -> str:
    """Model, usable cores, and the instructions that decide how fast kernels are."""
    fields = {}
    if (file := Path("/proc/cpuinfo")).is_file():
        lines = file.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0].splitlines()
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    model = fields.get("model name") or _mac_model() or platform.processor() or "unknown model"
    flags = (fields.get("flags") or fields.get("features") or "").split()
    listed = " ".join(flag for flag in _FLAGS if flag in flags)
    return f"{model}, {usable_cores()} of {os.cpu_count()} cores{', ' if listed else ''}{listed}"


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _mac_model() -> str:
    if sys.platform != "darwin":
        return ""
    done = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
    return done.stdout.strip()
