"""The folder of a study: its journal, and what else may be in it."""

import contextlib
from unittest import mock

import pytest

from charlm.errors import StudyError
from charlm.tuning.report import draw
from charlm.tuning.study import Study
from tests.tuning.test_search import no_settings


def test_a_last_line_that_was_cut_short_is_dropped(study_of, search, tmp_path):
    study = study_of()
    journal = tmp_path / "study/journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":4,"worker')
    again = Study(tmp_path / "study", no_settings)
    assert journal.read_bytes().startswith(whole + b'{"op_code":0,')
    assert again.settings == study.settings
    assert search(again, 1) == ""
    assert [trial.state for trial in study.trials()] == ["complete"]


@pytest.mark.parametrize(
    "change",
    [
        lambda journal: b"notes of mine",
        lambda journal: journal + b"[" * 100_000 + b"\n",
        lambda journal: journal + b'{"op_code":77}\n',
        lambda journal: journal.replace(b'"space":{', b'"spaces":{'),
    ],
)
def test_a_damaged_journal_stays_as_it_is(study_of, tmp_path, change):
    study_of()
    journal = tmp_path / "study/journal.log"
    damaged = change(journal.read_bytes())
    journal.write_bytes(damaged)
    with pytest.raises(
        StudyError, match=r"journal\.log: damaged; allowed: the journal of a study; take another --study$"
    ):
        Study(tmp_path / "study", no_settings)
    assert journal.read_bytes().startswith(damaged)


@pytest.mark.parametrize("name", ["journal.log", ".lock", "trial-0001", "trial-0001/.tune", "best.yaml", "trials.png"])
def test_a_study_from_somebody_else_writes_nothing_outside(study_of, search, tmp_path, name):
    study_of(train={"max_steps": 2})
    planted, target = tmp_path / "study" / name, tmp_path / "target"
    if name == "trial-0001":
        target.mkdir()
    else:
        planted.parent.mkdir(exist_ok=True)
        target.write_bytes(planted.read_bytes() if planted.exists() else b"mine")
        planted.unlink(missing_ok=True)
    before = target.is_file() and target.read_bytes()
    planted.symlink_to(target)
    is_replaced = name in ("best.yaml", "trials.png")
    fault = rf"^{planted}: found a link, .*; remove the link$"
    with contextlib.nullcontext() if is_replaced else pytest.raises(StudyError, match=fault):
        again = Study(tmp_path / "study", no_settings)
        search(again, 1)
        draw(again)
    assert planted.is_symlink() != is_replaced
    assert (target.read_bytes() == before) if before else not [*target.iterdir()]


def test_a_study_killed_while_it_was_made_is_made_again(study_of):
    with mock.patch("optuna.Study.set_user_attr", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        study_of()
    study = study_of()
    assert len(study._study.get_trials()) == 1
    assert study.settings.space["optimizer.lr"]


def test_a_study_of_an_older_version_stays_as_it_is(study_of, search, tmp_path):
    search(study_of(), 1)
    journal = tmp_path / "study/journal.log"
    journal.write_bytes(journal.read_bytes().replace(b'"settings 2"', b'"settings"'))
    fault = r"study: found a study of another version of charlm; allowed: one of this version; take another folder$"
    with pytest.raises(StudyError, match=fault):
        Study(tmp_path / "study", no_settings)
    assert (tmp_path / "study/trial-0001").is_dir()
    assert b'"settings 2"' not in journal.read_bytes()


def test_a_folder_that_is_none(study_of, write, tmp_path):
    for name in ("best.yaml", "checkpoints/last.safetensors"):
        file = write(f"{name}-folder/{name}", "mine")
        folder, held = f"{name}-folder", name.split("/")[0]
        with pytest.raises(
            StudyError, match=rf"{folder}: holds {held}, but no study; allowed: a study, or a new folder"
        ):
            study_of(name=folder)
        assert [str(path) for path in (tmp_path / folder).rglob("*.*")] == [file]
    with pytest.raises(StudyError, match=r"text\.txt/study: Not a directory; allowed: a folder that can be written"):
        study_of(name="text.txt/study")
