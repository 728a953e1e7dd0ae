"""The texts that `charlm data fetch` knows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """A corpus on the web: a text file, or a zip archive whose one file is the text."""

    name: str
    url: str
    sha256: str
    """Of the text."""
    size: int
    """Bytes of the text."""
    summary: str

    @property
    def filename(self) -> str:
        """The local name of the text."""
        return f"{self.name}.txt"


CATALOG = {
    download.name: download
    for download in (
        Download(
            name="tinyshakespeare",
            url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            size=1_115_394,
            summary="40,000 lines of Shakespeare's plays; public domain",
        ),
        Download(
            name="text8",
            url="https://mattmahoney.net/dc/text8.zip",
            sha256="6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
            size=100_000_000,
            summary="English Wikipedia of 2006 reduced to a-z and space; CC BY-SA",
        ),
        Download(
            name="enwik8",
            url="https://mattmahoney.net/dc/enwik8.zip",
            sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
            size=100_000_000,
            summary="the first 100 MB of English Wikipedia's XML of 2006, for byte-level models; CC BY-SA",
        ),
    )
}
