"""How a separator becomes one symbol, wherever a file is cut into chunks."""

import pytest

from charlm.data.reading import RECORD_END, as_in_training

END = RECORD_END.encode()


def read(content: bytes, separator: str, size: int) -> bytes:
    chunks = [content[start : start + size] for start in range(0, len(content), size)]
    return b"".join(as_in_training(chunks, "byte", separator, "a test"))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("content", "separator", "expected"),
    [
        (b"one\ntwo", "\n", b"one\ntwo\n"),
        (b"one\r\ntwo\r\n", "\n", b"one\ntwo\n"),
        (b"one\ntwo\n~~~\nthree\n", "\n~~~\n", b"one\ntwo" + END + b"three" + END),
        (b"one\r\n~~~\r\ntwo\r\n~~~\r\n", "\n~~~\n", b"one" + END + b"two" + END),
        (b"one\n~~~\ntwo\n~~~", "\n~~~\n", b"one" + END + b"two" + END),
        (b"one\n~~\ntwo\n~", "\n~~~\n", b"one\n~~\ntwo" + END),
        (b"one\n~~~\n\n", "\n~~~\n", b"one" + END),
        (b"a|b||c", "||", b"a|b" + END + b"c" + END),
        ("a§b§".encode(), "§", b"a" + END + b"b" + END),
        (b"", "\n~~~\n", b""),
    ],
)
def test_every_record_gets_one_end(content, separator, expected, size):
    assert read(content, separator, size) == expected


@pytest.mark.parametrize("size", [1, 100])
def test_running_text_stays(size):
    assert read(b"one\r\n~~~\n\x1e", "", size) == b"one\r\n~~~\n\x1e"
