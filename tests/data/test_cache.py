"""What is kept between runs: found again, rebuilt when damaged, never half written, never elsewhere."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from charlm.data import reading, survey
from charlm.data.corpus import Corpus, encode, encode_file, load_corpus, unknown_characters
from charlm.data.survey import survey_source
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError
from charlm.system.cache import cache_dir, make_cache_folder, who_else_writes

ROOT = Path(reading.__file__).parents[2]
TEXT = "abcé中😀" * 500


def load(path: str, **options) -> Corpus:
    return load_corpus(path, level="char", split=(1.0, 0.0, 0.0), **options)


def ids_of(corpus: Corpus) -> list[int]:
    return corpus.splits["train"].tolist()


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "corpora").iterdir())


def refused(call, *args) -> str:
    with pytest.raises(DataError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_cached_text_is_neither_decoded_nor_encoded_again(write, monkeypatch, capsys):
    path = write("text", TEXT)
    first = load(path)
    assert capsys.readouterr().err.splitlines() == [
        f"data     {path}: reading 6 kB in 1 file",
        f"data     {path}: encoding 3,000 characters over a vocabulary of 6",
    ]

    monkeypatch.setattr(survey, "read_symbols", lambda *_: pytest.fail("decoded again"))
    again = load(path)
    elsewhere = load(write("renamed", TEXT))
    assert capsys.readouterr().err == ""
    assert again.vocabulary == elsewhere.vocabulary == first.vocabulary
    assert ids_of(again) == ids_of(elsewhere) == ids_of(first) == first.vocabulary.encode(TEXT).tolist()
    assert (again.sha256, again.size_bytes, again.files) == (first.sha256, first.size_bytes, first.files)


def test_a_new_text_is_decoded_once(write, monkeypatch):
    def read_symbols(path, *arguments):
        decoded.append(str(path))
        return reading.read_symbols(path, *arguments)

    decoded: list[str] = []
    monkeypatch.setattr(survey, "read_symbols", read_symbols)
    paths = [write("text", TEXT), write("valid", TEXT[::-1])]
    corpus = load(paths[0], valid_source=paths[1])
    assert decoded == paths
    assert corpus.vocabulary.decode(corpus.splits["valid"]) == TEXT[::-1]
    path = write("evaluated", TEXT + "z")
    encode_file(path, corpus.vocabulary, skip_unknown=True)
    assert decoded == [*paths, path]


def test_another_text_level_or_vocabulary_is_another_entry(write):
    path = write("text", TEXT)
    assert load(path).vocabulary.decode(ids_of(load(path))) == TEXT
    backwards = Vocabulary("char", "".join(sorted(set(TEXT), reverse=True)))
    assert backwards.decode(ids_of(load(path, vocabulary=backwards))) == TEXT
    as_bytes = load_corpus(path, level="byte", split=(1.0, 0.0, 0.0))
    assert bytes(as_bytes.splits["train"]).decode() == TEXT
    write("text", TEXT[::-1])  # of the same size, in the same place
    assert load(path).vocabulary.decode(ids_of(load(path))) == TEXT[::-1]


def test_an_entry_is_a_plain_npy_file(write, cache):
    corpus = load(write("text", TEXT))
    arrays = [np.load(path, mmap_mode="r") for path in (cache / "corpora").glob("*.npy")]
    (ids,) = [array for array in arrays if array.ndim == 1]
    assert ids.tolist() == ids_of(corpus)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


def flip_the_last_bit(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_another_array(path: Path) -> None:
    np.save(path.with_suffix(".npy"), np.zeros(3, np.uint8))


def replace_by_other_json(path: Path) -> None:
    path.write_text(json.dumps([1, 2]))


@pytest.mark.parametrize(
    "damage", [truncate, flip_the_last_bit, empty, replace_by_another_array, replace_by_other_json, Path.unlink]
)
@pytest.mark.parametrize("suffix", [".npy", ".json"])
@pytest.mark.parametrize("kind", ["survey", "ids"])
def test_a_damaged_entry_is_rebuilt(damage, suffix, kind, write, cache, capsys):
    path = write("text", TEXT)
    first = ids_of(load(path))
    dashes = {"survey": 1, "ids": 2}[kind]
    (damaged,) = [e for e in (cache / "corpora").iterdir() if e.name.count("-") == dashes and e.suffix == suffix]
    intact = damaged.read_bytes()
    damage(damaged)

    capsys.readouterr()
    assert ids_of(load(path)) == first
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines] == [{"survey": "reading", "ids": "encoding"}[kind]]
    assert damaged.read_bytes() == intact
    assert len(entries(cache)) == 4


def test_processes_that_encode_at_once_do_not_disturb_one_another(write, tmp_path, cache):
    path = write("text", TEXT * 300)
    program = (
        "import hashlib, sys; from charlm.data.corpus import load_corpus\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "corpus = load_corpus(sys.argv[1], level='char', split=(1.0, 0.0, 0.0))\n"
        "print(hashlib.sha256(corpus.splits['train']).hexdigest())"
    )
    command = [sys.executable, "-c", program, path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(3)]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate() for process in running]
    assert [line for _, error in answers for line in error.splitlines() if not line.startswith("data  ")] == []
    assert len({output for output, _ in answers}) == 1
    assert len(answers[0][0]) == 65
    assert len(entries(cache)) == 4
    assert load(path).vocabulary.decode(ids_of(load(path))) == TEXT * 300


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from Linux's /proc")
def test_memory_stays_small_beside_the_text(tmp_path, cache):
    text = "plain ASCII text\n" * 50_000 + "Ünïcode: ещё 中文 😀 text\n" * 5_000
    with (tmp_path / "large").open("wb") as file:
        for _ in range(100):
            file.write(text.encode())
    program = (
        "import re, sys, torch; from charlm.data.corpus import load_corpus\n"
        "def peak_kib(): return int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = peak_kib()\n"
        "corpus = load_corpus(sys.argv[1], level='char', split=(0.9, 0.05, 0.05))\n"
        "print(peak_kib() - before, sum(map(len, corpus.splits.values())))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "large")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    growth_kib, characters = map(int, done.stdout.split())
    assert characters == 100 * len(text)
    assert growth_kib * 1024 < 60e6


def test_nothing_is_written_outside_the_cache(write, tmp_path, cache, monkeypatch):
    path = write("home/texts/text", TEXT)
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "home"))
    load(path)
    encode_file(path, Vocabulary("char", "abc"), skip_unknown=True)
    assert [entry for entry in tmp_path.rglob("*") if entry.is_file()] == [Path(path)]
    assert len(entries(cache)) == 6


@pytest.mark.parametrize("path", ["folder", "entry"])
def test_an_entry_that_others_could_have_written_is_not_read(write, cache, path, capsys):
    text = write("text", TEXT)
    first = load(text)
    folder = cache / "corpora"
    for place in [folder] if path == "folder" else folder.iterdir():
        place.chmod(0o777)
    assert (who_else_writes(folder) != "") == (path == "folder")
    capsys.readouterr()
    assert ids_of(load(text)) == ids_of(first)
    told = capsys.readouterr().err
    assert "encoding 3,000 characters" in told
    assert (f"cache    {folder}: not used, because others may write to it" in told) == (path == "folder")
    load(text)
    assert capsys.readouterr().err == ""


def test_who_else_writes(tmp_path, monkeypatch):
    assert who_else_writes(tmp_path) == ""
    tmp_path.chmod(0o770)
    assert who_else_writes(tmp_path) == "others may write to it (chmod go-w changes that)"
    tmp_path.chmod(0o700)
    if os.getuid() == 0:
        os.chown(tmp_path, 1, -1)
    else:
        monkeypatch.setattr("os.getuid", lambda: 1)
    assert who_else_writes(tmp_path) == "it belongs to another user"


def test_a_folder_that_another_user_creates_at_the_same_time_is_not_used(cache, monkeypatch, capsys):
    def too_late(folder, **options):
        os.makedirs(folder)  # noqa: PTH103
        folder.chmod(0o777)

    cache.mkdir(parents=True)
    monkeypatch.setattr(Path, "mkdir", too_late)
    found = make_cache_folder("attacked")
    assert found != cache / "attacked"
    assert who_else_writes(found) == ""
    assert f"cache    {cache / 'attacked'}: not used, because others may write to it" in capsys.readouterr().err


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("CHARLM_CACHE", "/here")
    assert cache_dir() == Path("/here")
    monkeypatch.setenv("CHARLM_CACHE", "")
    assert cache_dir() == Path("/xdg/charlm")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_dir() == Path("/home/ada/.cache/charlm")


def test_a_user_without_a_home(monkeypatch):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("CHARLM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert refused(cache_dir) == "cache: this user has no home folder; any folder will do; name one in CHARLM_CACHE"


def test_a_cache_that_cannot_be_written(write, monkeypatch):
    path = write("text", TEXT)
    monkeypatch.setenv("CHARLM_CACHE", path)
    assert refused(load, path) == (
        f"{path}/corpora: the cache cannot be written: Not a directory; any folder with room will do; "
        "name one in CHARLM_CACHE"
    )


def test_a_full_disk_leaves_nothing_behind(write, cache, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device; any folder with room will do" in refused(load, write("text", TEXT))
    assert entries(cache) == []


def without_a_thread_left(error: type[BaseException], call, *args) -> str:
    before = threading.active_count()
    with pytest.raises(error) as caught:  # it keeps the frames of the call alive
        call(*args)
    assert threading.active_count() == before
    return str(caught.value)


def failing_at_an_id(monkeypatch, fail) -> None:
    """Calls `fail` in the background, when the third id is written, with the text read byte by byte."""

    def crc32_of(data, *checksum):
        if len(data) == 1 and next(written) == 3:
            fail()
        return crc32(data, *checksum)

    crc32, written = zlib.crc32, itertools.count(1)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 1)
    monkeypatch.setattr(zlib, "crc32", crc32_of)


def encode_again(path: str):
    return encode(survey_source(path, "char"), Vocabulary("char", "abcé中😀"))


@pytest.mark.parametrize("call", [load, encode_again])
def test_a_disk_that_is_full_for_the_ids(call, write, cache, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    path = write("text", TEXT)
    failing_at_an_id(monkeypatch, full)
    assert "the cache cannot be written: No space left on device;" in without_a_thread_left(DataError, call, path)
    assert [name.count("-") for name in entries(cache)] == [1, 1]  # the survey, whole


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, also where the shell has started the tests in its background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("call", [load, encode_again])
def test_an_interrupted_run_leaves_nothing_half_done(call, write, cache, interruptible, monkeypatch):
    path = write("text", TEXT)
    failing_at_an_id(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    without_a_thread_left(KeyboardInterrupt, call, path)
    assert [name.count("-") for name in entries(cache)] == [1, 1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full: Linux's /dev/full")
@pytest.mark.parametrize("text", ["abc", TEXT * 10])  # in a buffer to the end, or written before it
def test_a_disk_that_is_full_for_the_draft(text, write, cache, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK_BYTES", 100)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: Path("/dev/full").open("w+b"))  # noqa: SIM115
    assert without_a_thread_left(DataError, load, write("text", text)).startswith(
        f"{cache}/corpora: the cache cannot be written: No space left on device;"
    )
    assert [name.count("-") for name in entries(cache)] in ([], [1, 1])


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def write_again(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"c", b"d"))
    os.utime(path, ns=(0, 0))


def shrink(path: Path) -> None:
    os.truncate(path, 100)


@pytest.mark.parametrize("level", ["char", "byte"])
@pytest.mark.parametrize("change", [grow, write_again, shrink])
@pytest.mark.parametrize("known", [False, True])
def test_a_source_that_changes_within_a_pass_is_refused(level, change, known, write, cache, monkeypatch):
    def read_and_change(*arguments):
        for number, chunk in enumerate(read_chunks(*arguments)):
            if number == 2:
                change(Path(path))
            yield chunk

    path = write("text", TEXT)
    if known:
        survey_source(path, level)
    before = entries(cache) if known else []
    read_chunks = reading.read_chunks
    monkeypatch.setattr(reading, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(reading, "read_chunks", read_and_change)
    assert without_a_thread_left(DataError, survey_source, path, level) == (
        f"{path}: changed while being read; a source must not change; run again when it is complete"
    )
    assert entries(cache) == before if known else not list(cache.rglob("*.npy"))


@pytest.mark.parametrize("level", ["char", "byte"])
@pytest.mark.parametrize("content", ["abcabd", "abcabcabc", "ab", "bcaabc", ""])
def test_a_source_that_changes_between_the_passes_is_refused(level, content, write, cache):
    path = write("text", "abcabc")
    survey = survey_source(path, level)
    vocabulary = Vocabulary.of_bytes() if level == "byte" else Vocabulary("char", "abc")
    before = entries(cache)
    write("text", content)
    assert refused(encode, survey, vocabulary) == (
        f"{path}: changed while being read; a source must not change; run again when it is complete"
    )
    assert entries(cache) == before


def test_a_source_that_vanishes_between_the_passes(write):
    path = write("text", "abcabc")
    survey = survey_source(path, "char")
    Path(path).unlink()
    assert refused(encode, survey, Vocabulary("char", "abc")) == (
        f"{path}: cannot be read: No such file or directory; "
        "a source needs all its files; make it readable or name another"
    )


@pytest.mark.parametrize("level", ["char", "byte"])
def test_a_text_without_room_for_its_cache_is_refused_before_it_is_read(level, tmp_path, cache, monkeypatch):
    sparse = tmp_path / "sparse"
    sparse.touch()
    os.truncate(sparse, 2 * shutil.disk_usage(tmp_path).free)
    monkeypatch.setattr(survey, "read_symbols", lambda *_: pytest.fail("read"))
    vocabulary = Vocabulary.of_bytes() if level == "byte" else Vocabulary("char", "abc")
    for call in (
        lambda: load_corpus(str(sparse), level=level, split=(1.0, 0.0, 0.0)),
        lambda: encode_file(sparse, vocabulary),
        lambda: unknown_characters([str(sparse)], vocabulary),
    ):
        assert re.fullmatch(
            rf"{sparse}: its cache needs at least \S+ [GT]B; {cache}/corpora has \S+ [GT]B free; any folder with room "
            "will do; name one in CHARLM_CACHE, or use a part of the text",
            refused(call),
        )
