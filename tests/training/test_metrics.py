"""metrics.jsonl, TensorBoard and the progress bar."""

import contextlib
import io
import math
import resource
import sys

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader as Loader
from tensorboard.plugins.hparams.backend_context import _sort_and_reduce_to_hparams_limit
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from charlm.checkpoint import read_checkpoint
from charlm.training.metrics import Tracker
from charlm.training.progress import ProgressBar
from charlm.training.sample import Sample
from charlm.training.start import resume_run, start_run
from tests.runs import rows, with_max_steps

FIELDS = ["step", "chars", "split", "loss", "nats", "bpc", "lr", "grad_norm", "chars_per_s", "elapsed_s"]


def test_rows_and_events_of_a_run(finished_run):
    logged = rows(finished_run)
    train, valid = "train", "valid"
    steps = [(train, 3), (valid, 4), (train, 6), (valid, 8), (train, 9), (train, 12), (valid, 12)]
    assert [(row["split"], row["step"]) for row in logged] == steps
    for row in logged:
        assert list(row) == FIELDS
        assert row["loss"] == pytest.approx(10 * row["nats"])
        assert row["bpc"] == pytest.approx(row["nats"] / math.log(2))
        assert row["chars"] == 40 * row["step"]
        assert (row["grad_norm"] is None) == (row["split"] == "valid")
    assert [row["elapsed_s"] for row in logged] == sorted(row["elapsed_s"] for row in logged)

    names = {"loss/nats_per_char": "nats", "other_units/bits_per_char": "bpc", "other_units/window_loss": "loss"}
    for split, tags in (
        (valid, {}),
        (train, {f"training/{name}": name for name in ("lr", "grad_norm", "chars_per_s")}),
    ):
        events = EventAccumulator(str(finished_run / split)).Reload()
        for tag, name in (names | tags).items():
            shown = [(event.step, pytest.approx(event.value, rel=1e-6)) for event in events.Scalars(tag)]
            assert [(row["step"], row[name]) for row in logged if row["split"] == split] == shown
    final = EventAccumulator(str(finished_run)).Reload().Scalars("final/best_nats_per_char")
    assert [event.step for event in final] == [12]


def test_what_tensorboard_shows_first_and_says_of_a_chart(finished_run):
    tags = EventAccumulator(str(finished_run / "train")).Reload().Tags()["scalars"]
    assert sorted(tags)[0] == "loss/nats_per_char"
    described = {
        value.tag: value.metadata.summary_description
        for path in finished_run.rglob("events.*")
        for event in Loader(str(path)).Load()
        for value in event.summary.value
        if not value.tag.startswith("_hparams_")
    }
    assert described["loss/nats_per_char"] == "Cross-entropy in nats per character; lower is better."
    assert described["final/best_nats_per_char"].startswith("Best validation score of the run, in nats per character")
    assert {"final/best_bits_per_char", "sample/text_summary"} <= described.keys()
    assert all(described.values())
    first = ["model.cell.hidden", "model.cell.kind", "model.layers", "optimizer.lr"]
    assert table_of_options(finished_run)[:4] == first


def table_of_options(run):
    """The hyperparameters in the order in which TensorBoard shows them."""
    for file in run.glob("events.*"):
        for event in Loader(str(file)).Load():
            for value in event.summary.value:
                if value.tag == "_hparams_/experiment":
                    experiment = HParamsPluginData.FromString(value.metadata.plugin_data.content).experiment
                    _sort_and_reduce_to_hparams_limit(experiment)
                    return [info.name for info in experiment.hparam_infos]
    return []


@contextlib.contextmanager
def full_disk():
    """A context in which no file can grow."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def row_at(step):
    return {"step": step, "split": "valid", "loss": 20.0, "nats": 2.0, "bpc": 2.9}


@pytest.mark.parametrize("rolls_back", [False, True])
def test_a_full_disk_costs_no_row_and_no_sample(tmp_path, capsys, rolls_back):
    (folder := tmp_path / "run").mkdir()
    tracker = Tracker(folder)
    for step in (1, 2, 3, 4):
        with full_disk() if step in (2, 3) else contextlib.nullcontext():
            tracker.record(row_at(step))
            tracker.sample(Sample("a", [1.0]), step)
            if rolls_back and step == 2:
                tracker.rewind(2, 2)
    tracker.close()
    assert [row["step"] for row in rows(folder)] == [1, 2, 3, 4]
    assert (folder / "samples.jsonl").read_text().count("\n") == 4
    assert capsys.readouterr().err == f"log      {folder}: cannot be written (File too large); training goes on\n"
    events = EventAccumulator(str(folder / "valid")).Reload().Scalars("loss/nats_per_char")
    assert [event.step for event in events] == ([1, 3, 4] if rolls_back else [1, 2, 3, 4])


def test_a_rollback_drops_later_rows_samples_and_events(tmp_path, windows):
    tracker = Tracker(tmp_path)
    for step in (2, 4, 6):
        tracker.record(row_at(step))
        tracker.sample(Sample("a", [1.0]), step)
    tracker.rewind(2, 4)
    tracker.record(row_at(5))
    tracker.sample(Sample("b", [None]), 5)
    tracker.close()
    assert [row["step"] for row in rows(tmp_path)] == [2, 4, 5]
    first, second = '{"step": 2, "text": "a", "bits": [1.0]}\n', '{"step": 4, "text": "a", "bits": [1.0]}\n'
    assert (tmp_path / "samples.jsonl").read_text() == first + second + '{"step": 5, "text": "b", "bits": [null]}\n'
    events = EventAccumulator(str(tmp_path / "valid")).Reload().Scalars("loss/nats_per_char")
    assert [event.step for event in events] == [2, 4, 5]


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: b"\xff\xfe\n",
        lambda line: line[:20],
        lambda line: b"[" * 100_000 + b"\n",
        lambda line: line.replace(b'"step": 6', b'"step": "x"'),
        lambda line: line.replace(b'"step": 6', b'"step": 13'),
    ],
    ids=["no text", "torn", "nested", "no step", "a later step"],
)
def test_resume_keeps_what_is_whole_of_a_damaged_log(run, damage, capsys):
    log = run / "metrics.jsonl"
    before = rows(run)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], damage(lines[2]), *lines[3:]]))
    resume_run(run, with_max_steps(15))
    assert rows(run)[:2] == before[:2]
    assert [(row["step"], row["split"]) for row in rows(run)[2:]] == [(15, "train"), (15, "valid")]
    assert "found 2 of 7 rows" in capsys.readouterr().err


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "scores"),
    [
        (200, "step 12345 · 1.500 nats · 109,000 chars/s · 2.164 bits/char"),
        (80, "step 12345 · 1.500 nats · 109,000 chars/s"),
        (42, "step 12345"),
        (41, ""),
    ],
)
def test_the_bar_shows_the_time_left_first_and_leaves_out_what_does_not_fit(monkeypatch, columns, scores):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = ProgressBar()
    progress.note({"nats": 1.5, "bpc": 2.164, "chars_per_s": 109_000.0})
    progress.show(12_345, 0.5, 3660.0)
    shown = [text.strip() for text in terminal.getvalue().split("\r")]
    assert shown[1] == "? left   0%|          | step 0"
    assert shown[-1] == f"1 h 1 min left  50%|█████     | {scores}".strip()
    progress.close()


def test_gradients_are_watched_every_few_evaluations(tmp_path, config_of):
    """And at the last. Evaluations are at steps 4, 8 and 12; the run is the one without it, bit for bit."""
    watching = config_of({"watch_gradients": 2}, {"layers": 2})
    start_run(config_of({}, {"layers": 2}), tmp_path / "plain")
    start_run(watching, tmp_path / "run")
    last = [read_checkpoint(tmp_path / name / "checkpoints/last.safetensors") for name in ("run", "plain")]
    assert_same_weights(*last)
    events = EventAccumulator(str(tmp_path / "run/valid"), {"histograms": 0}).Reload()
    for layer in (1, 2):
        event, last_event = events.Histograms(f"gradients/layer_{layer}")
        assert (event.step, last_event.step) == (8, 12)
        shares = np.array(event.histogram_value.bucket)
        assert event.histogram_value.bucket_limit == [back + 0.5 for back in range(1, 101)]
        assert shares.sum() == pytest.approx(1)
        assert shares[0] > 10 * shares[20] > 0
    assert EventAccumulator(str(tmp_path / "plain/valid")).Reload().Tags()["histograms"] == []


@pytest.mark.parametrize(("eval_every", "steps"), [(0, [12]), (6, [12]), (5, [10, 12])])
def test_gradients_are_watched_once_at_the_last_evaluation(tmp_path, config_of, eval_every, steps):
    start_run(config_of({"watch_gradients": 2, "eval_every": eval_every}), tmp_path)
    events = EventAccumulator(str(tmp_path / "valid"), {"histograms": 0}).Reload()
    assert [event.step for event in events.Histograms("gradients/layer_1")] == steps


def assert_same_weights(one, other):
    assert one.weights.keys() == other.weights.keys()
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


def test_the_shares_of_gradients_by_steps_back(tmp_path):
    tracker = Tracker(tmp_path)
    tracker.gradients(np.array([[3.0, 1.0]]), 7)
    tracker.close()
    [event] = EventAccumulator(str(tmp_path / "valid")).Reload().Histograms("gradients/layer_1")
    shown = event.histogram_value
    assert (shown.min, shown.max, shown.num, shown.sum, shown.sum_squares) == (0.5, 2.5, 1, 1.25, 1.75)
    assert (list(shown.bucket_limit), list(shown.bucket)) == ([1.5, 2.5], [0.75, 0.25])
