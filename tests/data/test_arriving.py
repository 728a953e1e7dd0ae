"""Lines of a file or pipe as they come."""

import errno
import io
import itertools
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from charlm.data import arriving
from charlm.data.arriving import Arriving, arriving_lines, as_in_training, open_arriving
from charlm.errors import DataError


class Pieces:
    """A file whose reads return these pieces, and wait at each None until `go` is called."""

    def __init__(self, *pieces: bytes | None) -> None:
        self._pieces, self._go = iter(pieces), threading.Semaphore(0)

    def go(self) -> None:
        self._go.release()

    def read(self, size: int) -> bytes:
        for piece in self._pieces:
            if piece is not None:
                return piece
            self._go.acquire()
        return b""


def test_a_line_comes_before_the_next_one_is_there():
    file = Pieces(b"one\ntw", None, b"o", None, b"\n", None, b"three")
    blocks = Arriving(file, "pipe").blocks()
    assert next(blocks) == b"one\n"
    file.go()
    file.go()
    assert next(blocks) == b"two\n"
    file.go()
    assert list(blocks) == [b"three"]


@pytest.fixture
def small(monkeypatch):
    """Blocks of 8 to 32 bytes."""
    monkeypatch.setattr(arriving, "MOST_BYTES", 32)
    monkeypatch.setattr(arriving, "_FEWEST_BYTES", 8)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_whole_lines_or_parts_of_a_long_one(seed):
    draw = np.random.default_rng(seed)
    lines = ["".join(draw.choice(["a", "é", "€", "𝄞"], size=draw.integers(0, (12, 90)[seed % 2]))) for _ in range(60)]
    data = "\n".join([*lines, ""][: 60 + seed % 3 // 2]).encode()
    cuts = np.sort(draw.integers(0, len(data), 30))
    pieces = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)]) if b > a]
    blocks = list(Arriving(Pieces(*pieces), "pipe").blocks())
    assert b"".join(blocks) == data
    for block in blocks[:-1]:
        assert len(block) <= 32
        if not block.endswith(b"\n"):
            assert len(block) >= 29
            assert b"\n" not in block
        block.decode("utf-8")


@pytest.mark.usefixtures("small")
def test_bytes_that_are_no_characters_do_not_stop_it():
    data = b"\xf0" * 100 + b"\x80" * 100 + b"\n" + b"\xff"
    assert b"".join(Arriving(Pieces(data), "pipe").blocks()) == data


@pytest.mark.usefixtures("small")
def test_it_reads_ahead_in_bounded_memory(monkeypatch):
    read = []
    monkeypatch.setattr(Pieces, "read", lambda self, size: read.append(1) or b"seven..\n")
    blocks = Arriving(Pieces(), "endless").blocks()
    for _ in range(50):
        assert len(next(blocks)) <= 32
    assert len(read) <= 2 * 32 // 8 + 3 + 50 * 4


@pytest.mark.usefixtures("small")
def test_blocks_grow_while_lines_wait():
    file = Pieces(b"seven..\n" * 40)
    sizes = [len(block) for block in Arriving(file, "pipe").blocks()]
    assert sizes[0] == 8
    assert max(sizes) == 32


def test_an_empty_input_has_no_blocks():
    assert list(Arriving(io.BytesIO(b""), "empty").blocks()) == []


def test_a_pipe(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as file:
        blocks = Arriving(file, "pipe").blocks()
        os.write(writing, b"one\ntwo")
        assert next(blocks) == b"one\n"
        os.write(writing, b"\n")
        assert next(blocks) == b"two\n"
        os.close(writing)
        assert list(blocks) == []


def test_a_pipe_in_non_blocking_mode():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb", buffering=0) as file:
        blocks = Arriving(file, "pipe").blocks()
        os.write(writing, b"one\n")
        assert next(blocks) == b"one\n"
        os.write(writing, b"two\n")
        assert next(blocks) == b"two\n"
        os.close(writing)
        assert list(blocks) == []


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(DataError, match=f"^{tmp_path}: Is a directory; allowed: a text file, or - for stdin$"):
        open_arriving(str(tmp_path))
    (tmp_path / "a.txt").write_bytes(b"one\n")
    assert list(open_arriving(str(tmp_path / "a.txt")).blocks()) == [b"one\n"]

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(DataError, match=r"^disk: Input/output error; allowed: "):
        list(Arriving(Broken(), "disk").blocks())


@pytest.mark.parametrize("most", [4, 1 << 20])
@pytest.mark.parametrize("text", ["", "\n", "a", "a\n", "\n\na\r\n\nébc\n", "é\nlonger than a block"])
def test_files(write, monkeypatch, most, text):
    monkeypatch.setattr(arriving, "MOST_BYTES", most)
    monkeypatch.setattr(arriving, "_FEWEST_BYTES", min(most, 1 << 14))
    file = str(write("a.txt", text))
    lines = [line for some in arriving_lines(file, "char", "text") for line in some]
    assert lines == (text.removesuffix("\n").split("\n") if text else [])


@pytest.mark.parametrize("most", [4, 1 << 20])
def test_a_byte_order_mark_is_dropped_from_text(write, monkeypatch, most):
    monkeypatch.setattr(arriving, "MOST_BYTES", most)
    monkeypatch.setattr(arriving, "_FEWEST_BYTES", min(most, 1 << 14))
    file = str(write("a.txt", b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n"))
    assert [line for some in arriving_lines(file, "char", "text") for line in some] == ["a", "\ufeffb"]
    assert [line for some in arriving_lines(file, "byte", "text") for line in some] == ["\ufeffa", "\ufeffb"]


def test_bytes_that_are_no_text(write):
    file = str(write("a.txt", b"a\nb\xff\n"))
    assert list(arriving_lines(file, "byte", "text")) == [["a", "b\udcff"]]
    with pytest.raises(DataError, match=r"a.txt: line 2: found no UTF-8 at byte 1 of the line; allowed: UTF-8"):
        list(arriving_lines(file, "char", "text"))


def test_no_file(tmp_path):
    with pytest.raises(DataError, match=r"none: No such file or directory; allowed: a text file, or - for stdin"):
        list(arriving_lines(str(tmp_path / "none"), "char", "text"))
    with pytest.raises(DataError, match="Is a directory"):
        list(arriving_lines(str(tmp_path), "char", "text"))


def test_lines_of_a_pipe_come_before_it_ends(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        lines = arriving_lines("-", "char", "text")
        pipe.write(b"one\ntwo\nthr")
        assert next(lines) == ["one", "two"]
        thread = threading.Thread(target=lambda: (pipe.write(b"ee\n"), pipe.close()))
        thread.start()
        assert list(lines) == [["three"]]
        thread.join()


@pytest.mark.parametrize("blocks", [[b"a\r\nb\r", b"\nc\rd\r", b"\r\ne\r"], [b"a\r\nb\r\nc\rd\r\r\ne\r"]])
def test_cr_lf_is_a_newline_where_lines_are_the_unit(blocks):
    assert b"".join(as_in_training(blocks, "char", "line", "x")) == b"a\nb\nc\rd\r\ne"
    assert list(as_in_training(blocks, "char", "text", "x")) == blocks
