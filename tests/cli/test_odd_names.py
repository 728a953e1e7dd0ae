"""Names and texts full of control characters or without an encoding: every command works, and nothing comes out raw."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from charlm.config import load_config
from charlm.runs import BEST, CONFIG, FOLDER, LAST, METRICS, SAMPLES, describe_run
from charlm.system.lock import LOCK
from tests.browser import data_of
from tests.stress.fuzz import COMMANDS
from tests.text import BYTE, ESC, RTL


def test_characters_that_a_terminal_obeys(cli, tmp_path):
    folder = tmp_path / f"a{ESC}{RTL}\u2028\n"
    folder.mkdir()
    text, config, run = folder / f"text{folder.name}.txt", folder / "c.yaml", folder / "run"
    text.write_text(f"so{ESC}{RTL}\x9b\u2028\0 \x07" * 300, encoding="utf-8")
    config.write_text(f"data: {{source: {json.dumps(str(text))}}}", encoding="utf-8")
    settings = ["model.cell.hidden=4", "train.max_steps=2", "train.batch_size=2", "train.sample_every=1", "threads=1"]
    overrides = [word for setting in settings for word in ("--set", setting)]
    for command in (
        ["train", "--config", config, "--run-dir", run, *overrides],
        ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=3", "--json"],
        ["eval", run],
        ["eval", run, "--file", text, "--json"],
        ["plan", "--config", config, *overrides],
        ["data", "info", text],
        ["runs", folder],
        ["config", "show", config],
    ):
        result = cli(*command)
        assert result.code == 0, result
        assert not COMMANDS.search(result.out + result.err), command
    (tmp_path / "shown.yaml").write_text(result.out, encoding="utf-8")
    assert load_config(tmp_path / "shown.yaml") == load_config(config)
    samples = cli("sample", run, "--json", "--novelty", "--prompt", f"{ESC}{RTL}")
    assert not COMMANDS.search(samples.out + samples.err)
    assert json.loads(samples.out)["samples"][0]["prompt"] == f"{ESC}{RTL}"


def test_a_run_in_a_folder_whose_name_is_not_utf8(cli, copied_run, tmp_path):
    run = copied_run.rename(tmp_path / f"r{BYTE}n")
    for words in (
        ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=8", "--json"],
        ["runs", run], ["runs", tmp_path, "--json"], ["report", run, "--out", run / "page.html"],
        ["sample", run, "--length", "5"], ["sample", run, "--length", "5", "--json"], ["eval", run, "--json"],
        ["look", run, "--out", run / "look.html"], ["export", run, "--to", "html", "--out", run / "model.html"],
    ):  # fmt: skip
        result = cli(*words)
        assert result.code == 0, (words, result.err)
        if "--json" in words:
            assert "r\\udcffn" in result.out
            json.loads(result.out)
    assert describe_run(run).step == 8


def no_end(path):
    path.symlink_to("/dev/zero")


def huge(path):
    with path.open("wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, no_end, huge])
def test_files_of_a_run_that_have_no_end_or_wait_for_ever(cli, trained_run, tmp_path, make):
    """One bad run hides no other, and each file that cannot be read has a line."""
    folder, bad = tmp_path / "runs", tmp_path / "runs/bad"
    shutil.copytree(trained_run, folder / "good")
    shutil.copytree(trained_run, bad)
    names = (CONFIG, METRICS, SAMPLES, f"{FOLDER}/{BEST}", f"{FOLDER}/{LAST}")
    for name in names:
        (bad / name).unlink()
        make(bad / name)
    (bad / LOCK).unlink()
    make(bad / LOCK)
    listed = json.loads(cli("runs", folder, "--json").out)
    assert [run["state"] for run in listed if run["step"]] == ["finished"]
    result = cli("report", folder, "--out", tmp_path / "page.html")
    assert (result.code, {Path(run["name"]).name for run in data_of((tmp_path / "page.html").read_text())["runs"]}) == (
        0, {"good", "bad"}
    )  # fmt: skip
    notes = [line.removeprefix(f"note     {bad}: ").split(" ")[0] for line in result.err.splitlines()[:-1]]
    assert notes == [f"{FOLDER}:", METRICS, CONFIG, SAMPLES]
    assert cli("sample", bad).error.startswith(f"{bad}")
    assert cli("train", "--resume", "--run-dir", bad).error.startswith(f"{bad}/")
    assert cli("plan", "--config", bad / CONFIG).error.startswith(f"{bad / CONFIG}: found ")


def test_folders_in_folders_without_end(cli, trained_run, tmp_path, monkeypatch):
    shutil.copytree(trained_run, tmp_path / "runs/run")
    monkeypatch.chdir(tmp_path / "runs")
    for _ in range(1500):
        os.mkdir("d")  # noqa: PTH102 (the path is longer than a system call takes)
        os.chdir("d")
    monkeypatch.chdir(tmp_path)
    for command in ("runs", "report"):
        assert cli(command, "runs").code == 0
    assert cli("data", "info", "runs").error.startswith("runs: folders in folders, hundreds deep; allowed: ")
    subprocess.run(["rm", "-r", "runs"], check=True)  # shutil.rmtree and pytest are no better


@pytest.mark.parametrize("lock", ["/dev/zero", "pipe"])
def test_a_run_whose_files_are_pipes_and_broken_links(cli, tmp_path, lock):
    run = tmp_path / "new\nline\x1b[2J"
    (run / FOLDER).mkdir(parents=True)
    (run / "config.yaml").touch()
    os.mkfifo(run / FOLDER / LAST)  # reading it would wait for ever
    (run / FOLDER / BEST).symlink_to("nowhere.safetensors")
    os.mkfifo(run / LOCK) if lock == "pipe" else (run / LOCK).symlink_to(lock)
    result = cli("runs", tmp_path)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[1].startswith(f"{tmp_path}/new\\nline\\x1b[2J  ")
    assert result.out.endswith("damaged\n")
