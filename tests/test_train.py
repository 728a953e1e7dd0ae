"""Whole runs: what they write, how they end, how they go on."""

import errno
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from charlm.cells import CELLS
from charlm.checkpoint import load_weights, read_checkpoint
from charlm.config import load_config, parse_config
from charlm.data.corpus import load_configured_corpus
from charlm.errors import CharlmError, ConfigError, DataError, DivergenceError, RunError, VocabularyError
from charlm.inference.evaluation import evaluate
from charlm.inference.sampling import Choice, sample_text
from charlm.model import build_model
from charlm.system.lock import locked
from charlm.training.metrics import Metrics, Row, Tracker
from charlm.training.start import resume_run, start_run
from charlm.training.step import Trainer
from tests.runs import assert_same_checkpoint, rows, untimed
from tests.text import words_text


@pytest.fixture
def config_of(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(words_text(4000))

    def build(train=None, model=None, data=None, **top):
        return parse_config(
            {
                "data": {"source": str(file), "split": [0.8, 0.2, 0], **(data or {})},
                "model": {"cell": {"kind": "lstm", "hidden": 12}, **(model or {})},
                "train": {
                    "batch_size": 4,
                    "bptt": 10,
                    "max_steps": 12,
                    "log_every": 3,
                    "eval_every": 4,
                    "save_every": 5,
                    "sample_every": 6,
                    **(train or {}),
                },
                "threads": 1,
                **top,
            },
            "test",
        )

    return build


def contents(run: Path):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def row_at(step):
    return Row(step, 40 * step, "train", 20.0, 2.0, 3e-3, 1.0, 1e3, 1.0 * step)


def folder_with(path):
    path.mkdir()
    return path


def with_max_steps(steps):
    return lambda saved: parse_config(saved.model_dump(mode="json"), "saved", [f"train.max_steps={steps}"])


DROPOUT = {"embedding": 0.1, "input": 0.1, "state": 0.2, "between_layers": 0.2, "output": 0.2}


@pytest.mark.parametrize("variational", [False, True])
@pytest.mark.parametrize("kind", CELLS)
def test_resume_is_bit_identical(tmp_path, config_of, kind, variational):
    """Interrupted after 7 of 14 steps, between logs and amid an epoch, and resumed: as if in one go."""
    model = {"cell": {"kind": kind, "hidden": 12}, "layers": 2, "dropout": {**DROPOUT, "variational": variational}}
    config = config_of(model=model, train={"max_steps": 14, "ema": 0.9})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    with interrupted_after(7):
        assert start_run(config, parts).reason == "SIGINT"
    assert read_checkpoint(parts / "checkpoints/last.safetensors").progress["step"] == 7
    assert resume_run(parts).reason == "max_steps"
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")
    assert_same_checkpoint(whole / "checkpoints/best.safetensors", parts / "checkpoints/best.safetensors")
    assert untimed(whole) == untimed(parts)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "nadam", "radam", "sgd", "rmsprop", "adagrad", "muon"])
def test_resume_is_bit_identical_for_every_optimiser(tmp_path, config_of, optimizer):
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    assert_resumes_alike(
        tmp_path, config_of(optimizer={"name": optimizer, "lr": 0.01, "schedule": {"name": "cosine"}, **momentum})
    )


def test_resume_is_bit_identical_with_windows_of_changing_length(tmp_path, config_of):
    assert_resumes_alike(tmp_path, config_of(train={"bptt_start": 3, "vary_bptt": 0.3}))


def assert_resumes_alike(tmp_path, config):
    """In one go, and interrupted after 5 steps and resumed."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    with interrupted_after(5):
        start_run(config, parts)
    resume_run(parts)
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")
    assert untimed(whole) == untimed(parts)


def test_resume_from_an_earlier_checkpoint_rewrites_what_came_after(tmp_path, config_of):
    """As after a kill: the metrics are ahead of the last checkpoint, and end in half a line."""
    config = config_of()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    start_run(config, parts)
    folder = parts / "checkpoints"
    (folder / "step-00000005.safetensors").replace(folder / "last.safetensors")
    with (parts / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "los')
    resume_run(parts)
    assert untimed(whole) == untimed(parts)
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")


@pytest.mark.parametrize("train", [{"log_every": 3, "eval_every": 4}, {"log_every": 5, "eval_every": 10}])
def test_a_run_that_ended_goes_on_as_if_it_had_not(tmp_path, config_of, train):
    """k steps to their end, then resumed to 2k: weights and metrics of 2k in one go, closing rows dropped."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config_of(train={"max_steps": 20, **train}), whole)
    start_run(config_of(train={"max_steps": 10, **train}), parts)
    assert rows(parts)[-1]["step"] == 10
    resume_run(parts, with_max_steps(20))
    assert untimed(whole) == untimed(parts)
    ours, theirs = (read_checkpoint(run / "checkpoints/last.safetensors") for run in (whole, parts))
    assert all(torch.equal(ours.weights[name], theirs.weights[name]) for name in ours.weights)


@pytest.mark.parametrize("stop", [79, 80, 81])
def test_resume_around_the_end_of_an_epoch(tmp_path, config_of, stop):
    """An epoch is 80 windows here; where it ends there is no hidden state to carry."""
    schedule = {"name": "step", "factor": 0.5, "after_epochs": 1}
    config = config_of(
        train={"max_steps": 84, "reset_state": 0.1}, optimizer={"name": "adamw", "lr": 0.01, "schedule": schedule}
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    with interrupted_after(stop):
        start_run(config, parts)
    carried = read_checkpoint(parts / "checkpoints/last.safetensors").carried
    assert ("recurrent.0" in carried) == (stop != 79)
    resume_run(parts)
    assert untimed(whole) == untimed(parts)
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")


@pytest.mark.parametrize("eval_every", [4, 5, 0])
def test_resuming_a_run_that_is_done_changes_nothing(tmp_path, config_of, eval_every):
    start_run(config_of(train={"eval_every": eval_every}), tmp_path / "run")
    before = untimed(tmp_path / "run")
    outcome = resume_run(tmp_path / "run")
    assert (outcome.step, outcome.reason) == (12, "max_steps")
    assert untimed(tmp_path / "run") == before


def test_a_longer_run_by_resuming(tmp_path, config_of, capsys):
    config = config_of()
    start_run(config, tmp_path / "run")
    outcome = resume_run(tmp_path / "run", with_max_steps(20))
    assert (outcome.step, outcome.reason) == (20, "max_steps")
    assert "change   train.max_steps: 12 → 20" in capsys.readouterr().err
    assert load_config(tmp_path / "run" / "config.yaml").train.max_steps == 20


def test_an_average_asked_for_on_resume_starts_from_the_trained_weights(tmp_path, config_of):
    outcome = start_run(config_of(), tmp_path / "run")
    resumed = resume_run(
        tmp_path / "run", lambda saved: parse_config(saved.model_dump(mode="json"), "saved", ["train.ema=0.9"])
    )
    assert resumed.step == outcome.step
    checkpoint = read_checkpoint(tmp_path / "run/checkpoints/last.safetensors")
    assert checkpoint.averaged
    assert all(torch.equal(checkpoint.averaged[name], checkpoint.weights[name]) for name in checkpoint.weights)


def test_the_average_of_the_weights_is_what_is_scored_sampled_and_fine_tuned(tmp_path, config_of, capsys):
    config = config_of(train={"ema": 0.9, "sample_length": 60}, optimizer={"lr": 0.05})
    outcome = start_run(config, tmp_path / "first")
    sampled = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sample ")][-1]
    checkpoint = read_checkpoint(tmp_path / "first/checkpoints/last.safetensors")
    valid = load_configured_corpus(config.data).splits["valid"]
    scores, samples = [], []
    for weights in (checkpoint.averaged, checkpoint.weights):
        model = build_model(config.model, len(checkpoint.vocabulary)).eval()
        load_weights(model, weights)
        scores.append(evaluate(model, valid, torch.device("cpu")).nats_per_char)
        pieces = sample_text(
            model, checkpoint.vocabulary, prompt="", length=60, choice=Choice(0.8), seeds=[1 + 12], device="cpu"
        )
        samples.append(repr("".join(piece for [piece] in pieces)))
    assert outcome.valid_nats == pytest.approx(scores[0], rel=1e-6) != pytest.approx(scores[1], rel=1e-3)
    assert sampled.endswith(samples[0])
    assert samples[0] != samples[1]

    still = config_of(train={"max_steps": 1}, optimizer={"name": "sgd", "lr": 1e-30})
    start_run(still, tmp_path / "second", checkpoint)
    tuned = read_checkpoint(tmp_path / "second/checkpoints/last.safetensors").weights
    assert all(torch.equal(tuned[name], weight) for name, weight in checkpoint.averaged.items())


class interrupted_after:
    """Send this process SIGINT (or another) during the update after `steps` updates."""

    def __init__(self, steps, number=signal.SIGINT):
        self.steps, self.number = steps, number

    def __enter__(self):
        from charlm.training.step import Trainer

        self.update = Trainer.update

        def update(trainer):
            self.update(trainer)
            if trainer.state.step == self.steps:
                os.kill(os.getpid(), self.number)

        Trainer.update = update

    def __exit__(self, *_):
        from charlm.training.step import Trainer

        Trainer.update = self.update


def test_folder(tmp_path, config_of):
    config = config_of(train={"max_steps": 26, "keep_checkpoints": 2})
    outcome = start_run(config, tmp_path / "run")
    run = tmp_path / "run"
    assert load_config(run / "config.yaml") == config
    names = sorted(p.name for p in (run / "checkpoints").iterdir())
    assert names == [
        "best.safetensors",
        "last.safetensors",
        "step-00000020.safetensors",
        "step-00000025.safetensors",
    ]
    assert outcome.step == 26
    assert outcome.chars == 26 * 40
    best = read_checkpoint(run / "checkpoints/best.safetensors")
    assert best.progress["step"] == outcome.best_step
    assert best.progress["best_nats"] == outcome.best_nats


def test_a_closing_evaluation_that_fails_costs_nothing(tmp_path, config_of, monkeypatch):
    import charlm.training.loop

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(charlm.training.loop, "evaluate", fail)
    with pytest.raises(MemoryError):
        start_run(config_of(train={"eval_every": 0, "save_every": 0}), tmp_path / "run")
    assert read_checkpoint(tmp_path / "run/checkpoints/last.safetensors").progress["step"] == 12


def test_a_run_that_dies_at_once_can_be_resumed(tmp_path, config_of):
    """There is a checkpoint before the first step, and what it resumes to is the whole run."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config_of(), whole)

    from charlm.training.step import Trainer

    update = Trainer.update
    try:
        Trainer.update = lambda trainer: 1 / 0
        with pytest.raises(ZeroDivisionError):
            start_run(config_of(), parts)
    finally:
        Trainer.update = update
    assert [p.name for p in (parts / "checkpoints").iterdir()] == ["last.safetensors"]
    resume_run(parts)
    assert untimed(whole) == untimed(parts)
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")


def test_metrics(tmp_path, config_of):
    start_run(config_of(), tmp_path / "run")
    found = rows(tmp_path / "run")
    assert [(r["split"], r["step"]) for r in found] == [
        ("train", 3),
        ("valid", 4),
        ("train", 6),
        ("valid", 8),
        ("train", 9),
        ("train", 12),
        ("valid", 12),
    ]
    for row in found:
        assert list(row) == [
            "step", "chars", "split", "loss", "nats", "bpc", "lr", "grad_norm", "chars_per_s", "elapsed_s",
        ]  # fmt: skip
        assert row["loss"] == pytest.approx(10 * row["nats"])
        assert row["bpc"] == pytest.approx(row["nats"] / math.log(2))
        assert row["chars"] == 40 * row["step"]
        assert (row["grad_norm"] is None) == (row["split"] == "valid")
    assert [r["elapsed_s"] for r in found] == sorted(r["elapsed_s"] for r in found)


def test_tensorboard_events(tmp_path, config_of):
    start_run(config_of(), tmp_path / "run")
    found = rows(tmp_path / "run")
    for split in ("train", "valid"):
        events = EventAccumulator(str(tmp_path / "run" / split)).Reload()
        ours = [r for r in found if r["split"] == split]
        for tag, key in (("score/loss", "loss"), ("score/nats_per_char", "nats"), ("score/bits_per_char", "bpc")):
            assert [(e.step, e.value) for e in events.Scalars(tag)] == [
                (r["step"], pytest.approx(r[key], rel=1e-6)) for r in ours
            ]
    train = EventAccumulator(str(tmp_path / "run" / "train")).Reload()
    assert {"training/lr", "training/grad_norm", "training/chars_per_s"} <= set(train.Tags()["scalars"])
    assert [e.step for e in train.Tensors("sample/text_summary")] == [6, 12]
    top = EventAccumulator(str(tmp_path / "run")).Reload()
    assert "final/best_nats_per_char" in top.Tags()["scalars"]


def test_best_is_kept_when_validation_rises_again(tmp_path, config_of):
    """A rate far too high after a good start: `best` stays at the good step and patience ends the run."""
    config = config_of(
        train={"max_steps": 400, "eval_every": 4, "patience": 3},
        optimizer={"name": "adamw", "lr": 0.02, "schedule": {"name": "constant"}, "clip_norm": 1.0},
        data={"split": [0.1, 0.9, 0]},
    )
    outcome = start_run(config, tmp_path / "run")
    assert outcome.reason == "patience"
    assert outcome.step == outcome.best_step + 3 * 4
    assert read_checkpoint(tmp_path / "run/checkpoints/best.safetensors").progress["step"] == outcome.best_step
    assert outcome.valid_nats > outcome.best_nats


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_steps": 3}, "max_steps"),
        ({"max_steps": None, "max_epochs": 0.1}, "max_epochs"),
        ({"max_steps": None, "max_minutes": 0.01}, "max_minutes"),
        ({"max_steps": 10**6, "max_minutes": 0.01}, "max_minutes"),
    ],
)
def test_limits(tmp_path, config_of, limits, reason):
    outcome = start_run(config_of(train=limits), tmp_path / "run")
    assert outcome.reason == reason
    assert outcome.elapsed_s < 60


def test_kernels_are_compiled_before_there_is_a_folder_and_a_clock(tmp_path, config_of, monkeypatch):
    from charlm.native import build

    def slow(sources):
        assert not (tmp_path / "run").exists()
        time.sleep(3)
        return dict.fromkeys(sources, build.KernelError("switched off by this test"))

    monkeypatch.setattr(build, "_outcomes", {})
    monkeypatch.setattr(build, "_make", slow)
    assert start_run(config_of(train={"max_steps": None, "max_minutes": 0.04}), tmp_path / "run").step > 0


def test_without_validation(tmp_path, config_of):
    outcome = start_run(config_of(data={"split": [1, 0, 0]}), tmp_path / "run")
    assert outcome.best_nats is None
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").glob("[bl]*")) == ["last.safetensors"]


def test_sources_of_their_own(tmp_path, config_of):
    other = tmp_path / "other.txt"
    other.write_text(words_text(900, seed=5))
    outcome = start_run(config_of(data={"split": [1, 0, 0], "valid_source": str(other)}), tmp_path / "run")
    assert outcome.valid_nats is not None


def test_divergence_names_the_last_good_checkpoint(tmp_path, config_of):
    config = config_of(
        model={"cell": {"kind": "rnn", "nonlinearity": "relu"}},
        train={"max_steps": 500, "save_every": 1},
        optimizer={"name": "sgd", "lr": 10.0},
    )
    run = tmp_path / "run"
    with pytest.raises(DivergenceError, match=rf"^step \d+: found .*; last good checkpoint: {run}/checkpoints/last"):
        start_run(config, run)
    weights = read_checkpoint(run / "checkpoints/last.safetensors").weights
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())


def test_a_validation_score_that_is_not_finite_stops_too(tmp_path, config_of):
    """Weights may overflow the forward pass while every training step was still finite."""
    config = config_of(
        model={"cell": {"kind": "rnn", "nonlinearity": "relu"}},
        train={"max_steps": 500, "eval_every": 1},
        optimizer={"name": "sgd", "lr": 10.0},
    )
    with pytest.raises(DivergenceError, match=r"^step \d+: found .* nats; allowed: finite"):
        start_run(config, tmp_path / "run")
    assert all(math.isfinite(row["nats"]) for row in rows(tmp_path / "run"))


def test_a_log_that_cannot_be_written_costs_nothing(tmp_path, config_of, monkeypatch, capsys):
    """What is missing in the metrics is written once it can be; charts go on."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config_of(), whole)
    write, attempts = Metrics.flush, 0

    def fill(metrics):
        nonlocal attempts
        attempts += 1
        file = metrics._file
        if 2 <= attempts <= 4:
            metrics._file = full
        try:
            write(metrics)
        finally:
            metrics._file = file

    capsys.readouterr()
    with Path("/dev/full").open("wb", buffering=0) as full, monkeypatch.context() as patch:
        patch.setattr(Metrics, "flush", fill)
        start_run(config_of(), parts)
    assert untimed(parts) == untimed(whole)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("log ")]
    assert said == [f"log      {parts}: cannot be written (No space left on device); training goes on"]
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")


def test_charts_that_cannot_be_written_cost_nothing(tmp_path, monkeypatch, capsys):
    """A file takes the place of the charts' folder amid the run: TensorBoard's thread meets a real OSError."""
    monkeypatch.setattr("charlm.training.metrics._RETRY_S", 0.0)
    folder = tmp_path / "run"
    tracker = Tracker(folder_with(folder))
    tracker.record(row_at(1))
    writer = tracker._charts._writers["train"]._get_file_writer().event_writer
    writer.flush()
    with Path("/dev/full").open("wb", buffering=0) as full:
        writer._async_writer._writer._writer = full
        for step in (2, 3, 4):
            tracker.record(row_at(step))
            time.sleep(0.2)
        tracker.close()
    assert [row["step"] for row in rows(folder)] == [1, 2, 3, 4]
    err = capsys.readouterr().err
    assert err.count("cannot be written (No space left on device); training goes on") == 1
    assert "Traceback" not in err
    events = EventAccumulator(str(folder / "train")).Reload().Scalars("score/loss")
    assert {1, 4} <= {event.step for event in events}


def test_a_disk_without_room_for_checkpoints_is_refused_before_training(tmp_path, config_of, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
        with pytest.raises(RunError) as caught:
            start_run(config_of(), run)
    assert re.fullmatch(
        rf"{run}: 1 MB free on its disk; checkpoints need 2\.\d+ MB; free space or take another --run-dir",
        str(caught.value),
    )
    assert not (run / "config.yaml").exists()
    assert start_run(config_of(), run).step == 12


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path):
    """A limit on the size of files makes the second checkpoint fail amid its data."""
    config = tmp_path / "config.yaml"
    (tmp_path / "text.txt").write_text(words_text(4000))
    config.write_text(
        f"data: {{source: {tmp_path}/text.txt}}\nmodel: {{cell: {{hidden: 64}}}}\nthreads: 1\n"
        "train: {batch_size: 4, bptt: 10, max_steps: 6, eval_every: 0, save_every: 3, sample_every: 0}\n"
    )
    program = (
        "import resource, sys; from charlm.checkpoint import save_checkpoint; import charlm.training.loop as run\n"
        "def limited(*arguments):\n"
        "    save_checkpoint(*arguments)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (90_000, 90_000))\n"
        "run.save_checkpoint = limited\n"
        "from charlm.cli import main\n"
        f"sys.argv = ['charlm', 'train', '--config', '{config}', '--run-dir', '{tmp_path}/run']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    last = tmp_path / "run/checkpoints/last.safetensors"
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert line.startswith(f"error: {last}: cannot be written (")
    assert line.endswith("; earlier checkpoints are whole; free space or check permissions")
    assert last.stat().st_size > 90_000
    assert read_checkpoint(last).progress["step"] == 0
    assert [path.name for path in last.parent.iterdir()] == [last.name]


def test_a_second_process_is_refused_and_told_of_the_first(tmp_path, config_of):
    run = tmp_path / "run"
    start_run(config_of(), run)
    before = contents(run)
    with locked(run):
        for again in (lambda: start_run(config_of(), run), lambda: resume_run(run, with_max_steps(20))):
            with pytest.raises(RunError) as caught:
                again()
            assert re.fullmatch(
                rf"{run}: in use by process {os.getpid()} on \S+ since [-\d]+ [:\d]+; allowed: one process at a time; "
                "wait for it or stop it, or take another --run-dir",
                str(caught.value),
            )
    assert contents(run) == before
    assert resume_run(run, with_max_steps(14)).step == 14


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from charlm.system.lock import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"in use by process {process.pid} on "), locked(tmp_path):
            pass
        process.kill()
    with locked(tmp_path):
        pass


def test_rollback_goes_on_from_the_last_checkpoint_with_half_the_rate(tmp_path, config_of, monkeypatch, capsys):
    update = Trainer.update
    trained = []

    def diverge_once(trainer):
        if trainer.state.step == 8 and trainer.state.rollbacks == 0:
            with torch.no_grad():
                trainer.model.decoder.weight[0] = math.nan
        update(trainer)
        trained.append((trainer.state.step, trainer.state.lr))

    monkeypatch.setattr(Trainer, "update", diverge_once)
    run = tmp_path / "run"
    outcome = start_run(config_of(train={"on_divergence": "rollback"}), run)
    assert outcome.step == 12
    assert trained == [(step, 3e-3) for step in range(1, 9)] + [(step, 1.5e-3) for step in range(9, 13)]
    assert "back to step 8, learning rate × 0.5 from now on" in capsys.readouterr().err
    found = rows(run)
    assert [(row["step"], row["split"]) for row in found] == [
        *[(3, "train"), (4, "valid"), (6, "train"), (8, "valid"), (8, "rollback"), (9, "train"), (12, "train")],
        (12, "valid"),
    ]
    assert (found[4]["diverged_step"], found[4]["lr_factor"]) == (8, 0.5)
    assert found[4]["fault"].startswith("step 9: found loss nan")
    checkpoint = read_checkpoint(run / "checkpoints/last.safetensors")
    assert checkpoint.progress["rollbacks"] == 1
    assert all(bool(weight.isfinite().all()) for weight in checkpoint.weights.values())


@pytest.fixture
def diverging_at_8(monkeypatch):
    """No update of step 8's weights is finite before the third rollback."""
    update = Trainer.update

    def diverge(trainer):
        if trainer.state.step == 8 and trainer.state.rollbacks < 3:
            raise DivergenceError("step 9: diverged")
        update(trainer)

    monkeypatch.setattr(Trainer, "update", diverge)


@pytest.mark.usefixtures("diverging_at_8")
def test_rollback_goes_further_back_where_the_run_came_no_further(tmp_path, config_of):
    """Of the discarded stretch no numbered checkpoint is left either."""
    run = tmp_path / "run"
    train = {"on_divergence": "rollback", "save_every": 2, "max_steps": 11}
    assert start_run(config_of(train=train), run).step == 11
    back = [row["step"] for row in rows(run) if row["split"] == "rollback"]
    assert back == [6, 8]  # the first, to step 8, was among the rows that the second discarded
    numbered = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert numbered == [f"step-{step:08}.safetensors" for step in (6, 8, 10)]


@pytest.mark.usefixtures("diverging_at_8")
def test_rollback_without_an_older_checkpoint_says_so(tmp_path, config_of):
    train = {"on_divergence": "rollback", "save_every": 0, "eval_every": 8}
    with pytest.raises(DivergenceError) as caught:
        start_run(config_of(train=train), tmp_path / "run")
    assert "; rolled back 1 times before; there is no checkpoint before step 8; last good" in str(caught.value)


@pytest.mark.usefixtures("diverging_at_8")
def test_rollbacks_have_no_more_chances_than_a_resumption_leaves_them(tmp_path, config_of):
    run = tmp_path / "run"
    train = {"on_divergence": "rollback", "max_rollbacks": 2, "save_every": 2}
    with pytest.raises(DivergenceError, match="rolled back 2 times before; last good"):
        start_run(config_of(train=train), run)
    with pytest.raises(DivergenceError, match="rolled back 2 times before; last good"):
        resume_run(run, lambda _: config_of(train={**train, "max_rollbacks": 1}))


def test_a_rollback_while_the_log_cannot_be_written_costs_nothing(tmp_path, monkeypatch, capsys):
    tracker = Tracker(folder_with(tmp_path / "run"))
    for step in (1, 2):
        tracker.record(row_at(step))

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("charlm.training.metrics.replace_file", fail)
        tracker.rewind(1, 1)
    tracker.record(row_at(3))
    tracker.close()
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3]
    assert "cannot be written (No space left on device); training goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [*lines[:2], b"\xff\xfe\n", *lines[3:]],
        lambda lines: [*lines[:2], lines[2][:20]],
        lambda lines: [*lines[:2], b"[" * 100_000 + b"\n", *lines[3:]],
        lambda lines: [*lines[:2], lines[2].replace(b'"step": 6', b'"step": "x"'), *lines[3:]],
        lambda lines: [*lines[:2], lines[2].replace(b'"step": 6', b'"step": 13'), *lines[3:]],
    ],
    ids=["no text", "torn", "nested", "no step", "a later step"],
)
def test_resume_keeps_what_is_whole_of_a_damaged_log(tmp_path, config_of, damage, capsys):
    run = tmp_path / "run"
    start_run(config_of(), run)
    log = run / "metrics.jsonl"
    before = rows(run)
    log.write_bytes(b"".join(damage(log.read_bytes().splitlines(keepends=True))))
    resume_run(run, with_max_steps(15))
    steps = [(row["step"], row["split"]) for row in rows(run)]
    assert rows(run)[:2] == before[:2]
    assert steps[2:] == [(15, "train"), (15, "valid")]
    assert "found 2 of 7 rows" in capsys.readouterr().err


def test_a_new_run_removes_what_one_that_was_killed_at_once_has_left(tmp_path, config_of):
    leftover = tmp_path / "run/checkpoints/.last.safetensors.0.tmp"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("half")
    start_run(config_of(), tmp_path / "run")
    assert not leftover.exists()


def test_rollback_gives_up(tmp_path, config_of):
    config = config_of(train={"on_divergence": "rollback", "max_rollbacks": 2}, optimizer={"name": "sgd", "lr": 1e30})
    with pytest.raises(DivergenceError) as caught:
        start_run(config, tmp_path / "run")
    last = tmp_path / "run/checkpoints/last.safetensors"
    assert str(caught.value).endswith(f"; rolled back 2 times before; last good checkpoint: {last}")
    assert read_checkpoint(last).progress["rollbacks"] == 2
    assert [row["split"] for row in rows(tmp_path / "run")] == ["rollback", "rollback"]


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path, config_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "now")
    folders = [start_run(config_of(train={"max_steps": 1}), name="test").run_dir for _ in range(3)]
    assert folders == ["runs/test-now", "runs/test-now-2", "runs/test-now-3"]


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_split_smaller_than_a_window_is_refused_at_once(tmp_path, config_of, split):
    shares = [0.998, 0.002, 0] if split == "valid" else [0.898, 0.1, 0.002]
    with pytest.raises(DataError, match=rf"^{split} split: \d characters; 1 stream of 10 steps need at least 11; "):
        start_run(config_of(data={"split": shares}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused(tmp_path, config_of):
    start_run(config_of(), tmp_path / "run")
    with pytest.raises(RunError, match="already holds a run; allowed: --resume"):
        start_run(config_of(), tmp_path / "run")


def test_resume_refuses_another_model_and_another_text(tmp_path, config_of):
    run = tmp_path / "run"
    start_run(config_of(), run)
    with pytest.raises(ConfigError) as caught:
        resume_run(run, lambda saved: config_of(model={"cell": {"kind": "lstm", "hidden": 13}}, train={"bptt": 11}))
    assert [fault.split(";")[0] for fault in caught.value.faults] == [
        "model.cell.hidden: found 13, the run has 12",
        "train.bptt: found 11, the run has 10",
    ]
    (tmp_path / "text.txt").write_text(words_text(3999))
    with pytest.raises(DataError, match="its text has changed since"):
        resume_run(run)


def test_resume_may_change_how_windows_vary(tmp_path, config_of, capsys):
    run = tmp_path / "run"
    start_run(config_of(), run)
    config = config_of(train={"max_steps": 24, "bptt_start": 2, "vary_bptt": 0.3})
    assert resume_run(run, lambda saved: config).step == 24
    changes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("change")]
    assert changes == [
        "change   train.bptt_start: None → 2",
        "change   train.vary_bptt: 0.0 → 0.3",
        "change   train.max_steps: 12 → 24",
    ]
    chars = [row["chars"] for row in rows(run) if row["split"] == "train"]
    assert chars[3] == 12 * 40
    assert chars[-1] < 24 * 40


def test_init_from_keeps_ids_and_grows_the_vocabulary(tmp_path, config_of):
    first = tmp_path / "first"
    start_run(config_of(), first)
    checkpoint = read_checkpoint(first / "checkpoints/last.safetensors")
    other = tmp_path / "other.txt"
    other.write_text(words_text(4000, seed=3).replace("a", "ä").replace("e", "日"))
    with pytest.raises(VocabularyError, match=r"never seen 'ä' \(U\+00E4\), '日' \(U\+65E5\); allowed: its \d+ char"):
        start_run(config_of(data={"source": str(other)}), tmp_path / "refused", checkpoint)
    assert not (tmp_path / "refused").exists()
    grown = config_of(data={"source": str(other), "grow_vocabulary": True}, train={"max_steps": 1})
    start_run(grown, tmp_path / "second", checkpoint)
    result = read_checkpoint(tmp_path / "second/checkpoints/last.safetensors")
    assert result.vocabulary.characters == checkpoint.vocabulary.characters + "ä日"
    old, new = checkpoint.weights["embedding.weight"], result.weights["embedding.weight"]
    assert new.shape[0] == old.shape[0] + 2
    assert (new[: len(old)] - old).abs().max() < 0.05


@pytest.mark.parametrize("embedding", [0, 12])
def test_init_from_starts_where_the_other_ended(tmp_path, config_of, embedding):
    """On the same text and without an update, the new run scores what the old one scored."""
    model = {"embedding": embedding, "tie_embeddings": embedding > 0}
    outcome = start_run(config_of(model=model), tmp_path / "first")
    checkpoint = read_checkpoint(tmp_path / "first/checkpoints/last.safetensors")
    still = config_of(model=model, train={"max_steps": 1}, optimizer={"name": "sgd", "lr": 1e-30})
    again = start_run(still, tmp_path / "second", checkpoint)
    assert again.valid_nats == pytest.approx(outcome.valid_nats, rel=1e-6)


def test_init_from_may_change_what_is_no_part_of_the_weights(tmp_path, config_of):
    start_run(config_of(), tmp_path / "first")
    checkpoint = read_checkpoint(tmp_path / "first/checkpoints/last.safetensors")
    model = {"dropout": 0.1, "zoneout": 0.2, "orthogonal": True, "init_uniform": 0.1}
    still = config_of(model=model, train={"max_steps": 1}, optimizer={"name": "sgd", "lr": 1e-30})
    start_run(still, tmp_path / "second", checkpoint)
    weights = read_checkpoint(tmp_path / "second/checkpoints/last.safetensors").weights
    assert all(torch.equal(weights[name], weight) for name, weight in checkpoint.weights.items())


def test_init_from_another_model_names_every_difference(tmp_path, config_of):
    start_run(config_of(), tmp_path / "first")
    checkpoint = read_checkpoint(tmp_path / "first/checkpoints/last.safetensors")
    with pytest.raises(ConfigError) as caught:
        start_run(config_of(model={"layers": 2, "embedding": 8}), tmp_path / "second", checkpoint)
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["model.layers", "model.embedding"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_as_a_user_sends_them(tmp_path, config_of, number, code):
    from charlm.config import dump_config

    file, run = tmp_path / "c.yaml", tmp_path / "run"
    file.write_text(dump_config(config_of(train={"max_steps": 10**6, "log_every": 1})))
    command = [sys.executable, "-m", "charlm", "train", "--config", str(file), "--run-dir", str(run)]

    def as_in_a_terminal():  # a shell's background jobs have Ctrl-C ignored
        signal.signal(number, signal.SIG_DFL)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, preexec_fn=as_in_a_terminal) as process:
        deadline = time.monotonic() + 60
        while not (run / "metrics.jsonl").exists() or len(rows_so_far(run)) < 3:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    step = read_checkpoint(run / "checkpoints/last.safetensors").progress["step"]
    assert err.splitlines()[-1] == (
        f"stopped  {number.name} at step {step}; go on with: charlm train --resume --run-dir {run}"
    )


def rows_so_far(run: Path):
    return (run / "metrics.jsonl").read_text().splitlines()


def test_a_run_writes_only_into_its_folder_and_the_cache(tmp_path, config_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = {p for p in tmp_path.rglob("*") if "cache" not in str(p)}
    start_run(config_of(), tmp_path / "run")
    new = {p for p in tmp_path.rglob("*") if "cache" not in str(p)} - before
    assert all(p == tmp_path / "run" or tmp_path / "run" in p.parents for p in new)


def test_an_unwritable_run_folder_is_one_line(tmp_path, config_of):
    (tmp_path / "file").write_text("")
    with pytest.raises(CharlmError, match=r"file/run: .*/file is a file; allowed: a folder that can be written"):
        start_run(config_of(), tmp_path / "file" / "run")
