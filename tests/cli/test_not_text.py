"""Errors for files that are not UTF-8 text, and for characters that a model has never seen, and their advice."""

import bz2
import gzip
import io
import lzma
import unicodedata
import zipfile

import pytest

from charlm.inference import load
from tests.cli.conftest import train

ENGLISH = "the cat sat on the mat – ‘meow’.\n" * 300
CHINESE = "今天的天气很好，我们去公园散步。一二三四五六\n" * 300


def packed(*names: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            archive.writestr(name, ENGLISH)
    return data.getvalue()


SAVE = "open it in its program and save it as plain text (UTF-8)"
CONVERT = "convert it: iconv -f"
OFFICE = "an Office document (docx, xlsx or pptx)"
KINDS = {
    "a.gz": (gzip.compress(ENGLISH.encode()), "a gzip file", "unpack it: gunzip -k {}"),
    "a.bz2": (bz2.compress(ENGLISH.encode()), "a bzip2 file", "unpack it: bunzip2 -k {}"),
    "a.xz": (lzma.compress(ENGLISH.encode()), "an xz file", "unpack it: unxz -k {}"),
    "a.zst": (b"\x28\xb5\x2f\xfd\x04\x00", "a Zstandard file", "unpack it: unzstd {}"),
    "a.zip": (packed("a.txt"), "a zip archive", "unpack it: unzip {}"),
    "a.docx": (packed("[Content_Types].xml"), OFFICE, SAVE),
    **{f"{name}.zip": (packed(f"{name}/a", "[Content_Types].xml"), OFFICE, SAVE) for name in ("_rels", "word", "ppt")},
    "a.rtf": (rb"{\rtf1\ansi " + ENGLISH.encode("ascii", "ignore") + b"}", "an RTF document", SAVE),
    "a.pdf": (b"%PDF-1.7\n" + ENGLISH.encode(), "a PDF document", "take its text: pdftotext {}"),
    "a.png": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "a PNG picture", "take another file"),
    "a.sqlite": (b"SQLite format 3\x00\x10\x00", "an SQLite database", "write its text to a file"),
    "a.safetensors": (b'\x40\x88\0\0\0\0\0\0{"decoder.bias":', "a safetensors file (weights)", "take another file"),
    "a.elf": (b"\x7fELF\x02\x01\x01" + bytes(9), "a program or library (ELF)", "take another file"),
    **{
        f"{len(text)}.{codec}": (
            text.encode(codec),
            f"text in {name}",
            f"convert it: iconv -f {name} -t UTF-8 {{}} > utf8.txt",
        )
        for text in (ENGLISH, CHINESE)
        for codec in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
        for name in [codec.upper().replace("-LE", "LE").replace("-BE", "BE")]
    },
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_is_said_for_what_it_is(cli, write, name):
    data, kind, advice = KINDS[name]
    path = write(name, data)
    assert cli("data", "info", path).error == f"{path}: found {kind}; allowed: text in UTF-8; {advice.format(path)}"
    assert cli("data", "info", path, "--level", "byte").code == 0


@pytest.mark.parametrize("text", ["MZ, BZh and RIFF begin files", "a b\0c\n" * 900, "x\0" * 900, ENGLISH + CHINESE])
def test_text_is_text(cli, write, text):
    assert cli("data", "info", write("a.txt", text)).code == 0


# Characters


@pytest.fixture(scope="module", params=["NFC", "NFD"])
def accents(request, tmp_path_factory, compiled):
    """A run on a text whose letters with accents are one character each, or two; and the other form of them."""
    text = unicodedata.normalize(request.param, "Café à la carte.\n") * 300
    known, other = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    run = train(tmp_path_factory.mktemp("accents"), text, "train.max_steps=1")
    return (run, known, other) if request.param == "NFC" else (run, other, known)


def test_a_prompt_takes_the_form_of_the_text(cli, accents):
    run, known, other = accents
    expected = cli("sample", run, "--prompt", f"Caf{known}", "--seed", 1).out
    assert expected.startswith(f"Caf{known}")
    assert cli("sample", run, "--prompt", f"Caf{other}", "--seed", 1).out == expected
    assert cli("next", run, "--prompt", other).out == cli("next", run, "--prompt", known).out
    model = load(run, "cpu")
    assert model.sample(other, length=9, seed=1) == model.sample(known, length=9, seed=1)
    assert model.sample(length=99, seed=1, stop=other) == model.sample(length=99, seed=1, stop=known)
    assert model.next(other) == model.next(known)


def test_a_text_to_score_names_the_other_form(cli, accents, write):
    run, known, other = accents
    how = ("one character: normalize the text to NFC", "several characters: normalize the text to NFD")[len(known) - 1]
    advice = f"; the model knows 'é' as {how}"
    path = write("a.txt", f"Caf{other}")
    assert cli("eval", run, "--file", path).error.partition(advice)[1]
    assert cli("score", run, path).error.partition(advice)[1]
    assert cli("score", run, "-", stdin=f"Caf{other}".encode()).error.endswith(advice)
    assert cli("score", run, path).error.endswith(advice)


@pytest.mark.parametrize(
    ("prompt", "advice"),
    [("so’", ""), ("so.…", "; replace … with ..."), ("so\u00a0it", "; replace U+00A0 with a space"), ("é😀", "")],
)
def test_only_a_typographic_form_of_a_known_character_is_replaced(cli, trained_run, prompt, advice):
    """The model knows the full stop and the space, and no quotation marks."""
    assert cli("sample", trained_run, "--prompt", prompt).error.endswith(f"its 14 characters{advice}")


def test_a_backslash_that_the_shell_has_passed(cli, trained_run):
    for option in ("--prompt", "--stop"):
        assert cli("sample", trained_run, option, r"so\nit").error == (
            rf"{option}: found \n as a backslash and a letter, and the model has never seen a backslash; allowed: the "
            rf"character itself; in a shell: {option} $'…\n…'"
        )
