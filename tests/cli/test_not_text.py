"""Errors for files that are not UTF-8 text, and for characters that a model has never seen, and their advice."""

import bz2
import gzip
import io
import lzma
import unicodedata
import zipfile

import pytest

from charlm.inference.loading import load
from tests.cli.conftest import train

ENGLISH = "the cat sat on the mat – ‘meow’.\n" * 300
CHINESE = "今天的天气很好，我们去公园散步。一二三四五六\n" * 300


def zipped() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("a.txt", ENGLISH)
    return data.getvalue()


UNPACK = "unpack it, or save it as plain text in its program"
KINDS = {
    "a.gz": (gzip.compress(ENGLISH.encode()), "a gzip file", UNPACK),
    "a.bz2": (bz2.compress(ENGLISH.encode()), "a bzip2 file", UNPACK),
    "a.xz": (lzma.compress(ENGLISH.encode()), "an xz file", UNPACK),
    "a.zst": (b"\x28\xb5\x2f\xfd\x04\x00", "a Zstandard file", UNPACK),
    "a.zip": (zipped(), "a zip archive or an office document", UNPACK),
    "a.doc": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a zip archive or an office document", UNPACK),
    "a.rtf": (rb"{\rtf1\ansi " + ENGLISH.encode("ascii", "ignore") + b"}", "an RTF document", UNPACK),
    "a.pdf": (b"%PDF-1.7\n" + ENGLISH.encode(), "a PDF document", UNPACK),
    **{
        codec: (ENGLISH.encode(codec), f"text in {name}", f"convert it: iconv -f {name} -t UTF-8 {{}} > utf8.txt")
        for codec in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")
        for name in [codec.upper().replace("-LE", "LE").replace("-BE", "BE")]
    },
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_is_said_for_what_it_is(cli, write, name):
    data, kind, advice = KINDS[name]
    path = write(name, data)
    assert cli("data", "info", path).error == f"{path}: found {kind}; allowed: text in UTF-8; {advice.format(path)}"
    assert cli("data", "info", path, "--level", "byte").code == 0


@pytest.mark.parametrize("text", ["MZ, BZh and RIFF begin files", "a b\0c\n" * 900, "0\0\n" * 900, ENGLISH + CHINESE])
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
