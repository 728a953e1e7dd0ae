"""Names and texts full of control characters or without an encoding: every command works, and nothing comes out raw."""

import json
import os
import shutil
from pathlib import Path

import pytest

from charlm.config import load_config
from charlm.runs import BEST, CONFIG, FOLDER, LAST, METRICS, SAMPLES
from charlm.system.lock import LOCK
from tests.browser import data_of
from tests.stress.fuzz import COMMANDS
from tests.text import BYTE, ESC, RTL


def test_characters_that_a_terminal_obeys(cli, tmp_path):
    folder = tmp_path / f"a{ESC}{RTL}\u2028\n"
    folder.mkdir()
    text, config, run = folder / f"text{folder.name}.txt", folder / "c.yaml", folder / "run"
    text.write_text(f"so{ESC}{RTL}\x9b\u2028\0 \x07" * 300, encoding="utf-8")
    options = "model: {cell: {hidden: 4}}\ntrain: {max_steps: 2, batch_size: 2, sample_every: 1}\nthreads: 1\n"
    config.write_text(f"data: {{source: {json.dumps(str(text))}}}\n{options}", encoding="utf-8")
    for command in (
        ["train", "--config", config, "--run-dir", run],
        ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=3", "--json"],
        ["eval", run, "--file", text],
        ["sample", run, "--json", "--novelty", "--prompt", f"{ESC}{RTL}"],
        ["data", "info", text],
        ["runs", folder],
        ["config", "show", config],
    ):
        result = cli(*command)
        assert result.code == 0, result
        assert not COMMANDS.search(result.out + result.err), command
    (tmp_path / "shown.yaml").write_text(result.out, encoding="utf-8")
    assert load_config(tmp_path / "shown.yaml") == load_config(config)


def test_a_run_in_a_folder_whose_name_is_not_utf8(cli, copied_run, tmp_path):
    run = copied_run.rename(tmp_path / f"r{BYTE}n")
    for words in (
        ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=8", "--json"],
        ["runs", tmp_path, "--json"],
        ["runs", run],
        ["report", run, "--out", run / "page.html"],
        ["sample", run, "--length", "5", "--json"],
        ["eval", run, "--json"],
        ["look", run, "--out", run / "look.html"],
        ["export", run, "--to", "html", "--out", run / "model.html"],
    ):
        result = cli(*words)
        assert result.code == 0, (words, result.err)
        if "--json" in words:
            assert "r\\udcffn" in result.out
            json.loads(result.out)


def endless(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, endless])
def test_files_of_a_run_that_have_no_end_or_wait_for_ever(cli, trained_run, tmp_path, make):
    """One bad run hides no other, and each file that cannot be read has a line."""
    folder, bad = tmp_path / "runs", tmp_path / "runs/bad"
    shutil.copytree(trained_run, folder / "good")
    shutil.copytree(trained_run, bad)
    for name in (CONFIG, METRICS, SAMPLES, f"{FOLDER}/{BEST}", f"{FOLDER}/{LAST}", LOCK):
        (bad / name).unlink()
        make(bad / name)
    listed = json.loads(cli("runs", folder, "--json").out)
    assert [run["state"] for run in listed if run["step"]] == ["finished"]
    result = cli("report", folder, "--out", tmp_path / "page.html")
    assert result.code == 0
    names = {Path(run["name"]).name for run in data_of((tmp_path / "page.html").read_text())["runs"]}
    assert names == {"good", "bad"}
    notes = [line.removeprefix(f"note     {bad}: ").split(" ")[0] for line in result.err.splitlines()[:-1]]
    assert notes == [f"{FOLDER}:", METRICS, CONFIG, SAMPLES]
    assert cli("sample", bad).error.startswith(f"{bad}")
    assert cli("train", "--resume", "--run-dir", bad).error.startswith(f"{bad}/")
    assert cli("plan", "--config", bad / CONFIG).error.startswith(f"{bad / CONFIG}: found ")
