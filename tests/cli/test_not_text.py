"""Errors for files that are not UTF-8 text, and for characters that a model has never seen, and their advice."""

import bz2
import gzip
import io
import lzma
import zipfile

import pytest

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
