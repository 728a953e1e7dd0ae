"""Characters ↔ ids. Symbols are Unicode code points, sorted, or bytes."""

import codecs
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from charlm.errors import CheckpointError, VocabularyError
from charlm.system.formatting import counted

Level = Literal["char", "byte"]
CODE_POINTS = 0x110000
UNKNOWN = np.uint32(0xFFFFFFFF)
OTHER = "\ufffd"
CodePoints = npt.NDArray[np.unsignedinteger[Any]]
Ids = npt.NDArray[np.integer[Any]]
_ALIKE = ("'’‘ʼ", '"“”„', "-‐‑–—−", " \u00a0\u202f")
"""Characters of a kind, of which a keyboard and a book have different ones."""


def describe_characters(characters: Iterable[str], limit: int = 8) -> str:
    """Quote characters with their code points for an error message: "'é' (U+00E9), …"."""
    listed = list(characters)
    shown = ", ".join(map(_described, listed[:limit]))
    return shown + (f" and {len(listed) - limit} more" if len(listed) > limit else "")


def never_seen(characters: Iterable[str]) -> str:
    """What messages say of characters that have no id: "'é' (U+00E9), which the model has never seen"."""
    return f"{describe_characters(characters)}, which the model has never seen"


def _described(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # "surrogateescape" makes these of bytes that are not UTF-8
        return f"byte 0x{ord(character) - 0xDC00:02X} (not UTF-8)"
    form = ", part of a letter in Unicode form NFD" if unicodedata.combining(character) else ""
    return f"{character!r} (U+{ord(character):04X}{form})"


def is_mark(character: str) -> bool:
    """Whether a character may be the later part of a letter of several: an accent, a vowel sign, a Hangul jamo."""
    return unicodedata.category(character).startswith("M") or "\u1160" <= character <= "\u11ff"


@dataclass(frozen=True)
class Vocabulary:
    """The symbols of a model in the order of their ids.

    level "char": `characters[i]` is the code point with id i
    level "byte": an id is the value of a byte, `characters` is empty, and the size is 256
    """

    level: Level
    characters: str = ""
    other: str = ""
    """The one of the characters that stands for all that have no id; "": none does."""

    def __len__(self) -> int:
        return 256 if self.level == "byte" else len(self.characters)

    @property
    def unit(self) -> Literal["character", "byte"]:
        """What a symbol is called."""
        return "byte" if self.level == "byte" else "character"

    @property
    def dtype(self) -> np.dtype:
        """The narrowest unsigned integer type that holds every id."""
        return np.min_scalar_type(max(len(self) - 1, 0))

    @functools.cached_property
    def id_of_code_point(self) -> npt.NDArray[np.uint32]:
        """A table [CODE_POINTS] from code point to id; UNKNOWN for code points without an id."""
        other = self.characters.index(self.other) if self.other else UNKNOWN
        table = np.full(CODE_POINTS, other, dtype=np.uint32)
        table[code_points(self.characters)] = np.arange(len(self.characters), dtype=np.uint32)
        return table

    @functools.cached_property
    def symbols(self) -> npt.NDArray[np.uint32]:
        """The code point, or the byte, of each id, [V]."""
        return (np.arange(256) if self.level == "byte" else code_points(self.characters)).astype(np.uint32)

    def unknown(self, text: Iterable[str]) -> str:
        """The distinct characters of `text` that have no id, sorted; none where `other` stands for them."""
        return "" if self.other else self.without_own_id(text)

    def without_own_id(self, text: Iterable[str]) -> str:
        """The distinct characters of `text` that are none of the vocabulary's, sorted."""
        if self.level == "byte":
            return ""
        return "".join(sorted(set(text) - self._own))

    @functools.cached_property
    def _own(self) -> frozenset[str]:
        return frozenset(self.characters)

    @functools.cached_property
    def substitutes(self) -> dict[str, str]:
        """For characters that have no id: one of their kind that has one."""
        found = {}
        for kind in _ALIKE:
            known = [character for character in kind if not self.without_own_id(character)]
            if known:
                found |= {character: known[0] for character in kind if character not in known}
        return found

    def familiar(self, text: str) -> str:
        """Translates a typed text into characters that have ids, if they mean the same. As in web/model/vocabulary.js.

        An accented letter may be one character or several; quotes, dashes and spaces may be typographic; newlines may
        be CR LF.
        """
        if not self.without_own_id(text):
            return text
        text = self.canonical(text)
        if self.without_own_id("\r"):
            text = text.replace("\r\n", "\n")
        if '"' in self.substitutes and not self.without_own_id("”"):
            text = re.sub(r'(?<=[^ \n\t])"', "”", text)
        return "".join(self.substitutes.get(character, character) for character in text)

    def canonical(self, text: str) -> str:
        """The text with letters that the model does not know in a Unicode form that it knows, NFC or NFD, if any."""
        unknown = self.without_own_id(text)
        if not unknown:
            return text

        @functools.cache
        def in_known_form(letter: str) -> str:
            forms = (letter, *(unicodedata.normalize(form, letter) for form in ("NFC", "NFD")))
            return next((form for form in forms if not self.without_own_id(form)), letter)

        marks = "".join(filter(is_mark, {*text}))
        letters = f".?[{marks}]+|[{re.escape(unknown)}]" if marks else f"[{re.escape(unknown)}]"
        return re.sub(letters, lambda match: in_known_form(match[0]), text, flags=re.DOTALL)

    def canonical_pattern(self, pattern: re.Pattern[str]) -> re.Pattern[str]:
        """A regular expression for `canonical` texts."""
        return re.compile(self.canonical(pattern.pattern), pattern.flags)

    def canonical_chunks(self, chunks: Iterable[str]) -> Iterator[str]:
        """The same for a text in chunks: no letter is cut at the end of one."""
        waiting = ""
        for chunk in chunks:
            text = waiting + chunk
            end = len(text) - 1
            while end > 0 and is_mark(text[end]):
                end -= 1
            yield self.canonical(text[:end])
            waiting = text[end:]
        yield self.canonical(waiting)

    def unknown_error(self, unknown: Iterable[str], where: str = "", ways_out: str = "") -> VocabularyError:
        """The error for characters that have no id. where: begins the message. ways_out: "; …" ends it."""
        start = f"{where}: " if where else ""
        allowed = f"allowed: its {counted(len(self), 'character')}"
        return VocabularyError(f"{start}found {never_seen(unknown)}; {allowed}{ways_out}")

    def encode(self, text: str) -> Ids:
        """The ids of `text`, [N], in the narrowest type; VocabularyError if a character has no id."""
        ids, is_known = self.ids_of(text)
        if not is_known.all():
            raise self.unknown_error(self.unknown(text))
        return ids.astype(self.dtype, copy=False)

    def ids_of(self, text: str) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """The ids of `text`, [N], and which of its characters have one."""
        if self.level == "byte":
            try:
                data = text.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as error:
                raise VocabularyError(f"U+{ord(text[error.start]):04X}: not a character; it has no bytes") from None
            return np.frombuffer(data, dtype=np.uint8), np.ones(len(data), bool)
        ids = self.id_of_code_point[code_points(text)]
        return ids, ids != UNKNOWN

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD, or lone surrogates with "surrogateescape"."""
        array = ids if isinstance(ids, np.ndarray) else np.array([*ids], np.int64)
        if self.level == "byte":
            return array.astype(np.uint8).tobytes().decode("utf-8", errors)
        return self.symbols[array].astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")

    def bytes_of(self, ids: Ids) -> bytes:
        """The text of `ids` in UTF-8, or the bytes themselves."""
        return ids.astype(np.uint8).tobytes() if self.level == "byte" else self.decode(ids).encode()

    def sizes(self, text: str) -> npt.NDArray[np.int64]:
        """How many ids each character of `text` has, [N]: 1, or at level "byte" its bytes in UTF-8.

        A byte that is not UTF-8 is a character of its own.
        """
        if self.level == "char":
            return np.ones(len(text), np.int64)
        codes = code_points(text).astype(np.int64)
        is_byte = (codes >= 0xDC80) & (codes <= 0xDCFF)
        return 1 + (codes >= 0x80) + np.where(is_byte, -1, (codes >= 0x800).astype(np.int64) + (codes >= 0x10000))

    def sums_of_characters(self, values: npt.NDArray[Any], text: str) -> npt.NDArray[Any]:
        """Values of the ids of a text, as one for each character: those of its bytes are added."""
        sizes = self.sizes(text)
        return np.add.reduceat(values, np.cumsum(sizes) - sizes) if text else values

    def extended(self, characters: str) -> "Vocabulary":
        """This vocabulary with more characters at its end; existing ids do not change."""
        return replace(self, characters=self.characters + characters)

    def never_drawn(self, ban: str) -> list[int]:
        """The ids of these characters and of `other`; VocabularyError for a letter that is several symbols."""
        if self.level == "byte" and not ban.isascii():
            raise VocabularyError(f"ban: found {ban!r}; allowed for a byte model: ASCII characters")
        ban = self.canonical(ban)
        for letter, mark in itertools.pairwise(ban):
            composed = unicodedata.normalize("NFC", letter + mark)
            if len(composed) == 1:
                fault = f"{composed!r}, which is two characters of this model"
                raise VocabularyError(f"ban: found {fault}; allowed: single characters; put the mark first")
        known = "".join(character for character in ban + self.other if not self.unknown(character))
        ids = sorted({*self.encode(known).tolist()})
        if len(ids) == len(self):
            raise VocabularyError("ban: found all characters of the model; allowed: some of them")
        return ids

    def to_json(self) -> dict[str, str]:
        """As a checkpoint holds it."""
        other = {"other": self.other} if self.other else {}
        return {"level": self.level, "characters": self.characters, **other}

    @classmethod
    def from_json(cls, value: object) -> "Vocabulary":
        """Invert `to_json`; CheckpointError for anything that `to_json` cannot have written."""
        match value:
            case {"level": "byte", "characters": ""}:
                return cls("byte")
            case {"level": "char", "characters": str(characters), **more} if characters:
                other = more.get("other", "")
                is_distinct = len(set(characters)) == len(characters)
                if other in ("", *characters) and is_distinct and not re.search("[\ud800-\udfff]", characters):
                    return cls("char", characters, other)
        raise CheckpointError("vocabulary: not a list of distinct characters")


def utf8_decoder() -> codecs.IncrementalDecoder:
    """Bytes → characters; a byte that is not UTF-8 becomes a character of its own, a lone surrogate."""
    return codecs.getincrementaldecoder("utf-8")("surrogateescape")


def code_points(text: str) -> CodePoints:
    """The code points of `text`, [N] uint8 or uint32. Lone surrogates (from undecodable arguments) are kept."""
    if text.isascii():
        return np.frombuffer(text.encode(), np.uint8)
    return np.array([text]).view(np.uint32)  # three times as fast as the utf-32 codec, which checks for surrogates
