"""Downloads of archives."""

from dataclasses import replace
from pathlib import Path

import pytest

from charlm.data.fetch import Download, fetch
from tests.data.server import ARCHIVE, CUT, TEXT, Answer, Server, failure, names, sha256, zipped


def test_member_is_extracted_and_the_archive_removed(server: Server, archive: Download, tmp_path: Path) -> None:
    assert fetch(archive, tmp_path, progress=False).read_bytes() == TEXT
    assert names(tmp_path) == ["corpus.txt"]
    assert server.ranges == [None]


def test_cut_archive_resumes(server: Server, archive: Download, tmp_path: Path) -> None:
    server.answers = [Answer(ARCHIVE, cut=CUT), Answer(ARCHIVE)]
    assert fetch(archive, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == [None, f"bytes={CUT}-"]
    assert names(tmp_path) == ["corpus.txt"]


def test_archive_of_unknown_size(server: Server, archive: Download, tmp_path: Path) -> None:
    unsized = replace(archive, archive_size=None)
    (tmp_path / "corpus.zip.part").write_bytes(ARCHIVE + b"!")
    assert fetch(unsized, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == [f"bytes={len(ARCHIVE) + 1}-", None]


def test_archive_put_there_by_hand_is_used_and_kept(server: Server, archive: Download, tmp_path: Path) -> None:
    (tmp_path / "corpus.zip").write_bytes(ARCHIVE)
    assert fetch(archive, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == []
    assert names(tmp_path) == ["corpus.txt", "corpus.zip"]


def test_wrong_archive_put_there_by_hand_is_refused_and_kept(server: Server, archive: Download, tmp_path: Path) -> None:
    (tmp_path / "corpus.zip").write_bytes(b"another")
    assert failure(archive, tmp_path) == (
        f"{tmp_path / 'corpus.zip'}: SHA-256 is {sha256(b'another')}; corpus.zip has "
        f"{archive.archive_sha256}; move or delete the file, then run the command again"
    )
    assert names(tmp_path) == ["corpus.zip"]


def test_wrong_archive_is_removed(server: Server, archive: Download, tmp_path: Path) -> None:
    wrong = zipped("corpus", TEXT[::-1])
    server.answers = [Answer(wrong)]
    assert failure(archive, tmp_path) == (
        f"{archive.url}: SHA-256 is {sha256(wrong)}; {archive.archive_sha256} is expected; "
        "charlm removed the file; run the command again"
    )
    assert names(tmp_path) == []


def test_wrong_member_is_removed(server: Server, archive: Download, tmp_path: Path) -> None:
    wrong = replace(archive, sha256=sha256(b"something else"))
    assert failure(wrong, tmp_path) == (
        f"{archive.url}: corpus: SHA-256 is {sha256(TEXT)}; {wrong.sha256} is expected; "
        "charlm removed the file; run the command again"
    )
    assert "corpus.txt.part" not in names(tmp_path)


def test_interrupted_extraction_leaves_no_half_file_and_needs_no_new_download(
    server: Server, archive: Download, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(archive, tmp_path, progress=False)
    assert names(tmp_path) == ["corpus.zip.part"]
    assert fetch(archive, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == [None]
    assert names(tmp_path) == ["corpus.txt"]
