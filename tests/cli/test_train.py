"""`charlm train`: exit code, stdout, stderr; every mistake in one line."""

import json
import re
from pathlib import Path

import pytest
import torch

from charlm.config import load_config
from charlm.training.step import Trainer


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_what_runs_without_a_kernel_is_said(cli, trained_run, no_kernels):
    line = "layers   lstm: fused torch layer (oneDNN); no fused CPU kernel: switched off by this test"
    sampled = cli("sample", trained_run, "--seed", 1, "--length", 5)
    assert (sampled.code, sampled.err.splitlines()) == (0, [line])
    scored = cli("eval", trained_run)
    assert (scored.code, scored.err.splitlines()[-1]) == (0, line)


def test_train_sample_eval_resume(cli, tiny_config, tmp_path):
    run = tmp_path / "run"
    result = cli("train", "--config", tiny_config, "--run-dir", run)
    assert (result.code, result.out) == (0, "")
    assert "\r" not in result.err
    assert "%|" not in result.err
    told = result.err.splitlines()
    assert [line.split()[0] for line in told] == [
        *["data"] * 3, "model", "device", "run", "valid", "sample", "valid", "sample", "done", "sample",
    ]  # fmt: skip
    done = r"done     max_steps at step 6, \d+\.\d s; best \d\.\d{4} nats \(\d\.\d{4} bits\) per character at step [36]"
    assert re.fullmatch(done, told[-2])
    assert told[-1] == f"sample   charlm sample {run}"

    written = cli("sample", run, "--prompt", "a", "--length", 30, "--seed", 1)
    assert (written.code, written.err) == (0, "")
    assert re.fullmatch(r"a[a-z .\n]{30}\n", written.out)

    scored = cli("eval", run, "--json")
    assert (scored.code, scored.err) == (0, "")
    rows = lines(run / "metrics.jsonl")
    best = min((row["nats"], row["step"]) for row in rows if row["split"] == "valid")
    assert (json.loads(scored.out)["nats_per_char"], json.loads(scored.out)["step"]) == (
        pytest.approx(best[0]),
        best[1],
    )

    resumed = cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=9", "--json")
    assert resumed.code == 0
    assert "change   train.max_steps: 6 → 9\n" in resumed.err
    assert f"resume   {run}/checkpoints/last.safetensors, step 6\n" in resumed.err
    outcome = json.loads(resumed.out)
    assert (outcome["step"], outcome["reason"], outcome["chars"]) == (9, "max_steps", 9 * 4 * 8)
    assert [row["step"] for row in lines(run / "metrics.jsonl") if row["split"] == "valid"] == [3, 6, 9]

    config = (run / "config.yaml").read_text()
    assert "max_steps: 9" in config


def test_json(cli, tiny_config, tmp_path):
    result = cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run", "--json")
    assert result.code == 0
    assert result.out.count("\n") == 1
    outcome = json.loads(result.out)
    assert list(outcome) == [
        "run_dir", "reason", "step", "chars", "elapsed_s", "valid_nats", "best_nats", "best_step", "parameters",
        "best_nats_per_line",
    ]  # fmt: skip
    assert outcome["run_dir"] == str(tmp_path / "run")
    assert outcome["best_nats"] <= outcome["valid_nats"]


def test_run_dir_by_default_has_the_config_s_name_and_the_time(cli, tiny_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "20260102-030405")
    for name in ("tiny-20260102-030405", "tiny-20260102-030405-2"):
        result = cli("train", "--config", tiny_config, "--set", "train.max_steps=1", "--json")
        assert json.loads(result.out)["run_dir"] == f"runs/{name}"
        assert (tmp_path / "runs" / name / "checkpoints" / "last.safetensors").is_file()


def test_set_and_device_are_written_down(cli, tiny_config, tmp_path):
    run = tmp_path / "run"
    words = ["--set", "seed=5", "--set", "device=auto", "--set", "train.max_steps=1", "--device", "cpu"]
    assert cli("train", "--config", tiny_config, "--run-dir", run, *words).code == 0
    config = load_config(run / "config.yaml")
    assert (config.seed, config.device, config.train.max_steps) == (5, "cpu", 1)


def test_memory_that_runs_out_all_the_same(cli, tiny_config, monkeypatch):
    monkeypatch.setattr("charlm.training.machine.available_bytes", lambda _: None)
    assert cli("plan", "--config", tiny_config, "--set", "model.cell.hidden=400000").error == (
        "out of memory: 2560000000000 bytes more were needed; lower model.cell.hidden, train.batch_size or train.bptt"
    )


def test_memory_of_a_gpu_that_runs_out(cli, tiny_config, monkeypatch):
    def update(trainer):
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.10 GiB "
            "is free. Including non-PyTorch memory, this process has 78.05 GiB memory in use."
        )

    monkeypatch.setattr(Trainer, "update", update)
    assert cli("plan", "--config", tiny_config).error == (
        "out of memory: 2.00 GiB more were needed, 1.10 GiB are free; "
        "lower model.cell.hidden, train.batch_size or train.bptt"
    )


def test_no_thread_is_one_line_and_leaves_no_folder(cli, tiny_config, tmp_path, monkeypatch):
    def refused(*_, **options):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("charlm.training.metrics.Charts", refused)
    assert cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run").err.splitlines()[-1] == (
        "error: can't start new thread; allowed: as many as the system's limit (`ulimit -u`); end other processes, or "
        "raise it"
    )
    assert not (tmp_path / "run").exists()


def test_a_library_that_lacks_memory_is_one_line(cli, trained_run, monkeypatch):
    error = ImportError("libtorch.so: failed to map segment from shared object")

    def refused(*_, **options):
        raise error

    monkeypatch.setattr("charlm.inference.load", refused)
    assert cli("sample", trained_run).error == (
        f"out of memory: a library cannot be loaded ({error}); free some, or raise the limit (`ulimit -v`)"
    )
