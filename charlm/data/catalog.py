"""The texts that `charlm data fetch` knows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """A corpus on the web: a text file, or one member of a zip archive.

    `sha256` and `size` (bytes) describe the text, the `archive_…` fields the archive.
    """

    name: str
    url: str
    sha256: str
    size: int
    summary: str
    member: str = ""
    archive_sha256: str = ""
    archive_size: int = 0

    @property
    def filename(self) -> str:
        """The local name of the text."""
        return f"{self.name}.txt"

    @property
    def served_filename(self) -> str:
        """The local name of the file at the URL: the archive or the text."""
        return self.url.rpartition("/")[2] if self.member else self.filename

    @property
    def served_size(self) -> int:
        """Size in bytes of the file at the URL."""
        return self.archive_size if self.member else self.size


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
            member="text8",
            archive_sha256="a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
            archive_size=31_344_016,
        ),
        Download(
            name="enwik8",
            url="https://mattmahoney.net/dc/enwik8.zip",
            sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
            size=100_000_000,
            summary="the first 100 MB of English Wikipedia's XML of 2006, for byte-level models; CC BY-SA",
            member="enwik8",
            archive_sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
            archive_size=36_445_475,
        ),
    )
}
