"""The exercises: right answers pass, open holes are named, and usual mistakes are told in words of their own."""

import importlib
import io
import itertools
import re
import runpy
import sys
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
    ("02_count", (0, 1), ("ids", "ids[1:]"), "The shapes do not fit: counts [3, 3], a [7], b [6]."),
    ("03_top_k", 3, "k", "3 characters stay in play, not 2. Counted"),
    ("03_top_k", 3, "-2", ", 3): 2 characters stay in play, not 3. Counted"),
    ("03_top_k", 1, "logits.max()", "after the division by the temperature"),
    ("04_numeric_gradient", 1, "x[place] - epsilon", "x[place] is x + ε by then"),
    ("04_numeric_gradient", 3, "(above - below) / 2 * epsilon", "Put 2 ε in brackets"),
    ("04_numeric_gradient", 3, "(above - below) / epsilon", "twice too large"),
    ("04_numeric_gradient", (1, 3), ("before", "(above - below) / epsilon"), "off by about ε"),
    ("05_leaky_back", 5, "dh_new + dinside @ R", "not all of h is kept"),
    ("06_vanishing", 1, "jacobian(h_t, R) @ product", "The order matters"),
    ("06_vanishing", 1, "2 * product @ jacobian(h_t, R)", "reach(states, R): found ["),
    ("07_clip", 1, "0.5", "never above 1"),
    ("07_clip", 2, "scale * gradient[0, 0]", "line 20 stopped.\n  return"),
    ("08_forget_bias", 0, "1 / (1 + np.exp(-bias)) * steps", "Every step multiplies once more"),
    ("09_gru", 2, "np.tanh(r * n_x + n_h)", "acts on n_x"),
    ("10_highway_back", 1, "ds_new * (h - s) * g * (1 - g)", "coupled gates"),
    ("10_highway_back", 3, "da @ R.T", "  ds = da @ R.T\nThe shapes do not fit: da [3, 6], R [6, 2]. In A @ B"),
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

    def run(name: str, answers: dict[int, str]) -> str:
        file = tmp_path / f"{name}.py"
        file.write_text(filled(name, answers), encoding="utf-8")
        try:
            names = {"__name__": "__main__", "__file__": str(file)}
            exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
        except SystemExit as left:
            return str(left.code)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", NAMES)
def test_right_answers_are_right_whichever_are_missing(name, told):
    """And the open holes are named with their lines."""
    source = (EXERCISES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    lines = [str(n) for n, line in enumerate(source, 1) if re.search(r"(?<!\w)\.\.\.", line)]
    answers = dict(enumerate(ANSWERS[name]))
    for left in itertools.chain.from_iterable(itertools.combinations(answers, n) for n in range(1, len(lines) + 1)):
        out = told(name, {hole: answer for hole, answer in answers.items() if hole not in left})
        holes = f"{len(left)} left to fill in; replace `...` on line {', '.join(lines[hole] for hole in left)}"
        assert re.fullmatch(rf"{name}\.py: (right so far: [^\n]*; )?{re.escape(holes)}", out), out
    assert out == f"{name}.py: {holes}"  # all are open
    out = told(name, answers)
    assert out.startswith(f"{name}.py: right. "), out
    assert "nan" not in out


def test_a_part_of_the_answers_is_judged(told):
    assert "right so far: da_g; 3 left" in told("10_highway_back", {1: ANSWERS["10_highway_back"][1]})


@pytest.mark.parametrize(("name", "holes", "wrong", "words"), MISTAKES)
def test_a_wrong_answer_is_told_why(name, holes, wrong, words, told):
    mistakes = {holes: wrong} if isinstance(holes, int) else dict(zip(holes, wrong, strict=True))
    out = told(name, dict(enumerate(ANSWERS[name])) | mistakes)
    assert words in out
    assert not out.startswith(f"{name}.py: right")
    assert "np.float64(" not in out


def test_without_the_checks_a_learner_is_told_what_is_open(told, tmp_path, monkeypatch):
    """A class may get the exercises without the answers."""
    monkeypatch.setattr(importlib.import_module("checking"), "CHECKS", tmp_path / "checks")
    assert told("01_surprise", {0: "1"}) == "01_surprise.py: 2 left to fill in; replace `...` on line 22, 27"
    out = told("01_surprise", dict.fromkeys(range(3), "1"))
    assert out.startswith("01_surprise.py: nothing left to fill in. Your teacher has the check.\n")


def test_a_teacher_grades_files(tmp_path, monkeypatch, capsys):
    right, wrong = (filled("03_top_k", dict(enumerate(ANSWERS["03_top_k"])) | more) for more in ({}, {3: "k"}))
    without = right.replace("def keep_likeliest", "def keep")
    texts = {"03_top_k.py": right, "anna_03_top_k.py": wrong, "ben_03_top_k.py": without, "03_top_k(1).py": "exit(",
             "carla.py": right}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = [str(tmp_path / name) for name in texts]
    for given, code in (files[:1], 0), (files, 1):
        monkeypatch.setattr(sys, "argv", ["grade.py", *given])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(ROOT / "learn/grade.py"), run_name="__main__")
        assert left.value.code == code
    verdicts = [line for line in capsys.readouterr().out.splitlines() if ".py: " in line][1:]
    expected = ("right. ", "not yet. keep_likeliest(", "not yet. The function keep_likeliest is missing", "cannot be ",
                "belongs to no exercise; allowed: a name that contains one of 01_surprise, ")  # fmt: skip
    for name, words, verdict in zip(texts, expected, verdicts, strict=True):
        assert verdict.startswith(f"{name}: {words}")
