"""What the shell completes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from charlm.cli.completion import complete_config, complete_run
from charlm.config.shipped import shipped_configs


def charlm(*words: str, **variables: str) -> str:
    command = [sys.executable, "-m", "charlm", *words]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_script_for_the_shell_and_what_bash_is_offered():
    assert "_CHARLM_COMPLETE" in charlm("--show-completion", "bash")
    words = "charlm train --config sls"
    assert charlm(_CHARLM_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD="3") == "slstm\n"


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
