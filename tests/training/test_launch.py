"""Which run torchrun's processes find when they are started again."""

import pytest

from charlm.training.launch import LAUNCH, note_launch, run_of_this_launch


@pytest.fixture
def launched(monkeypatch):
    def launch(name, restarts=0, parent=10, host="a"):
        monkeypatch.setattr("os.getppid", lambda: parent)
        monkeypatch.setattr("socket.gethostname", lambda: host)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        if name is None:
            monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
        else:
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", name)

    return launch


@pytest.mark.parametrize(
    ("again", "found"),
    [
        ({"name": "job"}, True),
        ({"name": "job", "restarts": 1}, True),
        ({"name": "job", "parent": 11}, False),
        ({"name": "other", "restarts": 1, "parent": 11}, False),
        ({"name": "job", "restarts": 1, "parent": 11, "host": "b"}, True),
        ({"name": None}, False),
    ],
)
def test_the_run_of_the_same_launch_is_found(tmp_path, monkeypatch, launched, again, found):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a", "runs/b", "c"):
        (tmp_path / name).mkdir(parents=True)
    launched("before", parent=9)
    note_launch(tmp_path / "runs/a")
    launched("job")
    note_launch(tmp_path / "runs/b")
    note_launch(tmp_path / "c")
    launched(**again)
    assert str(run_of_this_launch(None)) == ("runs/b" if found else "None")
    assert run_of_this_launch(tmp_path / "c") == (tmp_path / "c" if found else None)
    assert run_of_this_launch(tmp_path / "runs/a") is None
    assert run_of_this_launch(tmp_path / "new") is None


def test_launches_without_a_name_are_told_apart_by_their_process_alone(tmp_path, launched):
    launched("none")
    note_launch(tmp_path)
    assert run_of_this_launch(tmp_path) == tmp_path
    launched("none", restarts=1, parent=11)
    assert run_of_this_launch(tmp_path) is None


def test_without_torchrun_nothing_is_noted(tmp_path, launched):
    launched(None)
    note_launch(tmp_path)
    assert not (tmp_path / LAUNCH).exists()


def test_a_note_that_cannot_be_read_is_none(tmp_path, launched):
    launched("job")
    (tmp_path / LAUNCH).write_bytes(b"\xff\x00")
    assert run_of_this_launch(tmp_path) is None
