"""Whatever is read, by the thousand: any input is used or refused in one clear line, in bounded time and memory.

The targets are those of scripts/fuzz, which feeds them 100,000 inputs each; here Hypothesis makes a hundred.
"""

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripts.fuzz import COMMANDS, FLAGS, NAMES, OPTIONS, Targets, good_inputs, guarded

from charlm.config import Config, load_config, parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CharlmError, ConfigError
from charlm.system.formatting import one_line, printable

LIMIT_S = 10
LIMIT_MB = 150  # beyond what the process held before; an input of 10 MB counts

ESC = "\x1bc"  # clears the screen
RTL = "\u202e"
BYTE = "\udcff"  # byte 0xff of an argument or file name, as Python keeps it

bounded = settings(
    deadline=timedelta(seconds=LIMIT_S),
    derandomize=True,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


# --- By the thousand.


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, trained_run: Path) -> Iterator[Targets]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        yield Targets(tmp_path_factory.mktemp("input"), trained_run / "checkpoints/last.safetensors")


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A good input with bits flipped, cut off, or spliced with itself, with another one or with odd bytes."""
    data = draw(st.sampled_from(seeds))
    for kind in draw(st.lists(st.sampled_from(["flip", "cut", "splice"]), max_size=4)):
        at, to = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        other = draw(st.sampled_from([*seeds, *ODD]) | st.binary(max_size=8))
        middle = {"flip": bytes(byte ^ draw(st.integers(1, 255)) for byte in data[at : at + 1]), "cut": b""}
        data = data[:at] + middle.get(kind, other) + data[at + 1 if kind == "flip" else to :]
    return data


ODD = [
    bytes(text, "utf-8", "surrogatepass")
    for text in (
        ESC,
        RTL,
        "\0",
        "\ud800",
        "\u200f",
        "\x9b",
        "\r",
        "\u2028",
        "\ufeff",
        "[" * 2000,
        '{"a":' * 500,
        "9" * 500,
    )
]


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes(name, targets):
    call = guarded(getattr(targets, name))
    seeds = good_inputs(targets.checkpoint)[name]
    for seed in seeds:
        call(seed)

    @bounded
    @given(st.binary(max_size=200) | damaged(seeds))
    def feed(data: bytes) -> None:
        call(data)

    feed()


def sections(node: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The sections that a node of the schema admits."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    for branch in [*node.get("anyOf", []), *node.get("oneOf", [])]:
        yield from sections(branch, schema)
    if "properties" in node:
        yield node


SCHEMA = Config.model_json_schema()
ANY_TEXT = st.text(max_size=20)  # lone surrogates too
ODD_VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | ANY_TEXT
    | st.sampled_from(["lstm", "rhn", "adam", "cosine", "nan", 10**99, -(2**63), 2**64, 1e308, "builtin:x", ESC, RTL])
    | st.lists(st.floats(0, 1) | ANY_TEXT, max_size=4)
    | st.dictionaries(ANY_TEXT, st.integers(), max_size=2)
)


@st.composite
def near_configs(draw: st.DrawFn, node: Any = None, schema: Any = None) -> dict[str, Any]:
    """Keys of the schema with values that may be allowed, now and then an unknown one."""
    schema = schema or SCHEMA
    properties = draw(st.sampled_from(list(sections(node or schema, schema))))["properties"]
    config: dict[str, Any] = draw(st.dictionaries(ANY_TEXT, ODD_VALUES, max_size=1)) if draw(st.booleans()) else {}
    for key in draw(st.lists(st.sampled_from(sorted(properties)), max_size=4, unique=True)):
        child = properties[key]
        is_section = any(sections(child, schema)) and draw(st.booleans())
        allowed = [child[name] for name in ("const", "default") if name in child] + child.get("enum", [])
        plain = st.sampled_from(allowed) | ODD_VALUES if allowed else ODD_VALUES
        config[key] = draw(near_configs(child, schema)) if is_section else draw(plain)
    return config


@bounded
@given(near_configs())
def test_near_configs(targets, value):
    path = targets.folder / "near.yaml"
    path.write_text(json.dumps(value), encoding="utf-8")  # JSON is YAML
    overrides = [f"{key}={json.dumps(each)}" for key, each in value.items()]

    def outcome(read: Callable[[], Config]) -> Config | tuple[str, ...]:
        try:
            return read()
        except ConfigError as error:
            return error.faults

    in_file, direct = outcome(lambda: load_config(path)), outcome(lambda: parse_config(value, str(path)))
    set_alone = outcome(lambda: parse_config({}, "x", overrides))
    assert in_file == direct or not isinstance(in_file, Config)
    for each in (in_file, direct, set_alone):
        assert isinstance(each, Config) or all(each)


@bounded
@given(
    st.lists(st.tuples(st.sampled_from(OPTIONS), ANY_TEXT | st.integers().map(str) | st.floats().map(str)), max_size=4)
)
def test_options_of_sample(targets, pairs):
    words = [word for name, value in pairs for word in ([name] if name in FLAGS else [name, value.replace("\0", "")])]
    targets._command("sample", str(targets.checkpoint), *words, "--length", "20", "--count", "2")


@bounded
@given(ANY_TEXT)
def test_vocabulary_reads_its_own_characters(text):
    characters = "".join(sorted(set(text)))
    if not characters:
        return
    vocabulary = Vocabulary.from_json(json.loads(json.dumps(Vocabulary("char", characters).to_json())))
    assert vocabulary.decode(vocabulary.encode(text).tolist()) == text


# --- What is told of it.


@settings(derandomize=True)
@given(st.text())
def test_printable_leaves_nothing_that_a_terminal_obeys(text):
    for shown in (printable(text), one_line(text)):
        assert not COMMANDS.search(shown)
    assert not set("\n\t") & set(one_line(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2J", r"a\x1b[2J"),
        ("\x00\x07\x08\x0b\x0c\r\x7f", r"\x00\x07\x08\x0b\x0c\x0d\x7f"),
        ("\x85\x9b", r"\x85\x9b"),
        ("\u200e\u200f\u061c", r"\u200e\u200f\u061c"),
        ("\u202a\u202e\u2066\u2069", r"\u202a\u202e\u2066\u2069"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\udcff\ud800", r"\xff\ud800"),
        ("\n\té中😀 \u200d\u00a0\u3000\\x1b", "\n\té中😀 \u200d\u00a0\u3000\\x1b"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown
    assert one_line(text) == shown.replace("\n", "\\n").replace("\t", "\\t")


NAME = f"a{ESC}{RTL}\u2028\n"
SHOWN = r"a\x1bc\u202e\u2028\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["config", "check", NAME + BYTE], rf"{SHOWN}\xff: No such file or directory; allowed: a YAML file; "),
        (["sample", NAME], f"{SHOWN}: no such file; allowed: a run's folder or a checkpoint in its checkpoints/"),
        (["data", "fetch", NAME], f"{SHOWN}: no such corpus; allowed: "),
        (["data", "info", NAME], f"{SHOWN}: no such file or folder; "),
        (["train", "--resume", "--run-dir", NAME], f"{SHOWN}: no checkpoints/ to resume from; "),
        (["config", "check", "TINY", "--set", NAME], f"--set {SHOWN}: found no KEY=VALUE; "),
        (["config", "check", "TINY", "--set", f"{NAME}=1"], rf"--set {SHOWN}=1: a\x1bc\u202e: unknown key; "),
        (["config", "check", "TINY", "--set", f"{BYTE}=1"], r': found "\xff", which is no Unicode text; '),
        (["data", "info", NAME + BYTE], rf"{SHOWN}\xff: no such file or folder; "),
        (["config", "check", "TINY", "--set", f"seed='{RTL}'"], r"--set seed='\u202e': seed: found "),
        (["config", "check", "TINY", "--set", f"seed={BYTE}"], r"--set seed=\xff: unacceptable character #xdcff: "),
        (["sample", "RUN", "--prompt", "\x1b"], r"--prompt: found '\x1b' (U+001B), which the model has never "),
        (["sample", "RUN", "--prompt", f"{RTL}{BYTE}"], r": found '\u202e' (U+202E), '\udcff' (U+DCFF), which the "),
        (["sample", "RUN", "--stop", RTL], r"--stop: found '\u202e' (U+202E), which the model never writes; "),
        (["sample", "RUN", "--prompt-file", NAME], f"--prompt-file {SHOWN}: No such file or directory; "),
        (["sample", "x" * 300], "xxx: File name too long"),
        (["eval", "x" * 300], "xxx: File name too long"),
        (["train", "--config", "TINY", "--run-dir", "x" * 300], "xxx: File name too long; allowed: a folder that can "),
        (["train", "--resume", "--run-dir", "x" * 300], "xxx: File name too long; allowed: a folder that can "),
        (["eval", "RUN", "--file", "TEXT"], r"'\x1b' (U+001B) × 1, '\u202e' (U+202E) × 1, '😀' (U+1F600) × 1: not in "),
    ],
)  # fmt: skip
def test_errors_quote_nothing_raw(cli, trained_run, tiny_config, tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TEXT").write_text("so \x1b\u202e😀", encoding="utf-8")
    named = {"RUN": trained_run, "TINY": tiny_config}
    error = cli(*[named.get(word, word) for word in words]).error
    assert text in error
    assert not COMMANDS.search(error)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([f"x{ESC}{RTL}"], r"No such command 'x\x1bc\u202e'."),
        (["sample", "r", f"--{ESC}{BYTE}"], r"No such option: --\x1bc\xff"),
        (["sample", "r", f"s{RTL}"], r"(s\u202e)"),
        (["sample", "r", "--length", ESC], "Invalid value for '--length': "),
        (["eval", "r", "--split", RTL], r"is not one of 'train', 'valid', 'test'."),
    ],
)
def test_usage_errors_quote_nothing_raw(cli, words, text):
    error = cli(*words).usage_error
    assert text in error
    assert not COMMANDS.search(error)


def test_usage_error_of_no_command_is_the_help(cli):
    assert "\n\n" in cli("config").err + cli("config").out


def test_arguments_of_a_process_of_its_own(tmp_path):
    words = [b"\xff\x1b\xc2\x9b.yaml", b"--set", b"a\xe2\x80\xae=\xff"]
    done = subprocess.run([sys.executable, "-m", "charlm", "config", "check", *words], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(rb"error: \xff\x1b\x9b.yaml: No such file")


def test_what_the_library_says_is_printable(cli, monkeypatch):
    import logging

    def told() -> str:
        logging.getLogger("charlm.cells").info("compiling in %s", NAME)
        return ""

    monkeypatch.setattr("charlm.config.options.options_table", told)
    assert cli("config", "options").err == f"compiling in {SHOWN}\n"


def test_odd_names_and_characters_all_the_way(cli, tmp_path):
    """A text of controls, in a file of such a name, is trained on, scored and sampled; nothing comes out raw."""
    folder = tmp_path / NAME
    folder.mkdir()
    text = folder / f"text{NAME}.txt"
    text.write_text(f"so{ESC}{RTL}\x9b\u2028\0 \x07" * 300, encoding="utf-8")
    config = folder / "c.yaml"
    words = ["model.cell.hidden=4", "train.max_steps=2", "train.batch_size=2", "train.sample_every=1", "threads=1"]
    overrides = [word for pair in words for word in ("--set", pair)]
    config.write_text(f"data: {{source: {json.dumps(str(text))}}}", encoding="utf-8")
    run = folder / "run"
    commands = [
        ["train", "--config", config, "--run-dir", run, *overrides],
        ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=3", "--json"],
        ["eval", run],
        ["eval", run, "--file", text, "--json"],
        ["plan", "--config", config, *overrides],
        ["config", "check", config],
        ["config", "show", config],
        ["data", "info", text],
        ["sample", run, "--json", "--novelty", "--prompt", f"{ESC}{RTL}"],
    ]
    for command in commands:
        result = cli(*command)
        assert result.code == 0, result
        assert not COMMANDS.search(result.out + result.err), command
    assert json.loads(result.out)["samples"][0]["prompt"] == f"{ESC}{RTL}"
    (tmp_path / "shown.yaml").write_text(cli("config", "show", config).out, encoding="utf-8")
    assert load_config(tmp_path / "shown.yaml") == load_config(config)


def test_samples_are_raw_in_a_pipe_and_written_out_on_a_terminal(monkeypatch):
    from charlm.cli import sample

    shown = []
    for terminal in (False, True):
        monkeypatch.setattr(sys, "stdout", Out(terminal))
        sample._stream(f"a{ESC}\n", [f"{RTL}\x9b", "\u200f\u2028"])
        shown.append(sys.stdout.getvalue())  # type: ignore[attr-defined]
    assert shown == [f"a{ESC}\n{RTL}\x9b\u200f\u2028\n", "a\\x1bc\n\\u202e\\x9b\\u200f\\u2028\n"]


class Out(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal


# --- The named horrors.


def peak_mb() -> float:
    """The most memory this process has held since the last call; where that cannot be told, always 0."""
    try:
        status = Path("/proc/self/status").read_text()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def bounded_refusal(read: Callable[[], object]) -> list[str]:
    """The lines of the error that `read` raises, within the bounds of time and memory."""
    peak_mb()
    before_mb = peak_mb()
    start_s = time.perf_counter()
    with pytest.raises(CharlmError) as refusal:
        read()
    assert time.perf_counter() - start_s < LIMIT_S
    assert peak_mb() - before_mb < LIMIT_MB
    return str(refusal.value).split("\n")


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
TOO_LONG = "found more than 100000 bytes; allowed: a YAML config"
NO_YAML = "allowed: plain YAML in UTF-8"
HORRORS = {
    "bomb": (BOMB, "line 2, column 10: found an alias (*name); write the value out; allowed: plain YAML"),
    "key of 10 MB": ("k" * 10**7 + ": 1", TOO_LONG),
    "explicit key of 10 MB": ("? " + "k" * 10**7 + "\n: 1", TOO_LONG),
    "scalar of 10 MB": ("seed: " + "v" * 10**7, TOO_LONG),
    "quoted scalar of 10 MB": ('seed: "' + "v" * 10**7 + '"', TOO_LONG),
    "nested 100,000 deep": ("[" * 100_000, "nested too deeply; allowed: the sections of `charlm config schema`"),
    "nested 90,000 deep, in a section": ("a: " + "{b: " * 22_000, "nested too deeply; "),
    "nested in lines": ("\n".join(" " * n + "a:" for n in range(400)), "nested too deeply; "),
    "as many lists as can be": ("[" + "[]," * 33_000 + "]", "found list; allowed: sections such as data:, model:"),
    "as long a key as can be": ("? " + "k" * 99_000 + "\n: 1", "unknown key; allowed: data, model, "),
    "as long a value as can be": ("seed: " + "v" * 99_000, "seed: found "),
    "NUL": ("seed: \0", "unacceptable character #x0000: special characters are not allowed in "),
    "escape": (f"seed: {ESC}", "unacceptable character #x001b: "),
    "C1": ("seed: \x9b", "unacceptable character #x009b: "),
    "NUL, written out": (r'seed: "\0"', r'seed: found "\u0000"; allowed: '),
    "a lone surrogate, written out": (r'seed: "\ud800"', "seed: found "),
    "right-to-left marks": (f"{RTL}: \u200f", "\u202e: unknown key; "),
}  # fmt: skip


@pytest.mark.parametrize("name", HORRORS)
def test_yaml_horrors(tmp_path, cli, name):
    text, told = HORRORS[name]
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    [line] = bounded_refusal(lambda: load_config(path))
    assert line.startswith(f"{path}: ")
    assert told in line
    shown = cli("config", "check", path).error
    assert len(shown) <= 2010
    assert not COMMANDS.search(shown)


def test_more_faults_than_anyone_reads(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(f"a{n}: 1" for n in range(9000)))
    lines = bounded_refusal(lambda: load_config(path))
    assert len(lines) == 101
    assert lines[99].startswith(f"{path}: a99: unknown key; allowed: data, ")
    assert lines[100] == f"{path}: and 8900 more"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("k" * 10**7 + "=1", "found 10000002 characters; allowed: 100000"),
        ("seed=" + "v" * 10**7, "found 10000005 characters; allowed: 100000"),
        ("a." * 40_000 + "b=1", "found no KEY=VALUE; allowed: for example --set train.max_steps=500"),
        ("seed=" + "[" * 99_000, "nested too deeply; allowed: the sections of `charlm config schema`"),
        ("seed=[&a [1], *a]", "column 10: found an alias (*name); write the value out; allowed: plain YAML"),
        ("seed=\0", "unacceptable character #x0000: "),
        (f"seed={BYTE}", "unacceptable character #xdcff: "),
        ("seed=\u200f1", "seed: found "),
    ],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_override_horrors(override, told):
    [line] = bounded_refusal(lambda: parse_config({}, "x", [override]))
    assert told in line
    assert line.startswith("--set ")


@pytest.mark.parametrize(
    ("words", "length"), [(["--prompt", "\x1b" + "x" * 100_000], 500), (["--prompt-file", "x" * 5000], 2010)]
)
def test_long_words_make_no_long_errors(cli, trained_run, words, length):
    error = cli("sample", trained_run, *words).error
    assert len(error) <= length
    assert error.startswith(words[0])
    assert "; allowed: " in error


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (b"\xff" * 8, "damaged or no checkpoint ("),
        ((2**62).to_bytes(8, "little") + b"{}", "damaged or no checkpoint ("),
        (None, "damaged or no checkpoint ("),
    ],
)
def test_checkpoint_that_promises_more_than_it_holds(tmp_path, start, told):
    from charlm.checkpoint import read_checkpoint

    if start is None:  # a tensor of 4 TB
        header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
        start = len(header).to_bytes(8, "little") + header
    path = tmp_path / "x.safetensors"
    path.write_bytes(start)
    [line] = bounded_refusal(lambda: read_checkpoint(path))
    assert line.startswith(f"{path}: {told}")


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (["[" * 10**6], "maximum recursion depth"),
        ([json.dumps({"k" * 10**7: 1})], "unknown key; allowed: data, model, "),
        (['{"a": 1, "b": 2}'], "config: a: unknown key; allowed: data, "),
        (["{}", json.dumps({"level": "char", "characters": "x" * 10**7})], "vocabulary: not a list of distinct"),
        (["{}", '{"level": "char", "characters": ""}'], "vocabulary: not a list of distinct characters"),
        (["{}", '{"level": "char", "characters": "ab"}', "\0"], "Expecting value"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_header_horrors(targets, parts, told):
    [line] = bounded_refusal(lambda: targets.header("\n\n".join(parts).encode()))
    assert told in line
