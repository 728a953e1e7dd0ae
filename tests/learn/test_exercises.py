"""The exercises: right answers pass, open holes are named, and usual mistakes are told in words of their own."""

import importlib
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.conftest import ROOT

EXERCISES = ROOT / "learn/exercises"
NAMES = [path.stem for path in sorted(EXERCISES.glob("[0-9]*.py"))]

SECTIONS = re.findall(
    r"^## (\w+)\n\n```python\n(.*?)```$", (ROOT / "learn/solutions.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
)
ANSWERS = {name: answers.splitlines() for name, answers in SECTIONS}
"""What fills each hole, in order."""

MISTAKES = [
    ("01_surprise", 0, "-np.log(p).sum()", "This is the sum"),
    ("02_count", (0, 1), ("ids[1:]", "ids[:-1]"), "exchanged"),
    ("03_top_k", 3, "k", "3 characters stay in play, not 2. Counted"),
    ("04_numeric_gradient", 3, "(above - below) / epsilon", "twice too large"),
    ("04_numeric_gradient", (1, 3), ("before", "(above - below) / epsilon"), "off by about ε"),
    ("05_leaky_back", 5, "dh_new + dinside @ R", "not all of h is kept"),
    ("06_vanishing", 1, "jacobian(h_t, R) @ product", "The order matters"),
    ("07_clip", 1, "0.5", "never above 1"),
    ("08_forget_bias", 0, "1 / (1 + np.exp(-bias)) * steps", "Every step multiplies once more"),
    ("09_gru", 2, "np.tanh(r * n_x + n_h)", "acts on n_x"),
    ("10_highway_back", 1, "ds_new * (h - s) * g * (1 - g)", "coupled gates"),
]
"""Exercise, hole or holes, what a learner may put there, and words of what it is told."""


def filled(name: str, answers: dict[int, str]) -> str:
    """The source of an exercise with some of its `...` replaced."""
    source = (EXERCISES / f"{name}.py").read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    holes = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.string == "..."]
    for number, answer in sorted(answers.items(), reverse=True):
        (row, start), (_, end) = holes[number].start, holes[number].end
        lines[row - 1] = lines[row - 1][:start] + answer + lines[row - 1][end:]
    return "".join(lines)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs an exercise with these answers as a program; what it says at its end."""
    monkeypatch.syspath_prepend(EXERCISES)
    monkeypatch.setattr(importlib.import_module("checking"), "passed", [])

    def run(name: str, answers: dict[int, str]) -> str:
        file = tmp_path / f"{name}.py"
        file.write_text(filled(name, answers), encoding="utf-8")
        try:
            exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), {"__name__": "__main__"})
        except SystemExit as left:
            return str(left.code)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", NAMES)
def test_the_right_answer_is_right(name, told):
    out = told(name, dict(enumerate(ANSWERS[name])))
    assert out.startswith(f"{name}.py: right. "), out
    assert "nan" not in out


@pytest.mark.parametrize("name", NAMES)
def test_open_holes_are_named_with_their_lines(name, told):
    source = (EXERCISES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    lines = [str(n) for n, line in enumerate(source, 1) if re.search(r"(?<!\w)\.\.\.", line)]
    open_holes = f"{len(ANSWERS[name])} left to fill in; replace `...` on line {', '.join(lines)}"
    assert told(name, {}) == f"{name}.py: {open_holes}"


def test_a_part_of_the_answers_is_judged(told):
    assert "right so far: da_g; 3 left" in told("10_highway_back", {1: ANSWERS["10_highway_back"][1]})


@pytest.mark.parametrize(("name", "holes", "wrong", "words"), MISTAKES)
def test_a_wrong_answer_is_told_why(name, holes, wrong, words, told):
    mistakes = {holes: wrong} if isinstance(holes, int) else dict(zip(holes, wrong, strict=True))
    out = told(name, dict(enumerate(ANSWERS[name])) | mistakes)
    assert words in out
    assert not out.startswith(f"{name}.py: right")
