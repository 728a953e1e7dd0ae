"""What the shell completes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from charlm.cli.completion import complete_config, complete_run
from charlm.config.shipped import shipped_configs


def charlm(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "charlm", *words]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)


def completed(words: str) -> list[str]:
    """What bash is offered for the last of these words."""
    position = str(len(words.split()) - 1)
    done = charlm(_CHARLM_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=position)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_the_script_for_the_shell():
    done = charlm("--show-completion", "bash")
    assert (done.returncode, done.stderr) == (0, "")
    assert "complete" in done.stdout
    assert "_CHARLM_COMPLETE" in done.stdout


def test_a_config_by_its_name():
    assert completed("charlm train --config sls") == ["slstm"]


def test_a_command():
    assert completed("charlm doc") == ["doctor"]


def test_configs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for name in ("lstm-mine.yaml", "lstm.txt", ".lstm.yaml", "mine/a.yml"):
        (tmp_path / name).touch()
    assert complete_config("lstm") == ["lstm", "lstm-mine.yaml"]
    assert complete_config("mine") == ["mine/a.yml"]
    assert complete_config("mine/") == ["mine/a.yml"]
    assert set(shipped_configs()) < set(complete_config(""))


def test_runs(trained_run: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_run, tmp_path / "runs" / "Öl 1")
    (tmp_path / "runs" / "notes").mkdir()
    for incomplete in ("", "ru", "runs/", "runs/Ö"):
        assert complete_run(incomplete) == ["runs/Öl 1"], incomplete
    assert "runs/Öl 1/checkpoints/last.safetensors" in complete_run("runs/Öl 1/")
    assert complete_run("runs/Öl 1/checkpoints/l") == ["runs/Öl 1/checkpoints/last.safetensors"]
    for nothing in ("no", "no/such", "/proc/1/root/", "\0"):
        assert complete_run(nothing) == []
