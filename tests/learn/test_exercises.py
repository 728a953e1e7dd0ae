"""The exercises: right answers pass, open holes are named, and each usual mistake is told in its own words."""

import ast
import importlib
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import ROOT

EXERCISES = ROOT / "learn/exercises"
NAMES = [path.stem for path in sorted(EXERCISES.glob("[0-9]*.py"))]

SECTIONS = re.findall(
    r"^## (\w+)\n\n```python\n(.*?)```$", (ROOT / "learn/solutions.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
)
ANSWERS = {name: answers.splitlines() for name, answers in SECTIONS}
"""What fills each hole, in order."""

MISTAKES = [
    ("01_surprise", 0, "np.log(p).mean()", "Surprise is not"),
    ("01_surprise", 0, "-np.log(p).sum()", "This is the sum"),
    ("01_surprise", 0, "-np.log2(p).mean()", "These are bits"),
    ("01_surprise", 0, "-np.log(p.mean())", "its own surprise"),
    ("01_surprise", 0, "-np.log(p)", "found the shape [3], expected one number"),
    ("01_surprise", 0, "1 - p.mean()", "Take the logarithm of each"),
    ("01_surprise", 0, "None", "found None, so nothing was returned"),
    ("01_surprise", 1, "nats * np.log(2)", "multiplied where you should divide"),
    ("01_surprise", 1, "nats", "A fair coin"),
    ("01_surprise", 2, "2**nats", "Nats belong to e"),
    ("01_surprise", 2, "nats", "Undo the logarithm"),
    ("02_count", 0, "ids", "line 16 stopped"),
    ("02_count", (0, 1), ("ids[1:]", "ids[:-1]"), "exchanged"),
    ("02_count", (0, 1), ("ids[:-2]", "ids[2:]"), "without its last character"),
    ("02_count", 2, "counts", "Add 1 to every count"),
    ("02_count", 3, "more / more.sum(axis=0)", "the rows have to"),
    ("02_count", 3, "more / more.sum(axis=1)", "keepdims"),
    ("02_count", 3, "more / more.sum()", "The whole table"),
    ("02_count", 3, "more.sum()", "found the shape []"),
    ("02_count", 3, "more / more.max()", "by the sum of its row"),
    ("02_count", 4, "-np.log(p[ids[:-1], ids[1:]]).sum()", "This is the sum"),
    ("02_count", 4, "np.log(p[ids[:-1], ids[1:]]).mean()", "Surprise is −log p"),
    ("02_count", 4, "-np.log(p).mean()", "mean over the table"),
    ("02_count", 4, "-np.log(p[ids[1:], ids[:-1]]).mean()", "Look up p of each pair"),
    ("03_top_k", 0, "logits * temperature", "You multiplied"),
    ("03_top_k", 0, "logits", "no effect"),
    ("03_top_k", 0, "logits - temperature", "no effect"),
    ("03_top_k", 2, "np.exp(scaled).max()", "by the sum, not by the largest"),
    ("03_top_k", 2, "len(scaled)", "divided by the sum"),
    *(("03_top_k", 1, wrong, "exp overflowed") for wrong in ("0", "scaled[0]", "scaled[1]", "scaled.mean()")),
    ("03_top_k", 3, "k", "3 characters stay in play, not 2. Counted"),
    ("03_top_k", 3, "-k - 1", "3 characters stay in play, not 2"),
    ("03_top_k", 4, "kept", "They sum to 0.65"),
    ("03_top_k", 4, "kept / kept.max()", "keep their proportions"),
    ("04_numeric_gradient", 2, "before + epsilon", "x is not what it was"),
    ("04_numeric_gradient", 3, "(above - below) / epsilon", "twice too large"),
    ("04_numeric_gradient", 3, "(below - above) / (2 * epsilon)", "The sign is wrong"),
    ("04_numeric_gradient", 3, "above - below", "This is the change of the loss"),
    ("04_numeric_gradient", (1, 3), ("before", "(above - below) / epsilon"), "off by about ε"),
    ("04_numeric_gradient", 3, "above", "divided by the change of x"),
    ("05_leaky_back", 1, "da", "The sigmoid is missing"),
    ("05_leaky_back", 0, "(dh_new * new).sum(axis=0)", "a also makes h smaller"),
    ("05_leaky_back", 0, "(dh_new * (new - h)).mean(axis=0)", "mean over the streams"),
    ("05_leaky_back", 0, "dh_new * (new - h)", "dleak: found the shape [2, 3], expected the shape [3]"),
    ("05_leaky_back", 0, "(dh_new * h).sum(axis=0)", "Sum over the streams"),
    ("05_leaky_back", 4, "h.T @ dinside", "It is transposed"),
    ("05_leaky_back", 2, "dh_new", "lacks a"),
    ("05_leaky_back", 3, "dnew", "slope of tanh is missing"),
    ("05_leaky_back", 4, "dinside.T @ new", "dR[i, j] = Σ"),
    ("05_leaky_back", 5, "dinside @ R", "The share 1 − a of h that is kept is missing"),
    ("05_leaky_back", 5, "dh_new * (1 - a)", "That through R h is missing"),
    ("05_leaky_back", 5, "dh_new + dinside @ R", "not all of h is kept"),
    ("05_leaky_back", 5, "dh_new * (1 - a) + dinside @ R.T", "wrong way around"),
    ("05_leaky_back", 5, "dh_new", "on two paths"),
    ("06_vanishing", 0, "(1 - h_t**2) * R", "multiplies the columns"),
    ("06_vanishing", 0, "R", "slope of tanh is missing"),
    ("06_vanishing", 0, "((1 - h_t**2)[:, None] * R).T", "It is transposed"),
    ("06_vanishing", 0, "(1 - h_t)[:, None] * R", "times row i of R"),
    ("06_vanishing", 1, "jacobian(h_t, R) @ product", "The order matters"),
    ("06_vanishing", 1, "product * jacobian(h_t, R)", "entry by entry"),
    ("06_vanishing", 1, "jacobian(h_t, R)", "one more Jacobian"),
    ("07_clip", 0, "sum(np.linalg.norm(g) for g in gradients.values())", "added the norms"),
    ("07_clip", 0, "sum((g**2).sum() for g in gradients.values())", "The root is missing"),
    ("07_clip", 0, "sum(np.abs(g).sum() for g in gradients.values())", "over all arrays"),
    ("07_clip", 2, "gradient * min(1, limit / np.linalg.norm(gradient))", "clipped by itself"),
    ("07_clip", 2, "gradient", "Nothing was clipped"),
    ("07_clip", 1, "norm(gradients) / limit", "It became longer"),
    ("07_clip", 2, "gradient * scale**2", "half as large"),
    ("07_clip", 2, "gradient * scale if name == 'b' else gradient", "Multiply every array"),
    ("07_clip", 1, "limit / norm(gradients)", "grew up to the limit"),
    ("07_clip", 1, "0.5", "never above 1"),
    ("07_clip", 1, "np.minimum(norm(gradients), limit) / norm(gradients)", "NaN"),
    ("08_forget_bias", 0, "1 / (1 + np.exp(-bias)) * steps", "Every step multiplies once more"),
    ("08_forget_bias", 0, "bias**steps", "not the gate yet"),
    ("08_forget_bias", 0, "1 / (1 + np.exp(-bias * steps))", "first, then the power"),
    ("08_forget_bias", 0, "np.exp(-bias * steps)", "The gate is σ(bias)"),
    ("08_forget_bias", 0, "0.5", "three times"),
    ("08_forget_bias", 1, "np.log(1 / (1 + np.exp(-bias))) / np.log(0.5)", "upside down"),
    ("08_forget_bias", 1, "np.log(0.5) / np.log(1 + np.exp(-bias))", "their ratio is positive"),
    ("08_forget_bias", 1, "bias", "Solve gate^n = 1/2 for n"),
    ("08_forget_bias", 3, "gate", "Which bias has this sigmoid"),
    ("08_forget_bias", 3, "np.log(gate)", "This is log gate"),
    ("08_forget_bias", 2, "0.5 ** steps", "the n-th root"),
    ("09_gru", 3, "z * n + (1 - z) * h", "z and 1 − z are exchanged"),
    ("09_gru", 3, "n + z * h", "With z = 1 the state stays"),
    ("09_gru", 3, "h + z * h", "Old and new must share"),
    ("09_gru", 2, "np.tanh(n_x + n_h)", "no effect"),
    ("09_gru", 2, "np.tanh(r * (n_x + n_h))", "closes the input too"),
    ("09_gru", 2, "n_x + r * n_h", "lacks its tanh"),
    ("09_gru", 2, "np.tanh(r * n_x + n_h)", "acts on n_x"),
    ("09_gru", 2, "np.tanh(n_x - n_h * r - 1)", "sees the input alone"),
    ("09_gru", 2, "np.tanh(n_x)", "n_h is missing"),
    ("09_gru", 2, "np.tanh(n_x + 2 * r * n_h)", "sees both parts"),
    ("09_gru", 0, "sigmoid(r_x)", "adds its parts"),
    ("09_gru", 0, "sigmoid(-r_x - r_h)", "no effect"),
    ("10_highway_back", 0, "ds_new * g", "not yet that of a_h"),
    ("10_highway_back", 0, "ds_new * (1 - h**2)", "What h is multiplied with"),
    ("10_highway_back", 0, "ds_new * h", "then the slope of tanh"),
    ("10_highway_back", 1, "ds_new * (h - s) * g * (1 - g)", "coupled gates"),
    ("10_highway_back", 1, "ds_new * h", "not yet that of a_g"),
    ("10_highway_back", 1, "ds_new * g", "s' changes with g by h"),
    ("10_highway_back", 2, "ds_new * s * c", "s' changes with c by s"),
    ("10_highway_back", 2, "ds_new * c * (1 - c)", "What c is multiplied with"),
    ("10_highway_back", 3, "da @ R", "The highway itself is missing"),
    ("10_highway_back", 3, "ds_new * c", "The path through R s is missing"),
    ("10_highway_back", 3, "ds_new + da @ R", "only the share c"),
    ("10_highway_back", 3, "ds_new * (1 - g) + da @ R", "1 − g carries"),
    ("10_highway_back", 3, "ds_new", "on two paths"),
]
"""Exercise, hole or holes, what a learner may put there, and words of what it is told."""


def filled(name: str, answers: list[str]) -> str:
    """The source of an exercise with `...` replaced in order."""
    source = (EXERCISES / f"{name}.py").read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    holes = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.string == "..."]
    for hole, answer in reversed(list(zip(holes, answers, strict=True))):
        (row, start), (_, end) = hole.start, hole.end
        lines[row - 1] = lines[row - 1][:start] + answer + lines[row - 1][end:]
    return "".join(lines)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs the source of an exercise as a program; what it says at its end."""
    monkeypatch.syspath_prepend(EXERCISES)
    monkeypatch.setattr(importlib.import_module("checking"), "passed", [])

    def run(name: str, source: str) -> str:
        file = tmp_path / f"{name}.py"
        file.write_text(source, encoding="utf-8")
        try:
            exec(compile(source, str(file), "exec"), {"__name__": "__main__"})
        except SystemExit as left:
            return str(left.code)
        return capsys.readouterr().out

    return run


def test_there_are_ten_with_an_answer_each():
    assert list(ANSWERS) == NAMES
    assert len(NAMES) == 10


@pytest.mark.parametrize("name", NAMES)
def test_the_right_answer_is_right(name, told):
    out = told(name, filled(name, ANSWERS[name]))
    assert out.startswith(f"{name}.py: right. "), out
    assert "nan" not in out


@pytest.mark.parametrize("name", NAMES)
def test_open_holes_are_named_with_their_lines(name, told):
    source = (EXERCISES / f"{name}.py").read_text(encoding="utf-8")
    lines = [str(n) for n, line in enumerate(source.splitlines(), 1) if re.search(r"(?<!\w)\.\.\.", line)]
    out = told(name, source)
    assert out == f"{name}.py: {len(ANSWERS[name])} left to fill in; replace `...` on line {', '.join(lines)}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("judged", ["right", "wrong", "stops"])
def test_functions_without_holes_are_judged(name, judged, told):
    """All answers to one function, and none to the others. Those to several are needed only by what calls another."""
    source = (EXERCISES / f"{name}.py").read_text(encoding="utf-8")
    holes = [
        token.start[0] for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.string == "..."
    ]
    needed = {"06_vanishing": {"reach": ["jacobian"]}, "07_clip": {"clip": ["norm"]}}.get(name, {})
    ranges = {f.name: range(f.lineno, (f.end_lineno or 0) + 1) for f in ast.parse(source).body
              if isinstance(f, ast.FunctionDef)}  # fmt: skip
    owners = [next(f for f, lines in ranges.items() if hole in lines) for hole in holes]
    for function in dict.fromkeys(owners):
        closed = {function, *needed.get(function, [])}
        if closed == {*owners}:
            continue
        answers = [answer if owner in closed else "..." for owner, answer in zip(owners, ANSWERS[name], strict=True)]
        if judged != "right":
            answers[owners.index(function)] = "None" if judged == "wrong" else "nothing_of_this_name"
        out = told(name, filled(name, answers))
        if judged == "right":
            assert re.match(rf"{name}\.py: right so far: .*; {answers.count('...')} left to fill in; ", out), out
        else:
            assert f"{name}.py: not yet. " in out or " stopped.\n" in out, out
            assert f"{answers.count('...')} left to fill in; replace `...` on line" in out, out


@pytest.mark.parametrize(
    ("name", "closed", "judged"),
    [
        (
            "05_leaky_back",
            {0: "(dh_new * (new - h)).sum(axis=0)", 1: "da * a * (1 - a)"},
            "right so far: dleak; 4 left",
        ),
        ("05_leaky_back", {2: "dh_new", 3: "dnew * (1 - new**2)", 4: "dinside.T @ h"}, "lacks a"),
        ("10_highway_back", {1: "ds_new * h * g * (1 - g)"}, "right so far: da_g; 3 left"),
        ("10_highway_back", {2: "ds_new * s * c"}, "s' changes with c by s"),
    ],
)
def test_a_part_of_a_function_is_judged(name, closed, judged, told):
    out = told(name, filled(name, [closed.get(hole, "...") for hole in range(len(ANSWERS[name]))]))
    assert judged in out


def test_wrong_answers_are_told_why(told):
    """Each mistake is told in the words that fit it, and there is a mistake for every hint."""
    said = ""
    for name, holes, wrong, words in MISTAKES:
        answers = ANSWERS[name].copy()
        for hole, answer in [(holes, wrong)] if isinstance(holes, int) else zip(holes, wrong, strict=True):
            answers[hole] = answer
        out = told(name, filled(name, answers))
        assert words in out, f"{name}, {wrong}"
        assert not out.startswith(f"{name}.py: right"), f"{name}, {wrong}"
        said += out
    for name in NAMES:
        assert [hint for hint in hints(name) if hint not in said] == [], name


def hints(name: str) -> list[str]:
    """The sentences in the check of an exercise, except the last."""
    tree = ast.parse((EXERCISES / f"{name}.py").read_text(encoding="utf-8"))
    [check] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    constants = [node for line in check.body[:-1] for node in ast.walk(line) if isinstance(node, ast.Constant)]
    own = {id(line.body[0].value) for line in check.body if isinstance(line, ast.FunctionDef)}  # docstrings
    return [node.value for node in constants if str(node.value).endswith(".") and id(node) not in own]


def test_it_runs_as_a_program(tmp_path):
    command = [sys.executable, str(EXERCISES / "01_surprise.py")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "01_surprise.py: 3 left to fill in; replace `...` on line 17, 22, 27\n"


def test_the_gru_is_torchs():
    """The numbers in 09_gru.py's last check come from torch.nn.GRUCell."""
    cell = torch.nn.GRUCell(6, 2, dtype=torch.float64)
    source = (EXERCISES / "09_gru.py").read_text(encoding="utf-8")
    [arrays] = re.findall(r"Wx, Rh = np\.array\((.*)\), np\.array\((.*)\)", source)
    Wx, Rh = (torch.tensor(eval(text), dtype=torch.float64) for text in arrays)
    h = torch.tensor([[0.5, -0.3]], dtype=torch.float64)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.eye(6))
        cell.weight_hh.zero_()
        cell.bias_ih.zero_()
        cell.bias_hh.copy_(Rh[0])
    [expected] = re.findall(r"step\(Wx, Rh, h\), (\[\[.*?\]\])", source)
    np.testing.assert_allclose(cell(Wx, h).detach(), eval(expected), atol=1e-7)
