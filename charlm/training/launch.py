"""Which launch of torchrun a run belongs to. torchrun may start its processes again; they then resume their run."""

import contextlib
import os
import socket
from pathlib import Path

LAUNCH = ".launch"


def run_of_this_launch(run_dir: Path | None) -> Path | None:
    """The folder of the run that this launch has started before: `run_dir`, or any in runs/."""
    if not (launch := _launch()):
        return None
    for folder in [run_dir] if run_dir else sorted(Path("runs").glob("*")):
        with contextlib.suppress(OSError, ValueError):
            if _is_same((folder / LAUNCH).read_text(encoding="utf-8").splitlines(), launch):
                return folder
    return None


def note_launch(folder: Path) -> None:
    """Write into a run's folder which launch it belongs to."""
    if launch := _launch():
        (folder / LAUNCH).write_text("\n".join(launch), encoding="utf-8")


def _launch() -> list[str] | None:
    """The name of the launch, and what tells torchrun's own process from all others; None without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name is None:
        return None
    parent, start = os.getppid(), ""
    with contextlib.suppress(OSError, LookupError):  # a later process may have the same number
        start = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return [name, f"{socket.gethostname()} {parent} {start}"]


def _is_same(noted: list[str], launch: list[str]) -> bool:
    """torchrun may also move the first process to another machine; then only the name is left to go by."""
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    return noted == launch or (restarted and noted[:1] == launch[:1] != ["none"])
