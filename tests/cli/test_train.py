"""`charlm train` with a config, `--resume` and `--init-from`: exit code, stdout, stderr."""

import json
import os
import re
import resource
import shutil
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
import torch

from charlm.config import load_config
from charlm.runs import VERSION
from charlm.system.formatting import format_bytes
from charlm.training.step import Trainer
from tests.conftest import TINY
from tests.runs import assert_same_checkpoint, interrupted_after, rows
from tests.text import words_text


def test_train_and_resume(cli, tiny_config, tmp_path):
    run = tmp_path / "run"
    result = cli("train", "--config", tiny_config, "--run-dir", run)
    assert (result.code, result.out, "\r" in result.err) == (0, "", False)
    told = result.err.splitlines()
    assert [line.split()[0] for line in told] == [
        *["data"] * 2, "model", "device", "update", "run", "sample", "valid", "sample", "valid", "sample", "done",
        "sample",
    ]  # fmt: skip
    assert told[4] == (
        "update   adamw, decay 0.01: embedding.weight, weight_ih, weight_hh, decoder.weight; "
        "adamw, no decay: bias_ih, bias_hh, decoder.bias"
    )
    best_nats, best_step = min((row["nats"], row["step"]) for row in rows(run) if row["split"] == "valid")
    best = rf"best {best_nats:.4f} nats \(\d\.\d{{4}} bits\) per character at update {best_step}"
    assert re.fullmatch(rf"done     max_steps at update 6, \d+\.\d s; {best}", told[-2])
    assert told[-1] == f"sample   charlm sample {run}"
    resumed = cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=9", "--json")
    assert f"resume   {run}/checkpoints/last.safetensors, update 6\n" in resumed.err
    outcome = json.loads(resumed.out)
    assert (outcome["run_dir"], outcome["step"], outcome["chars"]) == (str(run), 9, 9 * 4 * 8)
    assert [row["step"] for row in rows(run) if row["split"] == "valid"] == [3, 6, 9]
    assert load_config(run / "config.yaml").train.max_steps == 9


def test_the_same_command_starts_a_run_and_continues_it(cli, tiny_config, trained_run, tmp_path):
    """A folder with the user's own config alone holds no run, and the file is kept."""
    run, own = tmp_path / "run", tiny_config.read_text() + "# mine"
    run.mkdir()
    (run / "config.yaml").write_text(own)
    command = ["train", "--resume", "--config", run / "config.yaml", "--run-dir", run]
    with interrupted_after(4):
        assert cli(*command).code == 130
    assert (run / "own-config.yaml").read_text() == own
    assert f"resume   {run}/checkpoints/last.safetensors, update 4\n" in cli(*command).err
    assert_same_checkpoint(*(each / "checkpoints/last.safetensors" for each in (trained_run, run)))
    again = cli(*command, "--minutes", 0.0001)
    assert again.code == 0
    assert "limit    train.max_minutes=0.0001 is already reached; to train on, raise it: --minutes …\n" in again.err
    (run / "config.yaml").write_text("other")
    shutil.rmtree(run / "checkpoints")
    assert cli("train", "--config", tiny_config, "--run-dir", run).error.startswith(f"{run}/metrics.jsonl: exists")
    (run / "metrics.jsonl").unlink()
    (run / "samples.jsonl").unlink()
    assert cli("train", "--config", tiny_config, "--run-dir", run).error.startswith(f"{run}/own-config.yaml: exists")
    assert (run / "own-config.yaml").read_text() == own


@pytest.mark.usefixtures("quick")
def test_a_text_and_a_folder_start_a_run_or_continue_it(cli, text_file, write, tmp_path):
    command = ["--minutes", 0.01, "--set", "train.max_steps=3", "--run-dir", tmp_path / "run"]
    results = [cli("train", text_file, *command, "--resume") for _ in range(2)]
    assert [(result.code, result.out != "", "resume  " in result.err) for result in results] == [
        (0, True, False),
        (0, True, True),
    ]
    assert "the text has changed" in cli("train", write("other.txt", "text"), *command, "--resume").error
    # Before anything is measured.
    assert cli("train", text_file, *command).err.startswith(f"error: {tmp_path}/run: already holds a run; ")


def test_a_best_checkpoint_that_is_removed_is_missed_and_comes_again(cli, copied_run):
    best = copied_run / "checkpoints/best.safetensors"
    best.unlink()
    sample = ["sample", copied_run, "--seed", 1, "--length", 5]
    assert cli(*sample).err == f"note     {best} is gone; the weights are those of update 6, in last.safetensors\n"
    resumed = cli("train", "--resume", "--run-dir", copied_run).err
    assert f"best     {best} is gone or damaged; its score does not count any more\n" in resumed
    assert re.search(r"^done     max_steps at update 6, .* at update 6$", resumed, re.MULTILINE)
    assert cli(*sample).err == ""


def test_a_run_ends_within_its_minutes(cli, tiny_config, tmp_path):
    """A resumed run continues those that it had. test_loop has the exact times, as a busy machine may be late."""
    seldom = ["--set", "train.eval_every=1000", "--set", "train.log_every=1000", "--set", "train.sample_every=0"]
    words = ["--run-dir", tmp_path / "run", *seldom, "--json", "--minutes"]
    begun_s = time.perf_counter()
    first = json.loads(cli("train", "--config", tiny_config, *words, 0.01).out)
    between_s = time.perf_counter()
    assert first["reason"] == "max_minutes"
    assert 0.1 < first["elapsed_s"] < between_s - begun_s
    resumed = json.loads(cli("train", "--resume", *words, 0.04).out)
    assert resumed["reason"] == "max_minutes"
    assert 0 < resumed["elapsed_s"] - first["elapsed_s"] < time.perf_counter() - between_s
    assert resumed["step"] > first["step"] > 6


def test_a_text_from_a_pipe_is_kept_with_its_run(cli, tiny_config, text_file, tmp_path):
    """So the run resumes, and is scored. A folder with a text or run is left alone, and a wrong text leaves none."""
    run, text = tmp_path / "run", text_file.read_bytes()
    words = ["train", "-", "--config", tiny_config, "--run-dir", run]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[text])
    writer.start()
    result = cli("train", pipe, *words[2:])
    writer.join()
    assert result.err.startswith(f"data     reading {pipe} into {run}/text.txt\n")
    assert (run / "text.txt").read_bytes() == text
    assert cli(*words, stdin=b"other").error.startswith(f"{run}: already holds a run; ")
    moved = run.rename(tmp_path / "moved")
    assert cli("train", "--resume", "--run-dir", moved, "--set", "train.max_steps=8").code == 0
    assert cli("eval", moved).code == 0
    short = cli("train", "-", "--minutes", 0.01, "--run-dir", run, stdin=b"short")
    assert f"error: {run}/text.txt: found 5 characters; allowed: 500 or more" in short.err
    assert not run.exists()
    run.mkdir()
    (run / "text.txt").write_bytes(b"my own")
    assert cli(*words, stdin=b"other").error.startswith(f"{run}/text.txt: exists already; ")
    assert (run / "text.txt").read_bytes() == b"my own"


def test_a_validation_score_that_rises_is_said(cli, tiny_config, write, tmp_path):
    text = write("other: text.txt", "ab" * 400 + "cd" * 400)
    settings = ["--set", "data.split=[0.5,0.5,0]", "--set", "train.max_steps=30", "--set", "optimizer.lr=0.05"]
    result = cli("train", text, "--config", tiny_config, "--run-dir", tmp_path / "run", *settings)
    rose = r"^best     after update \d+ the validation score rose to \d+\.\d+ nats, perhaps by "
    assert re.search(rf"{rose}overfitting; ", result.err, re.MULTILINE)
    harmful = ["--set", "optimizer.lr=10", "--set", "train.eval_every=1"]  # in less than a pass
    result = cli("train", "--config", tiny_config, "--run-dir", tmp_path / "other", *harmful)
    assert re.search(f"{rose}chance, or because optimizer.lr is too high; ", result.err, re.MULTILINE)


def test_run_dir_by_default_has_the_config_s_name_and_the_time(cli, tiny_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "20260102-030405")
    words = ["--set", "seed=5", "--set", "device=auto", "--set", "train.max_steps=1", "--device", "cpu"]
    for name in ("tiny-20260102-030405", "tiny-20260102-030405-2"):
        result = cli("train", "--config", tiny_config, *words, "--json")
        assert json.loads(result.out)["run_dir"] == f"runs/{name}"
        config = load_config(tmp_path / "runs" / name / "config.yaml")
        assert (config.seed, config.device, config.train.max_steps) == (5, "cpu", 1)


def test_resume_with_other_options(cli, copied_run, tiny_config):
    resume = ["train", "--resume", "--run-dir", copied_run]
    refused = cli(*resume, "--set", "model.cell.kind=gru", "--set", "train.bptt=9", "--set", "train.max_steps=9")
    assert refused.code == 1
    assert refused.err == (
        "error: model.cell.kind: found 'gru', the run has 'lstm'; allowed on --resume: the same; start a new run\n"
        "error: train.bptt: found 9, the run has 8; allowed on --resume: the same; start a new run\n"
    )
    result = cli(*resume, "--config", tiny_config, "--set", "optimizer.schedule.name=cosine", "--minutes", 0.01)
    changes = re.findall(r"^change   (\S+):", result.err, re.MULTILINE)
    assert changes[:3] == ["data.source", "train.max_steps", "train.max_minutes"]
    assert changes[3:] == ["optimizer.schedule.name", "optimizer.schedule.final_fraction"]
    assert "done     max_minutes at update " in result.err


def test_resume_from_a_damaged_checkpoint(cli, copied_run):
    """The newest whole one takes its place, but not that of another version; with none left, one line."""
    last = copied_run / "checkpoints" / "last.safetensors"
    best, content = last.with_name("best.safetensors"), last.read_bytes()
    resume = ["train", "--resume", "--run-dir", copied_run]
    last.unlink()  # the same file under another name
    last.write_bytes(content.replace(f'"version":"{VERSION}"'.encode(), b'"version":"1"'))
    assert cli(*resume).error.startswith(f"{last}: found format version 1, of charlm ")
    last.write_bytes(content[:-1])
    assert cli(*resume, "--set", "train.bptt=9").code == 1
    assert last.read_bytes() == content[:-1]  # what is refused removes nothing
    result = cli(*resume, "--set", "train.max_steps=8")
    assert f"damaged  {last}: damaged, or not a checkpoint (" in result.err
    assert f"resume   {best}, update 6\n" in result.err
    for path in last.parent.iterdir():
        path.write_bytes(b"")
    assert cli(*resume).error.endswith(f"; no other checkpoint in {last.parent} is whole")


@pytest.mark.usefixtures("quick")
def test_a_text_alone_takes_the_model_of_the_run(cli, trained_run, tmp_path, write):
    more, run = write("more.txt", words_text(8000, seed=3)), tmp_path / "run"
    words = ["train", more, "--init-from", trained_run, "--minutes", 0.01]
    result = cli(*words, "--run-dir", run, "--set", "train.bptt=16", "--json")
    assert json.loads(result.out)["step"] > 0
    assert "lstm, 1 × 16 units, 2,014 parameters: the model of the run that it starts from\n" in result.err
    old, new = (load_config(each / "config.yaml") for each in (trained_run, run))
    assert new.model.model_copy(update={"dropout": old.model.dropout}) == old.model
    assert (new.data.source, new.train.bptt, new.train.max_minutes) == (more, 16, 0.01)
    other = cli(*words, "--set", "model.cell.hidden=32").error
    assert other == "model.cell.hidden: found 32; the checkpoint of --init-from has 16; allowed: the same"


def test_what_runs_without_a_kernel_is_said(cli, trained_run, no_kernels):
    line = "layers   lstm: fused torch layer (oneDNN); no fused CPU kernel: switched off by CHARLM_KERNELS\n"
    assert cli("sample", trained_run, "--seed", 1, "--length", 5).err == line


LOWER = "lower model.cell.hidden, train.batch_size or train.bptt"
REFUSED = [
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory", LOWER),
    (ImportError("libc10.so: failed to map segment"), "memory: too little to load a library", "free some"),
    (
        RuntimeError("can't start new thread"),
        "processes: the system starts no further thread or process; allowed: dozens for each core",
        "raise the limit (`ulimit -u`, or pids.max of the control group)",
    ),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "out of memory", LOWER),
]


@pytest.mark.parametrize(("fault", "found", "advice"), REFUSED)
def test_memory_that_runs_out_is_one_line(cli, tiny_config, monkeypatch, limited_address_space, fault, found, advice):
    monkeypatch.setattr(Trainer, "update", mock.Mock(side_effect=fault))
    words = ["plan", "--config", tiny_config]
    assert cli(*words).error == f"{found}; {advice}"
    limit = format_bytes(limited_address_space())
    if not isinstance(fault, torch.OutOfMemoryError):  # of a GPU
        advice = f"raise the limit of {limit} of address space (`ulimit -v`), or {advice}"
    assert cli(*words).error == f"{found}; {advice}"


@pytest.fixture
def limited_address_space():
    """Lets this process map 2 GB more, until the test ends; returns its limit."""
    before = resource.getrlimit(resource.RLIMIT_AS)

    def limit():
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + 2 * 10**9, before[1]))
        return mapped + 2 * 10**9

    yield limit
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("source", ["./texts/my.txt", "texts/*.txt"])
def test_from_another_folder_and_after_a_move_of_the_text(cli, tmp_path, monkeypatch, write, source):
    folder, run = tmp_path / "project [1]", tmp_path / "project [1]/runs/mine"  # a name that looks like a pattern
    text = Path(write("project [1]/texts/my.txt", words_text(20_000)))
    (tmp_path / "elsewhere").mkdir()
    resume = ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=7"]

    def score():
        return json.loads(cli("eval", run, "--json").out)["nats_per_char"]

    monkeypatch.chdir(folder)
    Path("tiny.yaml").write_text(TINY.format(source=json.dumps(source)))
    assert f"data     {source}: 20 kB in 1 file" in cli("train", "--config", "tiny.yaml", "--run-dir", "runs/mine").err
    expected = score()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert score() == expected
    assert cli(*resume).code == 0
    expected = score()
    text.parent.rename(tmp_path / "moved")
    moved = f"{tmp_path}/moved/{Path(source).name}"
    assert "change   data.source: " in cli(*resume, "--set", f"data.source={moved}").err
    assert load_config(run / "config.yaml").data.source == moved
    assert score() == expected
