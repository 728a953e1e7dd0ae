"""What users do wrong: one line on stderr, its exit code, and nothing that a terminal obeys."""

import gzip
import os
import re
import shutil
import typing

import pytest

from charlm.cli import app
from tests.stress.fuzz import COMMANDS
from tests.text import BYTE, ESC, RTL, SEEN

USAGE = [
    ("bogus", "No such command 'bogus'."),
    (f"x{ESC}{RTL}", r"No such command 'x\x1bc\u202e'."),
    (f"sample r --{ESC}{BYTE}", r"No such option: --\x1bc\xff"),
    (f"sample r s{RTL}", r"(s\u202e)"),
    (f"eval r --split {RTL}", r"Invalid value for '--split': found '\u202e'; allowed: 'train', 'valid', 'test'"),
    ("train", "Invalid value: a text is needed, for example my.txt or builtin:python-stdlib; "
              "or --config (see `charlm config list`)"),
    ("train --init-from r", "a text is needed, for example my.txt"),
    ("train --resume", "Invalid value: --resume needs --run-dir, the folder of the run to resume"),
    ("train x.txt --resume --run-dir r", "--resume continues with the run's own text"),
    ("train --resume --run-dir r --init-from c",
     "Invalid value: --init-from starts a new run; leave out --init-from or --resume"),
    ("train --config c --device tpu", "'tpu' is none of 'auto', 'cpu', 'cuda', 'cuda:1' (the second GPU) and so on."),
    ("train --confg c", "No such option: --confg"),
    ("sample", "Missing argument 'CKPT'."),
    ("sample r --temperature inf", "Invalid value: --temperature: found inf; allowed: a number from 0 to 1,"),
    ("sample run --new", "--new needs a model of lines"),
    ("eval r --split test --file f", "Invalid value: --split and --file exclude one another"),
    ("score run z.txt --unknown-as inf", "'--unknown-as': found 'inf'; allowed: less than or equal to 1000000000"),
    ("score run z.txt --per-char", "--per-char needs --json"),
    ("score run z.txt --above much", "--above: found 'much'; allowed: bits per character (3.2), or a "
     "percentile of the lines of a file, p0 to p100 (p99)"),
    ("score no-such-run z.txt --above p101", "--above: found 'p101'; allowed: bits per character"),
    ("score run - --above p9", "--above p9: found a pipe; allowed: a file, a number such as --above 3.2, or --of "
     "with a file of normal lines"),
    ("score run z.txt --above 3 --of z.txt", "--of needs a percentile, such as --above p99"),
    ("score run z.txt --above p9 --of -", "--of: found stdin; allowed: a file of normal lines"),
    ("classify run z.txt", "Missing option '--labels'"),
    ("export run --to flax --out a", "Invalid value for '--to': found 'flax'; allowed: 'onnx', 'html'"),
    ("compare x.txt --equal params", "'--equal': found 'params'; allowed: 'parameters', 'time', 'updates'"),
    ("plan", "Invalid value: a text is needed, for example my.txt"),
    ("config show", "Missing argument 'CONFIG'."),
    ("data fetch", "Missing argument 'NAME...'."),
    ("train x.txt —minutes 5", "found —minutes; allowed: options, or ./—minutes for a file of this name; type -- "),
    ("train x.txt ‐‐lines", "type -- for ‐‐ (U+2010 U+2010)"),
    ("train –lines x.txt", "found –lines; allowed: options, or ./–lines for a file of this name; "),
    ("data fetch text8 —data-dir=x", "type -- for — (U+2014)"),
    ("train x.txt -minutes 5", "found -minutes; type --minutes"),
    ("sample r -length=5", "found -length=5; type --length=5"),
    ("—version", "found —version; allowed: options, or ./—version for a file of this name; type -- for — (U+2014)"),
        ("train x.txt --minutes 0,1", "'--minutes': found '0,1'; "),
    ("train x.txt --minutes 0,1", "; type 0.1 for 0,1"),
    ("sample r --length 1,000", "; type 1000 for 1,000"),
    ("score r x --above 3,2", "; type 3.2 for 3,2"),
    ("train x.txt --minutes −5", "; type - for − (U+2212)"),
    ("data info x --level word", "Invalid value for '--level': found 'word'; allowed: 'char', 'byte'"),
]  # fmt: skip

OUT_OF_RANGE = {
    "sample r --length": f"-1 9999999999999 {ESC}",
    "sample r --count": "0 10001",
    "sample r --seed": f"-1 {2**63}",
    "sample r --temperature": "-1 nan",
    "sample r --top-p": "0 1.5 nan",
    "sample r --top-k": "-1",
    "next r --top": "0",
}

NAME, SHOWN = f"a{ESC}{RTL}\u2028\n", r"a\x1bc\u202e\u2028\n"
GZIP = "a.gz: found a gzip file; allowed: text in UTF-8; unpack it, or save it as plain text in its program"
WRITABLE = "No such file or directory; allowed: a file that can be written"
LONG = "xxx: File name too long"
COMMANDS_OF_MODELS = ("sample", "next", "eval", "look", "export --to onnx --out new")
ERRORS = [
    (f"config show {NAME}{BYTE}", rf"{SHOWN}\xff: found no such file; allowed: a YAML file, "),
    (f"data fetch {NAME}", f"{SHOWN}: found no such text; allowed: "),
    (f"data info {NAME}{BYTE}", rf"{SHOWN}\xff: no such file or folder; "),
    (f"train --resume --run-dir {NAME}", f"{SHOWN}: no such file or folder; "),
    (f"config show tiny.yaml --set {NAME}", f"--set {SHOWN}: found no KEY=VALUE; "),
    (f"config show tiny.yaml --set {NAME}=1", rf"--set {SHOWN}=1: a\x1bc\u202e: unknown key; "),
    (f"config show tiny.yaml --set {BYTE}=1", r': found "\xff", which is not Unicode text; '),
    (f"config show tiny.yaml --set seed='{RTL}'", r"--set seed='\u202e': seed: found "),
    ("config show tiny.yaml --set optimizer.lr=0,001", '000,000; type 0.001 for 0,001'),
    ("config show tiny.yaml --set seed=–1", "; type - for – (U+2013)"),
    ("config show nbsp.yaml", "nbsp.yaml: seed\u00a0: unknown key; "),
    ("config show nbsp.yaml", "; type a space for U+00A0"),
    ("config show utf16.yaml", "utf16.yaml: found text in UTF-16LE; allowed: text in UTF-8; convert it: iconv "),
    ("config show quotes.yaml", "quotes.yaml: line 1, column 16: found a quote without its end in data: {source: \"a”}"
     '; allowed: plain YAML; type " for ” (U+201D)'),
    (f"config show tiny.yaml --set seed={BYTE}", r"--set seed=\xff: unacceptable character #xdcff: "),
    ("sample run --prompt \x1b", r"--prompt: found '\x1b' (U+001B), which the model has never "),
    (f"sample run --prompt {RTL}{BYTE}", r": found '\u202e' (U+202E), byte 0xFF (not UTF-8), which the "),
    (f"sample run --stop {RTL}", r"--stop: found '\u202e' (U+202E), which the model has never seen; "),
    ("sample run --prompt aZbé", "--prompt: found 'Z' (U+005A), 'b' (U+0062), 'é' (U+00E9), which the model has never "
                                 f"seen; allowed: {SEEN}"),
    (f"sample {'x' * 300}", f"{LONG}; allowed: a run's folder "),
    (f"train --config tiny.yaml --run-dir {'x' * 300}", f"{LONG}; allowed: a folder that can "),
    (f"train --resume --run-dir {'x' * 300}", f"{LONG}; allowed: a folder that can "),
    ("sample run --device cpu --precision tf32",
     "precision: found tf32, which cpu (1 thread) lacks; allowed here: fp32 | bf16"),
    ("eval run --file odd.txt", r"odd.txt: found '\x1b' (U+001B), '\u202e' (U+202E), '😀' (U+1F600), which "
     f"the model has never seen; allowed: {SEEN}; use text without others or a model that knows them; --skip-unknown "
     "leaves them out"),
    ("eval run --file s.txt", "evaluation: found a text of 1 character; allowed: 2 or more"),
    ("eval run --file zz.txt --skip-unknown", "zz.txt: none of its characters is in the model's vocabulary; use "),
    ("eval run --per-char no/scores.csv", f"--per-char no/scores.csv: {WRITABLE}"),
    ("eval run --per-char new --file gone", "gone: no such file or folder; "),
    ("look run --file text.txt --out no/page.html", f"--out no/page.html: {WRITABLE}"),
    ("look run --file text.txt --out text.txt", "--out text.txt: exists and is another file; allowed: a new or empty "
     "file, or a page of charlm look"),
    ("look run --file s.txt --out new", "look: found a text of 1 character; allowed: 2 or more"),
    ("report run --out no/page.html", f"--out no/page.html: {WRITABLE}"),
    *((f"{command} damaged", "damaged: damaged, or not a checkpoint (") for command in COMMANDS_OF_MODELS),
    *((f"{command} folder", "folder: no checkpoint in folder/checkpoints; allowed: the folder of a run, or a checkp")
      for command in COMMANDS_OF_MODELS),
    ("train --resume --run-dir folder", "folder: no checkpoints/ to resume from; allowed: the folder of a run"),
    ("report folder", "folder: holds no run; allowed: the folder of a run, a checkpoint of one, or a folder that"),
    ("runs text.txt", "text.txt: is a file; allowed: a folder that holds runs"),
    ("export run --to onnx --out no/a", f"--out no/a: {WRITABLE}"),
    ("data info tex.txt", "tex.txt: no such file or folder; a source is a file, a folder, a glob or builtin:NAME; did "
                          "you mean 'text.txt'?"),
    ("data fetch text8 tinyshakespear --data-dir folder", "tinyshakespear: found no such text; allowed: tinyshakespeare"
     " | text8 | enwik8"),
    ("train --resume --run-dir run --set train.max_stesp=9", "--set train.max_stesp=9: train.max_stesp: unknown key; "),
    ("train --config tiny.yaml --run-dir run",
     "run: already holds a run; allowed: --resume to continue it, or another --run-dir"),
    ("train --config tiny.yaml --run-dir text.txt",
     "text.txt: File exists; allowed: a folder that can be written; see --run-dir"),
    ("train --config tiny.yaml --init-from run --set model.cell.hidden=32 --set model.cell.kind=gru",
     "model.cell.kind: found 'gru'; the checkpoint of --init-from has 'lstm'; allowed: the same"),
    ("config suggest zz.txt", ": found 2 characters; allowed: 500 or more"),
    ("train a.gz --minutes 0.01", GZIP),
    ("config suggest a.gz", GZIP),
    ("eval run --file a.gz", GZIP),
    ("score run a.gz", GZIP),
]  # fmt: skip


@pytest.mark.parametrize(("words", "text"), USAGE)
def test_usage(cli, trained_run, tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(trained_run)
    (tmp_path / "z.txt").touch()
    error = cli(*words.split(" ")).usage_error
    assert text in error
    assert not COMMANDS.search(error)


@pytest.mark.parametrize("option", OUT_OF_RANGE)
def test_values_out_of_range(cli, option):
    for value in OUT_OF_RANGE[option].split(" "):
        assert option.split()[-1] in cli(*option.split(), value).usage_error, value


@pytest.fixture
def in_folder(trained_run, text_file, tiny_config, tmp_path, monkeypatch):
    """A current folder with a run, texts that cannot be used and a config."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_run, "run")
    for name in ("folder", "mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine/config.yaml").write_text("years of work")
    texts = {
        "s.txt": b"s", "damaged": b"not", "z.txt": b"Z", "zz.txt": b"ZZ",
        "odd.txt": "so \x1b\u202e😀".encode(), "latin.txt": b"abc\xff",
        "a.gz": gzip.compress(b"text", mtime=0), "empty.txt": b"",
        "mark.txt": b"\xef\xbb\xbf",
        "utf16.yaml": "model: {cell: {kind: lstm}, layers: 2}".encode("utf-16-le"),
        "nbsp.yaml": "seed\u00a0: 1".encode(), "quotes.yaml": 'data: {source: "a”}'.encode(),
        "abc.txt": b"abc", "lines.txt": b"a\nb\n" * 3,
    }  # fmt: skip
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(("words", "text"), ERRORS)
def test_errors(cli, in_folder, words, text):
    before = sorted(in_folder.glob("*"))
    error = cli(*words.split(" ")).error
    assert text in error
    assert not COMMANDS.search(error)
    assert sorted(in_folder.glob("*")) == before


@pytest.mark.parametrize(
    ("words", "stdin", "error"),
    [
        ("score run -", gzip.compress(b"text", mtime=0), "stdin: found a gzip file; allowed: text in UTF-8; unpack it"),
        ("eval run --file -", b"soZ", "stdin: found 'Z' (U+005A), which the model has never seen"),
        ("eval run --file -", b"\xff", "stdin: found byte 0xFF (not UTF-8), which the model has never seen; "),
    ],
)
def test_errors_of_stdin(cli, in_folder, words, stdin, error):
    assert cli(*words.split(" "), stdin=stdin).error.startswith(error)


TOO_LARGE = r"memory: the model and a window need at least [\d.,]+ [TE]B; \S+ GB are available \(cpu\); lower model\.ce"


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("data.source=none.txt", "none.txt: no such file or folder; a source is a file, "),
        ("data.source=empty.txt", "empty.txt: no text in 0 B; at least one character is needed; add text$"),
        ("data.source=mark.txt", "mark.txt: no text in 3 B; at least one character is needed; add text$"),
        ("data.source=abc.txt", "train split: 2 characters; 4 streams of 8 steps need at least 33; lower "
                                r"train.batch_size or train.bptt, or use more text \(data.split\)$"),
        ("data.source=latin.txt", r"latin.txt: line 1: byte 0xFF is not UTF-8 \(invalid start byte\); data.level: "
                                  "char needs UTF-8 text; convert the file or set data.level: byte$"),
        ("data.split=[0.9997,0.0003,0.0]", "valid split: "),
        ("train.bptt=5000", "train split: "),
        ("device=cuda:77", "device: found cuda:77"),
        ("--device=cuda:77", "device: found cuda:77"),
        ("model.embedding=99999999999999999999", "--set model.embedding=99999999999999999999: model.embedding: found "),
        ("model.cell.hidden=1000000", TOO_LARGE),
        ("data.unit=line data.source=lines.txt", ""),
    ],
)  # fmt: skip
def test_plan_refuses_what_train_refuses(cli, in_folder, setting, fault):
    words = setting if setting[0] == "-" else " ".join(f"--set {each}" for each in setting.split())
    trained, planned = (
        cli(*command.split(), "--config", "tiny.yaml", *words.split()).error
        for command in ("train --run-dir r", "plan")
    )
    assert re.sub(r"\S+ GB are", "", planned) == re.sub(r"\S+ GB are", "", trained)
    assert re.match(fault, planned)
    assert not os.path.lexists("r")


@pytest.mark.parametrize("command", ["config show", "plan --config", "train --config"])
def test_all_faults_of_a_config_have_a_line_each(cli, command, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("model: {cell: {kind: rhn, dept: 3}}\nseed: true\n")
    result = cli(*command.split(), path, "--set", "threads=-1")
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        f"error: {path}: model.cell.dept: unknown key; allowed: kind, hidden, depth, couple_gates, gate_bias; "
        "did you mean 'depth'?\n"
        f"error: {path}: seed: found true; allowed: an integer ≥ 0 and < 9,223,372,036,854,775,808\n"
        "error: --set threads=-1: threads: found -1; allowed: an integer ≥ 0 and ≤ 1,024\n"
    )


@pytest.mark.parametrize("command", ["train", "plan", "config suggest"])
def test_all_faults_beside_a_chosen_config_have_a_line_each(cli, command, text_file):
    wrong = cli(*command.split(), text_file, "--set", "model.cell.hiden=3", "--set", "train.bptt=0")
    faults = [line.split(":")[1].strip() for line in wrong.err.splitlines() if line.startswith("error")]
    assert (wrong.code, faults) == (1, ["--set model.cell.hiden=3", "--set train.bptt=0"])


@pytest.mark.parametrize("command", ["train --config tiny.yaml --run-dir new", "sample run", "eval run"])
def test_cuda_that_is_not_there(cli, in_folder, command):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert re.fullmatch(
        r"device: found cuda, but this PyTorch \(built (without CUDA|for CUDA [\d.]+)\) sees no GPU; "
        r"allowed here: auto \| cpu",
        cli(*command.split(), "--device", "cuda").error,
    )


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *(("CHARLM_TIMEOUT_S", value, "1 to 1000000") for value in ("0", "1e9", "9" * 5000, "inf", "-1", "", "ten")),
        ("RANK", "2", "0 to 1"),
        ("MASTER_PORT", "99999", "0 to 65535"),
        ("WORLD_SIZE", "0", "1 to 1000000"),
    ],
)
def test_variables_of_processes_that_make_no_sense(cli, tiny_config, monkeypatch, name, value, allowed):
    for known, fine in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), (name, value)):
        monkeypatch.setenv(known, fine)
    error = cli("train", "--config", tiny_config).error
    assert error.startswith(f"{name}: found '{value[:1000]}")
    assert f" in the environment; allowed: integers from {allowed}; " in error or len(value) > 1000


def options_with_numbers(commands=app, above=()):
    """The words of each command, and the options of it that take numbers."""
    for command in commands.registered_commands:
        types = {name: {hint, *typing.get_args(hint)} for name, hint in typing.get_type_hints(command.callback).items()}
        for name, of_option in types.items():
            if of_option & {int, float}:
                yield *above, command.name or command.callback.__name__, f"--{name.replace('_', '-')}"
    for group in commands.registered_groups:
        yield from options_with_numbers(group.typer_instance, (*above, group.name))


@pytest.mark.parametrize("words", [*options_with_numbers()], ids=" ".join)
def test_a_number_that_no_option_takes_is_refused_before_anything_is_read(cli, words):
    *command, option = words
    files = ["no-such-file", *(["z.txt"] if command[0] in ("classify", "score") else [])]
    for number in ("-1", "nan", "inf", "1e400", "1" + "0" * 400, "9" * 5000, "1,5", ""):
        result = cli(*command, *files, f"{option}={number}")
        assert option.strip("-") in (result.error if result.code == 1 else result.usage_error)
