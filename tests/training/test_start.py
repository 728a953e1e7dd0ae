"""What a new run checks and writes before its first step."""

import re
import shutil
import time

import pytest

from charlm.errors import CharlmError, DataError, RunError
from charlm.training.start import start_run


def test_kernels_are_compiled_before_there_is_a_folder_and_a_clock(tmp_path, config_of, monkeypatch):
    from charlm.native import build

    def slow(sources):
        assert not (tmp_path / "run").exists()
        time.sleep(0.4)
        return dict.fromkeys(sources, build.KernelError("switched off by this test"))

    monkeypatch.setattr(build, "_outcomes", {})
    monkeypatch.setattr(build, "_make", slow)
    assert start_run(config_of(train={"max_steps": None, "max_minutes": 0.005}), tmp_path / "run").step > 0


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
