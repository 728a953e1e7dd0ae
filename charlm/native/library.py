"""A library of kernels, and why there is none."""

import ctypes
import hashlib
from dataclasses import dataclass
from pathlib import Path

from charlm.native.structs import Struct


class KernelError(Exception):
    """A short reason why this machine cannot run a kernel."""


@dataclass(eq=False)
class Library:
    """A C++ file to compile, with the text that follows it."""

    source: Path
    structs: tuple[Struct, ...]
    """The structs through which it is called. The library exports their layout."""
    name: str
    text: str = ""
    """C++ that follows the source."""

    @property
    def code(self) -> str:
        """All that follows the source: the text, and the layouts of the structs."""
        return "\n".join([self.text, *(struct.layout_code for struct in self.structs)])

    @property
    def digest(self) -> str:
        """Identifies what is compiled: the source, the headers beside it, and the code."""
        headers = sorted(self.source.parent.glob("*.h"))
        texts = [file.read_bytes() for file in (*headers, self.source)]
        return hashlib.sha256(b"\0".join([*texts, self.code.encode()])).hexdigest()[:16]

    def checked(self, opened: ctypes.CDLL) -> ctypes.CDLL | KernelError:
        """The library as it was opened, if its structs have the layout that Python uses."""
        for struct in self.structs:
            if not struct.fits(opened):
                return KernelError(f"the compiler lays out struct {struct.name} of {struct.file.name} in another way")
        return opened


Outcomes = dict[Library, ctypes.CDLL | KernelError]
"""For each library what it became."""
