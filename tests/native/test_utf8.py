"""The kernel decodes and refuses what Python's decoder does."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from charlm.data import corpus
from charlm.errors import DataError
from charlm.native import utf8
from charlm.native.utf8 import MUCH_BYTES, decode, decode_much, decoder

pytestmark = pytest.mark.usefixtures("kernels")

FIRST = [0x00, 0x41, 0x7F, 0x80, 0xBF, *range(0xC0, 0x100)]
NEXT = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF]

PIECES = st.one_of(st.text().map(str.encode), st.text("aé中😀").map(str.encode), st.binary(max_size=5))


@pytest.fixture(scope="module", autouse=True)
def _forget_whether_there_is_a_kernel():
    utf8._kernel.cache_clear()
    yield
    utf8._kernel.cache_clear()


def outcome(decode, data: bytes) -> tuple:
    """Code points and bytes used; or where the decoder fails, counted from the end, and why."""
    try:
        codes, used = decode(data)
    except UnicodeDecodeError as error:
        return len(error.object) - error.start, error.reason
    assert codes.dtype == np.uint32
    return codes.tolist(), used


def needs_the_kernel() -> None:
    if utf8._kernel() is None:
        pytest.skip("no C++ compiler")


@settings(max_examples=1000, deadline=None)
@given(
    st.lists(PIECES).map(b"".join),
    st.integers(0, 4),
)
@example(b"", 0)
@example(b"abcdefgh" * 3 + b"\x80", 0)
@example("abcdefgé".encode(), 1)
def test_any_bytes_cut_anywhere(data, cut):
    needs_the_kernel()
    data = data[: len(data) - cut]
    assert outcome(decode_much, data) == outcome(decode, data)


def test_every_code_point():
    needs_the_kernel()
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    data = "".join(map(chr, codes)).encode()
    assert outcome(decode_much, data) == (codes, len(data))


@pytest.mark.parametrize("after", [b"", b"a", b"a" * 16, "é".encode()])
def test_every_sort_of_sequence(after):
    needs_the_kernel()
    for length in range(1, 5):
        for first, *others in itertools.product(FIRST, *[NEXT] * (length - 1)):
            data = bytes([first, *others]) + after
            assert outcome(decode_much, data) == outcome(decode, data), data


def test_a_large_text_is_decoded_by_the_kernel():
    assert decoder(MUCH_BYTES) is decode_much
    assert decoder(MUCH_BYTES - 1) is decode


def test_a_corpus_is_the_same(write, chunk_bytes, monkeypatch):
    text = "Abc é中😀\n" * 50
    path = write("text", text)
    with monkeypatch.context() as patch:
        patch.setattr(utf8, "MUCH_BYTES", 0)
        loaded = corpus.load_corpus(path, level="char", split=(1.0, 0.0, 0.0))
    assert loaded.vocabulary.decode(loaded.splits["train"]) == text


def test_a_fault_is_named_with_its_offset(write, chunk_bytes, monkeypatch):
    path = write("text", "é中😀 tail".encode() + b"\xe4\xbdx")
    messages = []
    for size in (0, MUCH_BYTES):
        monkeypatch.setattr(utf8, "MUCH_BYTES", size)
        with pytest.raises(DataError) as caught:
            corpus.survey_source(path, "char")
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "byte 0xE4 at offset 14 is not UTF-8 (invalid continuation byte)" in messages[0]


def test_without_a_compiler_python_decodes(monkeypatch):
    monkeypatch.setattr(utf8, "_kernel", lambda: None)
    assert outcome(decode_much, "é中\n".encode()) == ([0xE9, 0x4E2D, 0x0A], 6)
