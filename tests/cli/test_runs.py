"""charlm runs: what it lists, in which state, and what it leaves alone."""

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from charlm.errors import DamagedCheckpointError
from charlm.runs import BEST, FOLDER, LAST, limit_reached, read_header
from charlm.system.lock import LOCK, lock_holder, locked


@pytest.fixture
def runs(trained_run: Path, tmp_path: Path) -> Path:
    """A folder with a whole run, deeper down a second one that is older, and other folders."""
    folder = tmp_path / "many runs"
    shutil.copytree(trained_run, folder / "new")
    shutil.copytree(trained_run, folder / "by topic" / "Öl-日本")
    (folder / "notes").mkdir()
    for file in (folder / "by topic" / "Öl-日本" / FOLDER).iterdir():
        os.utime(file, (1e9, 1e9))
    return folder


def listed(cli, folder) -> list[dict]:
    result = cli("runs", folder, "--json")
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def test_table_and_json(cli, runs):
    result = cli("runs", runs)
    assert (result.code, result.err) == (0, "")
    header, *rows = [re.split("  +", line) for line in result.out.splitlines()]
    assert header == ["run", "model", "parameters", "steps", "best nats/char", "written", "state"]
    best = read_header(runs / "new" / FOLDER / BEST).progress["best_nats"]
    assert rows[0] == [str(runs / "new"), "lstm 1 × 16", "2,014", "6", f"{best:.4f}", rows[0][5], "finished"]
    assert re.fullmatch(r"just now|\d+ min ago", rows[0][5])
    assert rows[1][0] == str(runs / "by topic" / "Öl-日本")
    assert re.fullmatch(r"\d+ d ago", rows[1][5])
    assert len(rows) == 2
    new, old = listed(cli, runs)
    assert list(new) == [
        "path", "state", "used_by", "kind", "layers", "hidden", "parameters", "step", "best_nats", "written",
    ]  # fmt: skip
    assert list(new.values())[:8] == [str(runs / "new"), "finished", None, "lstm", 1, 16, 2014, 6]
    assert old["written"].startswith("2001-09-0")


@pytest.mark.parametrize("columns", [80, 40])
def test_a_narrow_terminal_gets_the_name_on_a_line_of_its_own(cli, runs, monkeypatch, columns):
    wide = cli("runs", runs).out.splitlines()
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda _: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = cli("runs", runs).out.splitlines()
    names = narrow[::2]
    assert names == ["run", str(runs / "new"), str(runs / "by topic" / "Öl-日本")]
    others = [line.removeprefix(name).split() for line, name in zip(wide, names, strict=True)]
    assert [line.split() for line in narrow[1::2]] == others
    assert max(map(len, narrow[1::2])) < 80
    monkeypatch.setenv("COLUMNS", "300")
    assert cli("runs", runs).out.splitlines() == wide


def test_a_run_itself_and_nothing(cli, runs, tmp_path, monkeypatch):
    assert [run["path"] for run in listed(cli, runs / "new")] == [str(runs / "new")]
    assert listed(cli, runs / "notes") == []
    monkeypatch.chdir(tmp_path)
    result = cli("runs")
    line = "runs     none in runs; start one, for example: charlm train my.txt --minutes 10\n"
    assert (result.code, result.out, result.err) == (0, "", line)
    assert cli("runs", "--json").out == "[]\n"


def test_states(cli, trained_run, tmp_path):
    """All that a run can be, and whether it is resumable from an older checkpoint."""
    for name in ("damaged", "last damaged", "last gone", "no checkpoint", "used", "stopped"):
        shutil.copytree(trained_run, tmp_path / name)
    for file in (tmp_path / "damaged" / FOLDER).iterdir():
        file.write_bytes(b"not a checkpoint")
    last = tmp_path / "last damaged" / FOLDER / LAST
    content = last.read_bytes()
    last.unlink()  # a link to `best` otherwise
    last.write_bytes(content[:-1])
    (tmp_path / "last gone" / FOLDER / LAST).unlink()
    shutil.rmtree(tmp_path / "no checkpoint" / FOLDER)
    (tmp_path / "no checkpoint" / FOLDER).mkdir()
    forge(tmp_path / "stopped" / FOLDER / LAST, "config", '"max_steps": 6', '"max_steps": 60')
    with locked(tmp_path / "used"):
        states = {Path(run["path"]).name: run for run in listed(cli, tmp_path)}
    assert {name: run["state"] for name, run in states.items()} == {
        "damaged": "damaged",
        "last damaged": "finished",
        "last gone": "finished",
        "no checkpoint": "no checkpoint",
        "used": "in use",
        "stopped": "resumable",
    }
    assert states["used"]["used_by"].startswith(f"process {os.getpid()} on ")
    assert states["damaged"]["kind"] is None
    assert "—" in cli("runs", tmp_path / "damaged").out


@pytest.mark.parametrize(
    ("limit", "reached"),
    [
        ({"max_steps": 10}, True),
        ({"max_steps": 11}, False),
        ({"max_steps": None, "max_epochs": 2}, True),
        ({"max_epochs": 2.5}, False),
        ({"max_minutes": 1}, True),
        ({"max_minutes": 1.1}, False),
        ({"patience": 3}, True),
        ({"patience": 0}, False),
    ],
)
def test_limits(limit, reached):
    progress = {"step": 10, "epoch": 2, "elapsed_s": 60.0, "evaluations_since_best": 3}
    assert limit_reached(limit, progress) == reached


def test_nothing_is_written_or_locked(cli, runs):
    files = [path for path in runs.rglob("*") if path.is_file()]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    (runs / "notes" / "up").symlink_to(runs)  # links in a circle, and one that leads nowhere
    (runs / "notes" / "gone").symlink_to(runs / "nothing")
    assert len(listed(cli, runs)) == 2
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in files] == before
    with locked(runs / "new"):  # free
        pass


def test_headers_that_are_none(runs, tmp_path):
    good = (runs / "new" / FOLDER / LAST).read_bytes()
    size = int.from_bytes(good[:8], "little")
    bad = {
        "empty": b"",
        "short": good[:100],
        "cut": good[:-1],
        "longer": good + b"x",
        "huge": (2**60).to_bytes(8, "little") + good[8:],
        "no json": good[:8] + b"[" * size + good[8 + size :],
        "a list": (2).to_bytes(8, "little") + b"[]",
        "no metadata": (2).to_bytes(8, "little") + b"{}",
        "other": good.replace(b"charlm checkpoint", b"somebody else's!!"),
    }
    for name, content in bad.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpointError, match=f"^{re.escape(str(path))}: damaged, or not a checkpoint"):
            read_header(path)


FORGED = {
    "a huge step": ("progress", '"step": 6', f'"step": {10**400}'),
    "a step that is none": ("progress", '"step": 6', '"step": [6]'),
    "a huge best": ("progress", '"best_nats": ', '"best_nats": 1e999, "b": '),
    "a huge time": ("progress", '"elapsed_s": ', f'"elapsed_s": {10**400}, "b": '),
    "no number": ("progress", '"ending_s": ', '"ending_s": NaN, "b": '),
    "layers": ("config", '"layers": 1', f'"layers": {10**400}'),
    "a kind": ("config", '"kind": "lstm"', '"kind": ["lstm"]'),
    "a limit": ("config", '"max_steps": 6', '"max_steps": "6"'),
    "a shape": ("weights/decoder.bias", "[14]", f"[{2**62}, {2**62}]"),
    "more shapes": ("weights/decoder.bias", "[14]", f"[{', '.join(['9' * 4000] * 9)}]"),
}


def forge(path: Path, part: str, old: str, new: str) -> None:
    """Replace a text in an entry of a checkpoint's header. The tensors stay."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    if part in header:
        altered = json.dumps(header).replace(json.dumps(header[part]), json.dumps(header[part]).replace(old, new))
    else:
        assert old in header["__metadata__"][part]
        header["__metadata__"][part] = header["__metadata__"][part].replace(old, new)
        altered = json.dumps(header)
    assert new in altered or json.dumps(new)[1:-1] in altered
    path.unlink()  # maybe a link to another checkpoint
    path.write_bytes(len(altered).to_bytes(8, "little") + altered.encode() + content[end:])


def test_a_forged_header_hides_no_other_run(cli, runs, tmp_path):
    for name, (part, old, new) in FORGED.items():
        shutil.copytree(runs / "new", runs / name)
        (runs / name / FOLDER / BEST).unlink()
        forge(runs / name / FOLDER / LAST, part, old, new)
    found = {Path(run["path"]).name: run["state"] for run in listed(cli, runs)}
    assert found == {"new": "finished", "Öl-日本": "finished", **dict.fromkeys(FORGED, "damaged")}
    assert len(cli("runs", runs).out.splitlines()) == 1 + len(found)
    metrics = runs / "new" / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"step": 6, "split": []}\n')
    result = cli("report", runs, "--out", tmp_path / "page.html")
    assert (result.code, result.err.count("No checkpoint can be read.")) == (0, len(FORGED))
    for name in FORGED:
        assert cli("train", "--resume", "--run-dir", runs / name).error.startswith(f"{runs / name}/checkpoints/last.")
    forge(runs / "new" / FOLDER / LAST, "config", '"kind": "lstm"', '"kind": "\\u001b[2J"')
    assert "\\x1b[2J 1 × 16" in cli("runs", runs / "new").out


def test_what_stands_in_the_place_of_a_lock_is_not_read(tmp_path):
    """A named pipe would wait for its writer."""
    os.mkfifo(tmp_path / LOCK)
    assert lock_holder(tmp_path) is None
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).symlink_to("/dev/zero")
    assert lock_holder(tmp_path) is None


def test_many_runs_are_listed_at_once(cli, trained_run, tmp_path):
    for number in range(300):
        folder = tmp_path / f"{number}" / FOLDER
        folder.mkdir(parents=True)
        os.link(trained_run / FOLDER / LAST, folder / LAST)
        (tmp_path / f"{number}" / "config.yaml").touch()
    start_s = time.perf_counter()
    assert len(listed(cli, tmp_path)) == 300
    assert time.perf_counter() - start_s < 5
