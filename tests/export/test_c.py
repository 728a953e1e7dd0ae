"""`charlm export --to c`: the file compiles without a warning, and computes what charlm does."""

import re
import shutil
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from charlm.data.vocabulary import Vocabulary
from charlm.export import export
from charlm.export.rounding import stored_matrix
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import sample_text
from charlm.system.formatting import nats_to_bits
from tests.conftest import ROOT
from tests.docs.pages import blocks
from tests.export.c_program import COMPILER, COMPILERS, EMULATOR, built, compiled
from tests.export.models import every_model, model_of

TEXT = "éabcd efé gha\nbacé hgf\n" * 40
SEED = 2**40 + 7

pytestmark = pytest.mark.skipif(not shutil.which(COMPILER[0]), reason=f"no {COMPILER[0]}")


def scores(run, text=TEXT):
    """What the program prints of a text: bits and how many, of characters, and of bytes if the model reads bytes."""
    printed = run("--score", stdin=text).stdout.decode()
    found = re.findall(r"(\d+\.\d+) bits per (byte|character), (\d+) \2s", printed)
    return {unit: (float(bits), int(count)) for bits, unit, count in found}


def expected(trained, text=TEXT):
    score = trained.evaluate(text)
    told = {"character": (pytest.approx(score.bits_per_char, abs=1e-5), score.of.chars)}
    if trained.vocabulary.level == "byte" and not trained.network.reads_records:
        told["byte"] = pytest.approx(score.bits_per_byte, abs=1e-5), score.of.size_bytes
    return told


@every_model
def test_it_scores_and_writes_as_charlm_does(tmp_path, options):
    trained = model_of(**options)
    run = compiled(trained, "float32", tmp_path)

    assert scores(run) == expected(trained)

    for prompt, choice in (
        ("", {"temperature": 1.0}),
        ("ab é", {"temperature": 0.8, "top_k": 5, "top_p": 0.9}),
        ("a", {"temperature": 0.0}),
    ):
        words = [word for name, value in choice.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        written = run("--prompt", prompt, "--length", "300", "--seed", str(SEED), *words).stdout
        drawn = SamplingOptions(length=300, **choice)  # more than a block of draws
        pieces = sample_text(trained.network, trained.vocabulary, prompt, drawn, [SEED])
        text = prompt + "".join(piece for [piece] in pieces)
        assert written == f"{text}\n".encode("utf-8", "surrogateescape")


def test_weights_of_fewer_bits_compute_what_the_rounded_model_does(tmp_path):
    trained = model_of("gru", "tied", layers=2)
    run = compiled(trained, "int8", tmp_path)
    for parameter in trained.network.parameters():
        if parameter.dim() == 2:
            stored_matrix(parameter, "int8")
    assert scores(run) == expected(trained)


def test_records_of_several_lines_end_as_in_training(tmp_path):
    trained = model_of("rhn", level="byte", records="\n~~~\n")
    run = compiled(trained, "float32", tmp_path)
    for scored in ("ab\n~ c\n~~~\r\nd\r\n~~~\ne\n~~", "ab\n~~~\n\n~"):
        assert scores(run, scored) == expected(trained, scored)
    text = trained.sample("ab\n~", length=100, seed=SEED, temperature=0.5)
    written = run("--prompt", "ab\n~", "--length", "100", "--seed", str(SEED), "--temperature", "0.5").stdout
    assert written.decode("utf-8", "replace") == f"ab\n~{text}\n"


def test_records_that_end_with_cr_lf_may_contain_newlines(tmp_path):
    trained = model_of(records="\r\n", characters="\n\r\x1e abcde")
    run = compiled(trained, "float32", tmp_path)
    assert scores(run, "ab\nc\r\nd\ne\r") == expected(trained, "ab\nc\r\nd\ne\r")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_letters_are_read_in_the_unicode_form_that_the_model_knows(tmp_path, form):
    known = unicodedata.normalize(form, "ếéü각")
    trained = model_of(characters="".join(sorted({*known, *"ae u\n"})))
    run = compiled(trained, "float32", tmp_path)
    for text in ("ae\u0302\u0301 ế \u00ea\u0301e\u0301é", "u\u0308aü\nu\u0308", "각\u1100\u1161\u11a8가\u11a8 u"):
        assert scores(run, text) == expected(trained, text)
    lacking = run("--score", stdin="ao\u0308")
    assert lacking.stderr.decode() == "error: found U+006F, which the model has never seen, at character 2\n"
    assert "U+0303, part of a letter in Unicode form NFD, which" in run("--score", stdin="u\u0303").stderr.decode()


def test_one_character_stands_for_all_rare_ones(tmp_path):
    known = model_of()
    trained = replace(known, vocabulary=replace(known.vocabulary, other="g"))
    run = compiled(trained, "float32", tmp_path)
    assert scores(run, "ab€ßc") == expected(trained, "ab€ßc")
    assert "g" not in run("--length", "300").stdout.decode()


def test_wrong_words_and_texts_have_one_line(tmp_path):
    run = compiled(model_of(), "float32", tmp_path)
    for words in (["--length", "many"], ["--temperature", "-1"], ["--top-p", "2"], ["--seed"], ["--lenght", "3"]):
        done = run(*words)
        assert (done.returncode, done.stdout) == (2, b"")
        assert f"Error: found {words[0]}" in done.stderr.decode()
    for text, fault in (
        ("abcé€", "found U+20AC, which the model has never seen, at character 5"),
        (b"ab\xc3(", "found a byte that is not UTF-8 at character 3"),
        ("a", "found a text of fewer than 2 characters"),
    ):
        done = run("--score", stdin=text)
        assert (done.returncode, done.stdout) == (1, b"")
        assert fault in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1


def test_no_name_and_no_character_leaves_its_place(tmp_path):
    vocabulary = Vocabulary("char", "\"\\\n*/?%'{}\u202e\U0001f600")
    path = Path('runs/*\\/ "?>%s{{data}}\n#error/checkpoints/a')
    run = compiled(replace(model_of(), vocabulary=vocabulary, path=path), "int8", tmp_path)
    assert run("--score", stdin='*/"\\%{}\u202e').returncode == 0


DECLARED = """\
typedef struct {0}_model {0}_model;
{0}_model *{0}_open(void);
void {0}_seed({0}_model *, uint64_t);
const float *{0}_step({0}_model *, int);
int {0}_sample({0}_model *, double, int, double);
int {0}_id(uint32_t);
uint32_t {0}_character(int);
"""
DRAWS = """\
    {0}_model *{0} = {0}_open();
    {0}_seed({0}, 3);
    {0}_step({0}, {0}_id('a'));
    for (int n = 0; n < 20; n++) {{
        const int id = {0}_sample({0}, 1.0, 0, 1.0);
        printf("%d ", {0}_id({0}_character(id)));
        {0}_step({0}, id);
    }}
"""
INCLUDED = '#define CHARLM_NO_MAIN\n#include "all.c"\n#include "2 b.c"\n'
CURSES = "#include <curses.h>\n" if Path("/usr/include/curses.h").exists() and not EMULATOR else ""


@pytest.fixture(scope="module")
def two_models(tmp_path_factory):
    """A folder with the files of two models, and the ids that DRAWS writes of each. One has every operation."""
    folder, drawn = tmp_path_factory.mktemp("two"), []
    for name, trained in {"all": model_of("odd"), "2 b": model_of(layers=2)}.items():
        export(trained, "c", folder / f"{name}.c", weights="float32")
        text = trained.sample("a", length=20, temperature=1.0, seed=3)
        drawn += trained.vocabulary.encode(text).tolist()
    return folder, drawn


@pytest.mark.parametrize("standard", COMPILERS)
@pytest.mark.parametrize("head", [CURSES + INCLUDED, INCLUDED + CURSES, ""], ids=["after curses", "before", "linked"])
def test_two_models_stand_in_one_program(two_models, standard, head):
    folder, drawn = two_models
    if not shutil.which(COMPILERS[standard][0]):
        pytest.skip(f"no {COMPILERS[standard][0]}")
    names = ("all", "model_2_b")
    files = [] if head else ["-DCHARLM_NO_MAIN", "all.c", "2 b.c"]
    head = head or "".join(["#include <stdint.h>\n#include <stdio.h>\n", *map(DECLARED.format, names)])
    steps = "".join(map(DRAWS.format, names))
    (folder / "own.c").write_text(f"{head}int main(void)\n{{\n{steps}    return 0;\n}}\n")
    assert [*map(int, built(folder, *files, "own.c", standard=standard)().stdout.split())] == drawn


def test_the_programs_of_the_page(tmp_path):
    """They continue a text, and write and score lines."""
    mine, names = model_of(level="byte"), model_of(level="byte", records="\n")
    export(mine, "c", tmp_path / "mine.c", weights="float32")
    export(names, "c", tmp_path / "names.c", weights="float32")
    outputs = []
    for program in blocks(ROOT / "docs/export.md", "c"):
        (tmp_path / "own.c").write_text(program)
        outputs.append(built(tmp_path, "own.c")().stdout.decode("utf-8", "replace"))
    continued, lines = outputs
    assert continued == mine.sample("Once", length=100, temperature=0.7, seed=1)
    assert lines.startswith(names.sample(length=100, temperature=0.8, seed=1))
    bits = nats_to_bits(names.evaluate("Anna\n").nats_sum)
    assert lines.endswith(f"\nAnna: {bits:.1f} bits\n")
