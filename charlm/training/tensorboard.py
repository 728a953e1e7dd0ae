"""TensorBoard events of a run.

torch's SummaryWriter writes from a thread, which cannot report a full disk to its caller; here each event is written
before the call returns.
"""

import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary

from charlm.runs import CHARTS
from charlm.system.formatting import to_json

_RETRY_S = 60.0
_VERSION = "brain.Event:2"


class Charts:
    """Appends events to a file per split: TensorBoard draws equal tags from several folders into one chart.

    first_step: of a resumed run; TensorBoard drops what older files have from this step on. After a fault a new file
    is begun, because the old one may end in half an event, but only every `_RETRY_S`.
    """

    def __init__(self, folder: Path, first_step: int | None = None) -> None:
        self._folder = folder
        self._retry_s = 0.0
        self.begin_files(first_step)

    def begin_files(self, first_step: int | None) -> None:
        """Begin new files, which replace the events of older ones from `first_step` on."""
        self._first_step = first_step
        self._files: dict[str, Path] = {}
        for split in CHARTS:
            self._files[split] = self._new_file(self._folder / split)

    def scalars(self, split: str, step: int, scalars: Mapping[str, float]) -> None:
        self._write(split, step, *itertools.starmap(summary.scalar, scalars.items()))

    def text(self, tag: str, text: str, step: int) -> None:
        """Log text, which TensorBoard shows as Markdown."""
        self._write("train", step, summary.text(tag, text))

    def hparams(self, options: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        """Log options and final scores for the page HParams."""
        # The page shows booleans as 1.0000 and 0.0000 unless they are text.
        plain = {k: v if type(v) in (int, float, str) else to_json(v) for k, v in options.items()}
        summaries = [*summary.hparams(plain, dict(scores)), *itertools.starmap(summary.scalar, scores.items())]
        _append(_new_file(self._folder), *(Event(summary=each) for each in summaries))

    def _write(self, split: str, step: int, *summaries: Summary) -> None:
        if time.monotonic() < self._retry_s:
            return
        try:
            if split not in self._files:
                self._files[split] = self._new_file(self._folder / split)
            _append(self._files[split], *(Event(step=step, summary=each) for each in summaries))
        except OSError:
            self._files.pop(split, None)
            self._first_step = step + 1
            self._retry_s = time.monotonic() + _RETRY_S
            raise

    def _new_file(self, folder: Path) -> Path:
        file, step = _new_file(folder), self._first_step
        if step is not None:
            _append(file, Event(step=step, session_log=SessionLog(status=SessionLog.START)))
        return file


def _new_file(folder: Path) -> Path:
    """A new file of events. TensorBoard reads the files of a folder in the order of their names."""
    folder.mkdir(exist_ok=True)
    file = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
    _append(file, Event(file_version=_VERSION))
    return file


def _append(file: Path, *events: Event) -> None:
    with file.open("ab") as opened:
        for event in events:
            event.wall_time = time.time()
            RecordWriter(opened).write(event.SerializeToString())
