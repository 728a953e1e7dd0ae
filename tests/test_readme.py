"""What the README says is so: its table of options, its commands, its Python."""

import json
import re
import shlex
from pathlib import Path

import pytest

from charlm.config.options import options_table
from tests.text import words_text

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if line]
CHARLM_COMMANDS = [line for line in COMMANDS if line.startswith("charlm ") and "fetch" not in line]


def test_options_are_those_of_the_schema():
    table = re.search(r"<!-- options -->\n(.*?)<!-- /options -->", README, re.DOTALL)
    assert table
    assert table[1] == options_table()


def test_commands_are_found():
    assert len(CHARLM_COMMANDS) > 12
    others = {line.split()[0] for line in COMMANDS} - {"charlm"}
    scripts = {f"./scripts/{name}" for name in ("quickstart", "test", "test-oldest", "audit", "sanitize", "bench")}
    assert others == scripts | {"tensorboard"}
    assert all((ROOT / name).stat().st_mode & 0o100 for name in others if name.startswith("./"))


def test_nothing_is_missing():
    assert not re.findall(r"\b(?!CHARLM_)[A-Z]+_[A-Z]+\b", README)
    images = re.findall(r"!\[.*?\]\((.*?)\)", README)
    assert images
    assert all((ROOT / image).is_file() for image in images)


def test_promises_are_checked_by_scripts_and_tests_that_are_there():
    section = re.search(r"^## What you can rely on\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    assert section
    commands = [shlex.split(text) for text in re.findall(r"`(\./scripts/.*?)`", section[1])]
    assert len(commands) > 10
    for script, *words in commands:
        assert (ROOT / script).stat().st_mode & 0o100
        paths = [ROOT / word for word in words if word.startswith("tests/")]
        assert all(path.exists() for path in paths), words
        files = [file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])]
        tests = re.findall(r"^def (test_\w+)", "".join(file.read_text() for file in files), re.MULTILINE)
        wanted = " ".join(words[words.index("-k") + 1 :]).split(" or ") if "-k" in words else []
        assert all(any(word in name for name in tests) for word in wanted), words


@pytest.mark.parametrize("line", blocks("python"))
def test_python(line):
    exec(compile(line, "README.md", "exec"), {})


def test_commands_run_as_they_stand(cli, tmp_path, monkeypatch, tinyshakespeare):
    """All of them in order, in a folder with the configs and the two texts; training is cut to two small steps."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "data").mkdir()
    text = tinyshakespeare.read_text()
    (tmp_path / "data/tinyshakespeare.txt").write_text(text[:20_000] + text[-9_000:])
    (tmp_path / "my.txt").write_text("Once upon a time ROMEO: JULIET:\n" + words_text(6000))
    small = ["model.cell.hidden=8", "model.embedding=4", "train.max_steps=2", "train.batch_size=2"]
    for line in CHARLM_COMMANDS:
        words = shlex.split(line)[1:]
        if words[0] in ("train", "plan") and "--resume" not in words:
            words += [word for option in small for word in ("--set", option)]
        if "--length" not in words and words[0] == "sample":
            words += ["--length", "20"]
        if "--resume" in words:
            words += ["--set", "train.max_steps=3"]
        result = cli(*words)
        assert result.code == 0, f"{line}\n{result.err}"
        if "--json" in words:
            json.loads(result.out)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["mine", "shakespeare", "tuned"]
    assert len((tmp_path / "scores.csv").read_text().splitlines()) > 5000
