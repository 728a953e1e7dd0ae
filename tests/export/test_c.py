"""`charlm export --to c`: the file compiles without a warning, and computes what charlm does."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from charlm.data.vocabulary import Vocabulary
from charlm.export import export
from charlm.export.rounding import stored_matrix
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import sample_text
from tests.export.c_program import compiled
from tests.export.models import model_of

MODELS = {
    "lstm": {"inputs": "embedding", "layers": 2, "zoneout": 0.2},
    "rhn": {"inputs": "one-hot", "records": "\n"},
    "odd": {"inputs": "projected", "layers": 3, "residual": True, "level": "byte"},
}
TEXT = "abcd efé gha\nbacé hgf\n" * 40

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Each model, and its compiled program."""
    programs = {}
    for case, options in MODELS.items():
        torch.manual_seed(0)
        trained = model_of(case, **options)
        programs[case] = trained, compiled(trained, "float32", tmp_path_factory.mktemp(case))
    return programs


def assert_scored(done, expected):
    bits, *words = done.stdout.decode().split(" ", 1)
    assert words == [f"bits per character, {expected.targets} characters\n"]
    assert float(bits) == pytest.approx(expected.bits_per_char, abs=1e-5)


def assert_drawn(trained, run, prompt, options):
    """The program draws the text that charlm draws."""
    seed = 2**40 + 7
    drawn = sample_text(trained.network, trained.vocabulary, prompt, SamplingOptions(length=200, **options), [seed])
    text = prompt + "".join(piece for [piece] in drawn)
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    done = run("--prompt", prompt, "--length", "200", "--seed", str(seed), *words)
    assert done.stdout == (text + "\n").encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("case", MODELS)
def test_it_scores_as_charlm_does(programs, case):
    trained, run = programs[case]
    assert_scored(run("--score", stdin=TEXT), trained.evaluate(TEXT))


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("", {"temperature": 1.0}),
        ("ab é", {"temperature": 0.8, "top_k": 5, "top_p": 0.9}),
        ("a", {"temperature": 0.0}),
    ],
)
def test_a_seed_gives_the_text_of_charlm(programs, case, prompt, options):
    assert_drawn(*programs[case], prompt, options)


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_weights_of_fewer_bits_compute_what_the_rounded_model_does(tmp_path, weights):
    trained = model_of("gru", "tied", layers=2)
    run = compiled(trained, weights, tmp_path)
    for parameter in trained.network.parameters():
        if parameter.dim() == 2:
            stored_matrix(parameter, weights)
    assert_scored(run("--score", stdin=TEXT), trained.evaluate(TEXT))


def test_records_of_several_lines_end_as_in_training(tmp_path):
    trained = model_of("rhn", level="byte", records="\n~~~\n")
    run = compiled(trained, "float32", tmp_path)
    done = run("--score", stdin="ab\n~ c\n~~~\r\nd\r\n~~~\ne\n~~")
    assert_scored(done, trained.evaluate("ab\n~ c\x1ed\x1ee\x1e"))
    assert_scored(run("--score", stdin="ab\n~~~\n\n~"), trained.evaluate("ab\x1e"))
    assert_drawn(trained, run, "ab\n~", {"temperature": 0.5})


def test_one_character_stands_for_all_rare_ones(tmp_path):
    known = model_of()
    trained = replace(known, vocabulary=replace(known.vocabulary, other="g"))
    run = compiled(trained, "float32", tmp_path)
    assert run("--score", stdin="ab€ß").stdout == run("--score", stdin="abgg").stdout
    assert "g" not in run("--length", "300").stdout.decode()


def test_wrong_words_and_texts_have_one_line(programs):
    _, run = programs["lstm"]
    for words in (["--length", "many"], ["--temperature", "-1"], ["--seed"], ["--lenght", "3"]):
        done = run(*words)
        assert (done.returncode, done.stdout) == (2, b"")
        assert f"Error: found {words[0]}" in done.stderr.decode()
    for text, fault in (
        ("abcé€", "found U+20AC, which the model has never seen, at character 5"),
        (b"ab\xc3(", "found a byte that is not UTF-8 at character 3"),
        ("a", "found the end of the text"),
    ):
        done = run("--score", stdin=text)
        assert (done.returncode, done.stdout) == (1, b"")
        assert fault in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1


def test_no_name_and_no_character_leaves_its_place(tmp_path):
    trained = replace(model_of(), path=Path('runs/*\\/ "?>%s{{data}}\n#error/checkpoints/a'))
    vocabulary = Vocabulary("char", "\"\\\n*/?%'{}\u202e\U0001f600")
    assert len(vocabulary) == len(trained.vocabulary)
    trained = replace(trained, vocabulary=vocabulary)
    run = compiled(trained, "int8", tmp_path)
    assert run("--score", stdin='*/"\\%{}\u202e').returncode == 0


def test_the_command_says_what_rounding_costs(cli, trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = cli("export", trained_run, "--to", "c", "--out", "a.c")
    assert re.search(r"export   a\.c: [\d.]+ kB; int8: \d\.\d{4} nats per character before, \d", result.err)
    assert cli("export", trained_run, "--to", "c", "--out", "a.c", "--weights", "float32").code == 0


def test_without_the_training_text(tmp_path):
    assert "; int8; nats not compared: gone.txt: " in export(model_of(), "c", tmp_path / "a.c")


def test_a_program_of_ones_own(tmp_path, programs):
    """It includes the file, and calls three functions."""
    trained, _ = programs["lstm"]
    compiled(trained, "float32", tmp_path)
    (tmp_path / "own.c").write_text(
        """\
        #define MODEL_NO_MAIN
        #include "model.c"
        int main(void)
        {
            Model *m = model_open();
            model_seed(m, 3);
            model_step(m, 2);
            for (int n = 0; n < 20; n++) {
                const int id = model_sample(m, 1.0, 0, 1.0);
                printf("%d ", id);
                model_step(m, id);
            }
            return 0;
        }
        """
    )
    subprocess.run(["gcc", "-std=c99", "-Werror", "own.c", "-o", "own", "-lm"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "own"], capture_output=True, check=True, text=True)
    drawn = sample_text(trained.network, trained.vocabulary, "a", SamplingOptions(length=20, temperature=1.0), [3])
    text = "".join(piece for [piece] in drawn)
    assert [*map(int, done.stdout.split())] == trained.vocabulary.encode(text).tolist()
