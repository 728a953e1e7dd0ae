"""Compressed texts are read as they are; archives are refused with what is in them."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest

from charlm.data.counting import count_source
from charlm.errors import DataError
from tests.text import words_text

TEXT = words_text(5000)


@pytest.mark.parametrize(
    ("ending", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_a_compressed_text_is_read(write, ending, compress):
    plain = count_source(write("a.txt", TEXT), "char")
    packed = compress(TEXT.encode())
    found = count_source(write(f"a.txt{ending}", packed), "char")
    assert (found.length, found.sha256) == (plain.length, plain.sha256)
    with pytest.raises(DataError):
        count_source(write(f"cut{ending}", packed[: len(packed) // 2]), "char")


def test_archives_are_named(write, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("poems.txt", TEXT)
    with pytest.raises(DataError, match=r"a zip archive .* with poems\.txt; allowed"):
        count_source(str(tmp_path / "a.zip"), "char")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(write("poems.txt", TEXT), "poems.txt")
    with pytest.raises(DataError, match="a tar archive"):
        count_source(write("poems.tar.gz", packed.getvalue()), "char")
