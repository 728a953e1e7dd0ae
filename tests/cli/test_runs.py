"""charlm runs: what it lists, in which state, and what it leaves alone."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from charlm.runs import BEST, FOLDER, LAST, VERSION, read_header
from charlm.system.formatting import columns_of
from charlm.system.lock import locked


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
    files = [path for path in runs.rglob("*") if path.is_file()]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    (runs / "notes" / "up").symlink_to(runs)  # a circle
    result = cli("runs", runs)
    assert (result.code, result.err) == (0, "")
    header, new, old = [re.split("  +", line) for line in result.out.splitlines()]
    assert header == ["run", "model", "updates", "nats/char", "scored on", "written", "state"]
    best = read_header(runs / "new" / FOLDER / BEST)[1]["best_nats"]
    assert new[:5] == [
        str(runs / "new"),
        "lstm, 1 × 16 units",
        "6",
        f"{best:.4f}",
        "5% of text.txt before the last 5%",
    ]
    assert re.fullmatch(r"[\d.]+ s ago|\d+ min \d+ s ago", new[5])
    assert (old[0], old[6]) == (str(runs / "by topic" / "Öl-日本"), "finished")
    assert re.fullmatch(r"\d+ d \d+ h ago", old[5])
    first, second = listed(cli, runs)
    assert second["written_s"] < first["written_s"]
    assert (first["path"], first["kind"], first["parameters"]) == (str(runs / "new"), "lstm", 2014)
    assert listed(cli, runs / "new") == [first]
    none = cli("runs", runs / "notes").err
    assert none.endswith("; start one, for example: charlm train my.txt --minutes 10\n")
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in files] == before


def test_options_that_differ_have_columns_and_a_narrow_terminal_gets_fewer(cli, runs, monkeypatch):
    for file in (LAST, BEST):
        forge(runs / "new" / FOLDER / file, r"\"bptt\": 8", r"\"bptt\": 9")
    header, new, old = [re.split("  +", line) for line in cli("runs", runs).out.splitlines()]
    assert header[:4] == ["run", "model", "train.bptt", "updates"]
    assert (new[2], old[2]) == ("9", "8")
    monkeypatch.setattr("charlm.cli.runs.terminal_columns", lambda stream: 80)
    monkeypatch.chdir(runs)
    lines = cli("runs", "new").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert re.split("  +", lines[0]) == ["run", "model", "updates", "nats/char", "state"]
    for name, value in {"batch_size": 4, "sample_length": 20, "max_steps": 6}.items():
        for file in (LAST, BEST):
            forge(Path("new") / FOLDER / file, rf"\"{name}\": {value}", rf"\"{name}\": 9")
    result = cli("runs", ".")
    assert max(map(columns_of, result.out.splitlines())) <= 80
    assert re.split("  +", result.out.splitlines()[0])[2:-2] == ["train.batch_size"]
    assert "the runs also differ in train.bptt, train.max_steps, train.sample_length; charlm report" in result.err


def forged(content: bytes, old: str, new: str) -> bytes:
    """A checkpoint with another text in its header. The tensors stay."""
    end = 8 + int.from_bytes(content[:8], "little")
    assert old.encode() in content[8:end]
    header = content[8:end].replace(old.encode(), new.encode())
    return len(header).to_bytes(8, "little") + header + content[end:]


def forge(path: Path, old: str, new: str) -> None:
    content = forged(path.read_bytes(), old, new)
    path.unlink()  # maybe a link to another checkpoint
    path.write_bytes(content)


FORGED = {
    "no offsets": ('"data_offsets":[', '"data_offsets":[],"x":['),
    "one offset": ('"data_offsets":[', '"data_offsets":[0],"x":['),
    "a list as offset": ('"data_offsets":[', '"data_offsets":[0,[1]],"x":['),
    "an infinite count": ('"parameters":"', '"parameters":Infinity,"x":"'),
    "a long number": ('\\"hidden\\": 16', f'\\"hidden\\": {10**4200}'),
    "half a layer": ('\\"layers\\": 1', '\\"layers\\": 0.5'),
    "members below 0": ('\\"members\\": 1', '\\"members\\": -1'),
}
"""Headers that are JSON, but not what charlm writes: a text, and what stands in its place."""


def test_states_whatever_else_a_run_holds(cli, trained_run, tmp_path):
    folder = tmp_path / "runs"
    good = (trained_run / FOLDER / LAST).read_bytes()
    damaged = {"cut": good[:-1], "endless": (2**60).to_bytes(8, "little") + good[8:]}
    damaged |= {name: forged(good, old, new) for name, (old, new) in FORGED.items()}
    states = {
        "new": "finished", "no checkpoint": "no checkpoint", "used": "in use",
        "stopped": "resumable", "old": "other version", **dict.fromkeys(damaged, "damaged"),
    }  # fmt: skip
    for name in states:
        shutil.copytree(trained_run, folder / name)
    shutil.rmtree(folder / "no checkpoint" / FOLDER)
    (folder / "no checkpoint" / FOLDER).mkdir()
    forge(folder / "stopped" / FOLDER / LAST, '\\"stop_reason\\": \\"max_steps\\"', '\\"stop_reason\\": \\"\\"')
    (folder / "old" / FOLDER / BEST).unlink()
    forge(folder / "old" / FOLDER / LAST, f'"version":"{VERSION}"', '"version":"1"')
    for name, content in damaged.items():
        for file in (folder / name / FOLDER).iterdir():
            file.write_bytes(content)
    with locked(folder / "used"):
        assert {Path(run["path"]).name: run["state"] for run in listed(cli, folder)} == states
    assert cli("report", folder, "--out", tmp_path / "page.html").code == 0
    for name in [*damaged, "old"]:
        error = cli("train", "--resume", "--run-dir", folder / name).error
        assert error.startswith(f"{folder / name}/checkpoints/last.")
    assert error.endswith("; use the charlm that wrote it, or train anew")
