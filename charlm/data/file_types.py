"""Files that are no text in UTF-8, said for what they are: compressed, documents, pictures, UTF-16."""

import codecs
import shlex
from pathlib import Path

from charlm.errors import DataError

HEAD_BYTES = 4096
"""As much of a file's beginning is looked at."""

_ALLOWED = "allowed: text in UTF-8"
_SAVE = "open it in its program and save it as plain text (UTF-8)"
_NO_TEXT = "take another file"
_OFFICE = "an Office document (docx, xlsx or pptx)"
_FORMS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"\x1f\x8b", "a gzip file", "unpack it: gunzip -k {}"),
    (0, b"BZh", "a bzip2 file", "unpack it: bunzip2 -k {}"),
    (0, b"\xfd7zXZ\x00", "an xz file", "unpack it: unxz -k {}"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard file", "unpack it: unzstd {}"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"),
    (0, b"Rar!\x1a\x07", "a RAR archive", "unpack it"),
    (257, b"ustar", "a tar archive", "unpack it: tar -xf {}"),
    (30, b"mimetypeapplication/epub", "an EPUB book", _SAVE),
    (30, b"mimetypeapplication/vnd.oasis", "an OpenDocument file", _SAVE),
    *((30, name, _OFFICE, _SAVE) for name in (b"[Content_Types].xml", b"_rels/", b"word/", b"xl/", b"ppt/")),
    (0, b"PK\x03\x04", "a zip archive", "unpack it: unzip {}"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office document (doc, xls or ppt)", _SAVE),
    (0, b"%PDF-", "a PDF document", "take its text: pdftotext {}"),
    (0, b"{\\rtf", "an RTF document", _SAVE),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG picture", _NO_TEXT),
    (0, b"\xff\xd8\xff", "a JPEG picture", _NO_TEXT),
    (0, b"SQLite format 3\x00", "an SQLite database", "write its text to a file"),
    (5, b'\x00\x00\x00{"', "a safetensors file (weights)", _NO_TEXT),
    (0, b"\x7fELF", "a program or library (ELF)", _NO_TEXT),
    (0, b"MZ", "a program for Windows", _NO_TEXT),
)
"""Where a file has these bytes, what it is then, and what to do with it."""
_MARKS = {  # UTF-32 first: its mark begins with that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_LEAST_COMMON = 0.1
"""Text in UTF-8 may hold null characters: it is taken for UTF-16 if more than this share is common characters there."""


def check_text(name: str | Path, head: bytes) -> None:
    """DataError if a file that begins with `head` is of a known kind that is no text in UTF-8.

    name: of the file, or "stdin".
    """
    head, is_utf8 = head[:HEAD_BYTES], True
    try:
        codecs.utf_8_decode(head, "strict", False)  # a character may be cut at the end
    except UnicodeDecodeError:
        is_utf8 = False
    if is_utf8 and b"\x00" not in head and not head.startswith((b"%PDF-", b"{\\rtf")):
        return
    kind, advice = next(((kind, advice) for at, magic, kind, advice in _FORMS if head.startswith(magic, at)), ("", ""))
    if not kind and (encoding := _encoding(head, _LEAST_COMMON if is_utf8 else 0.0)):
        kind, advice = f"text in {encoding}", f"convert it: iconv -f {encoding} -t UTF-8 {{}} > utf8.txt"
    if kind:
        advice = advice.partition(":")[0] if name == "stdin" else advice.format(shlex.quote(str(name)))
        raise DataError(f"{name}: found {kind}; {_ALLOWED}; {advice}")


def _encoding(head: bytes, least_common: float) -> str | None:
    """The encoding of text in UTF-16 or UTF-32, with a byte order mark or without; None for anything else."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    common = {encoding: _common(head, encoding) for encoding in ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")}
    best = max(common, key=common.__getitem__)
    return best if common[best] > least_common else None


def _common(head: bytes, encoding: str) -> float:
    """Share of characters below U+0100 in this encoding; 0 for what is no text with blanks or line ends."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return 0.0
    odd = sum(not (c.isprintable() or c.isspace()) for c in text)
    if odd > len(text) // 100 or not {" ", "\n"} & set(text):
        return 0.0
    return sum(c < "\u0100" for c in text) / len(text)
