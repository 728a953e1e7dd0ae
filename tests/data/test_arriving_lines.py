"""Lines as they arrive."""

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from charlm.data import arriving_lines as module
from charlm.data.arriving_lines import arriving_lines
from charlm.errors import DataError


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
@pytest.mark.parametrize("text", ["", "\n", "a", "a\n", "\n\na\r\n\nébc\n", "é\nlonger than a block"])
def test_files(write, monkeypatch, block, text):
    monkeypatch.setattr(module, "_BLOCK", block)
    file = Path(write("a.txt", text))
    lines = [line for some in arriving_lines(file, "char") for line in some]
    assert lines == (text.removesuffix("\n").split("\n") if text else [])


@pytest.mark.parametrize("block", [1, 1 << 16])
def test_a_byte_order_mark_is_dropped_from_text(write, monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    file = Path(write("a.txt", b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n"))
    assert [line for some in arriving_lines(file, "char") for line in some] == ["a", "\ufeffb"]
    assert [line for some in arriving_lines(file, "byte") for line in some] == ["\ufeffa", "\ufeffb"]


def test_bytes_that_are_no_text(write):
    file = Path(write("a.txt", b"a\nb\xff\n"))
    assert list(arriving_lines(file, "byte")) == [["a", "b\udcff"]]
    with pytest.raises(DataError, match=r"a.txt: line 2: found no UTF-8 at byte 1 of the line; allowed: UTF-8"):
        list(arriving_lines(file, "char"))


def test_no_file(tmp_path):
    with pytest.raises(DataError, match=r"none: No such file or directory; allowed: a text file, or - for stdin"):
        list(arriving_lines(tmp_path / "none", "char"))
    with pytest.raises(DataError, match="Is a directory"):
        list(arriving_lines(tmp_path, "char"))


def test_lines_of_a_pipe_come_before_it_ends(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        lines = arriving_lines(Path("-"), "char")
        pipe.write(b"one\ntwo\nthr")
        assert next(lines) == ["one", "two"]
        thread = threading.Thread(target=lambda: (pipe.write(b"ee\n"), pipe.close()))
        thread.start()
        assert list(lines) == [["three"]]
        thread.join()
