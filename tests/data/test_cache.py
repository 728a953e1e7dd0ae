"""What stays between runs: found again, rebuilt when damaged, never half written, never elsewhere."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from charlm.data import cache as cache_module
from charlm.data.corpus import Corpus, encode_file
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError
from charlm.system.cache import BOUNDS, cache_folder
from tests.conftest import ROOT
from tests.corpora import load_corpus

TEXT = "abcé中😀" * 500
ENCODING = "encoding 3,000 characters over a vocabulary of 6"


def load(path: str, **options) -> Corpus:
    return load_corpus(path, split=(1.0, 0.0, 0.0), **options)


def ids_of(corpus: Corpus) -> list[int]:
    return corpus.splits["train"].tolist()


@pytest.fixture
def said(capsys):
    """The lines on stderr since the last call, without the text's path."""
    return lambda: [line.rpartition("text: ")[2] for line in capsys.readouterr().err.splitlines()]


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "corpora").iterdir())


def refused(call, *args, **options) -> str:
    with pytest.raises(DataError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_cached_text_is_not_encoded_again(write, said):
    path = write("text", TEXT)
    first = load(path)
    assert said() == [ENCODING]
    assert isinstance(first.splits["train"], np.memmap)
    assert not first.splits["train"].flags.writeable
    again, elsewhere = load(path), load(write("renamed", TEXT))
    assert said() == []
    assert again.vocabulary == elsewhere.vocabulary == first.vocabulary
    assert ids_of(again) == ids_of(elsewhere) == ids_of(first) == first.vocabulary.encode(TEXT).tolist()
    assert (again.sha256, again.size_bytes, again.files) == (first.sha256, first.size_bytes, first.files)


def test_another_text_level_or_vocabulary_is_another_entry(write):
    path = write("text", TEXT)
    assert load(path).vocabulary.decode(ids_of(load(path))) == TEXT
    backwards = Vocabulary("char", "".join(sorted(set(TEXT), reverse=True)))
    assert backwards.decode(ids_of(load(path, vocabulary=backwards))) == TEXT
    assert bytes(load(path, level="byte").splits["train"]).decode() == TEXT
    write("text", TEXT[::-1])  # of the same size, in the same place
    assert load(path).vocabulary.decode(ids_of(load(path))) == TEXT[::-1]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.chmod(0o666)])  # others could have written it
def test_an_entry_that_is_gone_or_not_safe_is_made_again(damage, write, cache, said):
    path = write("text", TEXT)
    first = ids_of(load(path))
    [file] = (cache / "corpora").iterdir()
    damage(file)
    said()
    assert ids_of(load(path)) == first
    assert said() == [ENCODING]
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(entries(cache)) == 1


def test_a_folder_that_others_could_write_to_is_refused(write, cache):
    text = write("text", TEXT)
    load(text)
    (cache / "corpora").chmod(0o777)
    assert refused(load, text).startswith(f"{cache}/corpora: the cache is not safe: others may write to it (chmod")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from Linux's /proc")
def test_processes_that_encode_a_large_text_at_once(tmp_path, cache):
    """They do not disturb one another, and their memory stays small beside the text."""
    text = "plain ASCII text\n" * 50_000 + "Ünïcode: ещё 中文 😀 text\n" * 5_000
    with (tmp_path / "large").open("wb") as file:
        for _ in range(100):
            file.write(text.encode())
    program = (
        "import re, sys; from tests.corpora import load_corpus\n"
        "def peak_kib(): return int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = peak_kib()\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "corpus = load_corpus(sys.argv[1])\n"
        "print(peak_kib() - before, sum(map(len, corpus.splits.values())), corpus.splits['train'][-1000:].tolist())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "large")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(2)]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate() for process in running]
    assert [line for _, error in answers for line in error.splitlines() if not line.startswith("data  ")] == []
    growths, lengths, ids = zip(*(output.split(maxsplit=2) for output, _ in answers), strict=True)
    assert max(map(int, growths)) * 1024 < 60e6
    assert set(lengths) == {str(100 * len(text))}
    assert len(set(ids)) == 1
    assert len(entries(cache)) == 1


def test_nothing_is_written_outside_the_cache(write, tmp_path, cache, monkeypatch):
    path = write("home/texts/text", TEXT)
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "home"))
    load(path)
    encode_file(path, Vocabulary("char", "abc"), skip_unknown=True)
    assert [entry for entry in tmp_path.rglob("*") if entry.is_file()] == [Path(path)]
    assert len(entries(cache)) == 2


def test_a_cache_that_cannot_be_written(write, monkeypatch):
    path = write("text", TEXT)
    monkeypatch.setenv("CHARLM_CACHE", path)
    assert refused(load, path) == (
        f"{path}/corpora: the cache cannot be written: Not a directory; any folder with room will do; "
        "name one in CHARLM_CACHE"
    )


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_run_that_ends_while_it_encodes_leaves_nothing_half_done(error, write, cache, monkeypatch):
    """A disk that is full for the ids, or Ctrl-C."""

    def fail(descriptor):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    path = write("text", TEXT)
    if isinstance(error, OSError):
        assert "the cache cannot be written: No space left on device; any folder with" in refused(load, path)
    else:
        with pytest.raises(KeyboardInterrupt):
            load(path)
    assert entries(cache) == []


def test_what_a_killed_encoding_has_left_goes_with_the_next(write, cache):
    """But not what another process may be writing at this moment."""
    folder = cache / "corpora"
    folder.mkdir(parents=True)
    old, new = folder / ".a.charlm.tmp", folder / ".b.charlm.tmp"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (0, 0))
    load(write("text", "some text"))
    assert (old.exists(), new.exists()) == (False, True)


@pytest.fixture
def bounded(cache, monkeypatch):
    """A cache of texts with room for two of 3,000 bytes, whose entries were all used long ago."""
    monkeypatch.setitem(BOUNDS, "corpora", 8_000)

    def age(hours: int) -> None:
        for path in (cache / "corpora").iterdir():
            if path.stat().st_mtime > time.time() - 1800:
                os.utime(path, (time.time() - hours * 3600,) * 2)

    return age


def test_above_its_bound_the_cache_loses_what_was_not_used_for_the_longest_time(bounded, write, said):
    paths = [write(f"text {letter}", letter * 3000) for letter in "abc"]
    for hours, path in ((9, paths[0]), (8, paths[1]), (7, paths[0]), (0, paths[2])):
        load(path)
        bounded(hours)
    said()
    load(paths[0])
    load(paths[2])
    assert said() == []
    load(paths[1])
    assert len(said()) == 1


def test_a_text_that_was_just_used_stays_and_one_that_goes_can_be_read_on(bounded, write, cache, monkeypatch, said):
    monkeypatch.setitem(BOUNDS, "corpora", 1)
    path = write("text", TEXT)
    corpus = load(path)
    [kept] = entries(cache)
    load(write("other", "abc"))
    assert kept in entries(cache)  # just used
    bounded(9)
    load(write("another", "abcd"))
    assert kept not in entries(cache)
    assert corpus.splits["train"].tolist() == corpus.vocabulary.encode(TEXT).tolist()


def test_a_text_that_is_removed_as_soon_as_it_is_written(write, monkeypatch):
    def remove(name):
        for path in cache_folder("corpora").glob("*.bin"):
            path.unlink()

    monkeypatch.setattr(cache_module, "limit_cache", remove)
    error = refused(load, write("text", TEXT))
    assert error.endswith(".bin: found no file where one was just written; was the cache cleared? start again")


@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: data[:50] + b"\xff" + data[51:]])
def test_a_damaged_entry_is_made_anew(write, cache, said, damage):
    path = write("text", TEXT)
    expected = ids_of(load(path))
    for entry in (cache / "corpora").iterdir():
        entry.write_bytes(damage(entry.read_bytes()))
    said()
    assert ids_of(load(path)) == expected
    assert said() == [ENCODING]
