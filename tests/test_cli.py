"""Every command as a person calls it: exit code, stdout, stderr; and every mistake a person makes, in one line."""

import ast
import csv
import hashlib
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import charlm
from charlm.config import Config, flatten, load_config
from charlm.config.shipped import shipped_configs
from charlm.data.fetch import CATALOGUE
from tests.text import words_text

COMMANDS = [
    "train", "sample", "eval", "plan", "config list", "config check", "config show", "config schema", "config options",
    "data list", "data info", "data fetch",
]  # fmt: skip
SEEN = f"its {len(set(words_text(20_000)))} characters"


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def copied_run(trained_run: Path, tmp_path: Path) -> Path:
    """A run of this test's own, in the place where its config says its text is."""
    return shutil.copytree(trained_run, tmp_path / "run")


# --- Help, version, usage.


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_is_called_so(cli, command):
    result = cli(*command.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: charlm {command} [OPTIONS]")
    examples = re.search(r"\n  Examples?:\n((?:    .*\n)+)", result.out)
    assert examples
    assert f"    charlm {command}" in examples.group(1)


@pytest.mark.parametrize("command", ["", "config", "data"])
def test_help_of_groups_names_their_commands(cli, command):
    result = cli(*command.split(), "--help")
    assert (result.code, result.err) == (0, "")
    listed = re.findall(r"^  (\w+)  ", result.out.split("Commands:\n")[1], re.MULTILINE)
    first = [name.removeprefix(command).split()[0] for name in COMMANDS if name.startswith(command)]
    assert listed == list(dict.fromkeys(first))


def test_examples_of_the_help_name_options_and_configs_that_exist(cli):
    for command in COMMANDS:
        text = cli(*command.split(), "--help").out
        examples = re.search(r"\n  Examples?:\n((?:    .*\n)+)", text)
        assert examples
        options = text.split("\nOptions:\n")[1]
        for option in re.findall(r"--[a-z-]+", examples.group(1)):
            assert option in options, (command, option)
        for config in re.findall(r"--config (\S+)", examples.group(1)):
            assert config in shipped_configs(), config


def test_no_help_waits_for_torch():
    code = """
import sys, charlm.cli
for words in sys.argv[1:]:
    sys.argv = ["charlm", *words.split(), "--help"]
    try:
        charlm.cli.main()
    except SystemExit as left:
        assert left.code == 0
slow = {"torch", "numpy", "safetensors", "tensorboard", "yaml", "tqdm"} & set(sys.modules)
assert not slow, slow
"""
    done = subprocess.run([sys.executable, "-c", code, "", "config", "data", *COMMANDS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_configs_and_catalogue_are_read_without_torch(tiny_config):
    code = """
import sys, charlm.cli
for words in sys.argv[1:]:
    sys.argv = ["charlm", *words.split()]
    try:
        charlm.cli.main()
    except SystemExit as left:
        assert left.code == 0
assert "torch" not in sys.modules
"""
    commands = [f"config check {tiny_config}", f"config show {tiny_config}", "config options", "data list"]
    done = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_version(cli):
    result = cli("--version")
    assert (result.code, result.out, result.err) == (0, f"{charlm.__version__}\n", "")


def test_no_command_shows_the_help(cli):
    result = cli()
    assert result.code == 2
    assert "Commands:" in result.out + result.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("bogus", "No such command 'bogus'."),
        ("train",
         "Invalid value: --config is needed, for example --config quickstart; `charlm config list` shows the others"),
        ("train --resume", "Invalid value: --resume needs --run-dir, the folder of the run to go on with"),
        ("train --resume --run-dir r --init-from c",
         "Invalid value: --init-from starts a new run; leave out --resume, or --init-from"),
        ("train --config c --device tpu", "'tpu' is not one of 'auto', 'cpu', 'cuda'."),
        ("train --confg c", "No such option: --confg"),
        ("sample", "Missing argument 'CKPT'."),
        ("sample r --prompt a --prompt-file b", "Invalid value: --prompt and --prompt-file exclude one another"),
        ("sample r --length 0", "Invalid value for '--length': "),
        ("sample r --length 9999999999999", "Invalid value for '--length': "),
        ("sample r --count 0", "Invalid value for '--count': "),
        ("sample r --count 10001", "Invalid value for '--count': "),
        ("sample r --seed -1", "Invalid value for '--seed': "),
        ("sample r --seed 9223372036854775808", "Invalid value for '--seed': "),
        ("sample r --temperature -1", "Invalid value for '--temperature': "),
        ("sample r --temperature nan", "Invalid value"),
        ("sample r --temperature inf", "Invalid value: --temperature: found inf; allowed: a finite number"),
        ("sample r --top-p 1.5", "Invalid value for '--top-p': "),
        ("sample r --top-p nan", "Invalid value"),
        ("sample r --top-k -1", "Invalid value for '--top-k': "),
        ("eval r --split test --file f", "Invalid value: --split and --file exclude one another"),
        ("eval r --split dev", "'dev' is not one of 'train', 'valid', 'test'."),
        ("eval r --streams 0", "Invalid value for '--streams': "),
        ("eval r --dynamic-lr 0.1", "Invalid value: --dynamic-lr needs --dynamic"),
        ("eval r --dynamic-decay 0", "Invalid value: --dynamic-decay needs --dynamic"),
        ("eval r --dynamic-steps 5 --json", "Invalid value: --dynamic-steps needs --dynamic"),
        ("eval r --dynamic --dynamic-lr -1", "Invalid value for '--dynamic-lr': "),
        ("eval r --dynamic --dynamic-lr nan", "Invalid value"),
        ("eval r --dynamic --dynamic-lr inf", "Invalid value: --dynamic-lr: found inf; allowed: a finite number"),
        ("eval r --dynamic --dynamic-decay 1.5", "Invalid value for '--dynamic-decay': "),
        ("eval r --dynamic --dynamic-decay nan", "Invalid value"),
        ("eval r --dynamic --dynamic-steps 0", "Invalid value for '--dynamic-steps': "),
        ("plan", "Missing option '--config'."),
        ("config check", "a config is needed, for example lstm; `charlm config list` shows the others"),
        ("config show a --config b", "found two configs, a and --config b; allowed: one; leave out the other"),
        ("data fetch", "Missing argument 'NAME...'."),
        ("data info x --level word", "Invalid value: --level: found 'word'; allowed: char | byte"),
    ],
)  # fmt: skip
def test_usage(cli, words, text):
    assert text in cli(*words.split()).usage_error


# --- config.


class TestConfig:
    def test_check(self, cli, tiny_config):
        for words in ([tiny_config], ["--config", tiny_config], [tiny_config, "--set", "model.cell.hidden=8"]):
            result = cli("config", "check", *words)
            assert (result.code, result.out, result.err) == (0, f"{tiny_config}: valid\n", "")

    def test_what_has_no_effect_is_said(self, cli, tiny_config, tmp_path):
        line = "ignored  model.residual: found true, which has no effect with one layer; set model.layers above 1\n"
        words = ["--set", "model.residual=true", "--set", "train.max_steps=1"]
        result = cli("config", "check", tiny_config, *words)
        assert (result.code, result.out, result.err) == (0, f"{tiny_config}: valid\n", line)
        assert line in cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run", *words).err

    @pytest.mark.parametrize("command", ["config check", "config show", "plan --config", "train --config"])
    def test_missing_file(self, cli, command, tmp_path):
        path = tmp_path / "no.yaml"
        error = cli(*command.split(), path).error
        assert error == f"{path}: found no such file; allowed: a YAML file, or a name from `charlm config list`"

    @pytest.mark.parametrize("command", ["config check", "config show", "plan --config", "train --config"])
    def test_all_faults_a_line_each(self, cli, command, tmp_path):
        path = tmp_path / "bad.yaml"
        path.write_text("model: {cell: {kind: rhn, dept: 3}}\nseed: true\n")
        result = cli(*command.split(), path, "--set", "threads=-1")
        assert (result.code, result.out) == (1, "")
        assert result.err == (
            f"error: {path}: model.cell.dept: unknown key; allowed: kind, hidden, depth, couple_gates, gate_bias; "
            "did you mean 'depth'?\n"
            f"error: {path}: seed: found true; allowed: an integer ≥ 0 and < 9223372036854775808\n"
            "error: --set threads=-1: threads: found -1; allowed: an integer ≥ 0 and ≤ 1024\n"
        )

    def test_show_can_be_read_back(self, cli, tiny_config, tmp_path):
        for words in ([tiny_config], ["--config", tiny_config]):
            result = cli("config", "show", *words, "--set", "optimizer={name: adam, lr: 1e-7}", "--set", "seed=9")
            assert (result.code, result.err) == (0, "")
            (tmp_path / "shown.yaml").write_text(result.out)
            config = load_config(tmp_path / "shown.yaml")
            assert config == load_config(tiny_config, ["optimizer={name: adam, lr: 1e-7}", "seed=9"])

    def test_schema(self, cli):
        result = cli("config", "schema")
        assert (result.code, result.err) == (0, "")
        assert json.loads(result.out) == Config.model_json_schema()

    def test_options(self, cli):
        result = cli("config", "options")
        assert (result.code, result.err) == (0, "")
        assert all(f"| `{key}` |" in result.out for key in flatten(Config()))


# --- data.


class TestData:
    def test_list(self, cli, tmp_path):
        (tmp_path / "text8.txt").touch()
        result = cli("data", "list", "--data-dir", tmp_path)
        assert (result.code, result.err) == (0, "")
        rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in result.out.splitlines()}
        assert list(rows) == ["builtin:python-stdlib", *CATALOGUE]
        assert rows["builtin:python-stdlib"].startswith("built in ")
        assert rows["text8"].startswith("fetched ")
        assert rows["enwik8"].startswith("to fetch ")

    def test_info_of_a_file(self, cli, tmp_path):
        content = "aabbbé\n".encode()
        (tmp_path / "t.txt").write_bytes(content)
        result = cli("data", "info", tmp_path / "t.txt")
        rows = dict(re.split(r"  +", line, maxsplit=1) for line in result.out.splitlines())
        assert (result.code, result.err) == (0, "")
        assert rows == {
            "sha256": hashlib.sha256(content).hexdigest(),
            "files": "1",
            "size": "8 bytes",
            "length": "7 chars",
            "vocabulary": "4",
            "most often": r"'b' 42.9%  'a' 28.6%  'é' 14.3%  '\n' 14.3%",
        }
        out = cli("data", "info", tmp_path / "t.txt", "--level", "byte").out
        rows = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
        assert (rows["length"], rows["vocabulary"]) == ("8 bytes", "256")
        assert rows["most often"] == r"b'b' 37.5%  b'a' 25.0%  b'\xc3' 12.5%  b'\xa9' 12.5%  b'\n' 12.5%"

    def test_info_of_a_corpus_that_is_not_here(self, cli, tmp_path):
        result = cli("data", "info", "enwik8", "--data-dir", tmp_path)
        assert result.code == 0
        assert "charlm data fetch enwik8" in result.out
        assert CATALOGUE["enwik8"].url in result.out

    def test_info_of_tinyshakespeare(self, cli, tinyshakespeare):
        out = cli("data", "info", "tinyshakespeare", "--data-dir", tinyshakespeare.parent).out
        rows = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
        assert (rows["length"], rows["vocabulary"]) == ("1,115,394 chars", "65")
        assert rows["sha256"] == CATALOGUE["tinyshakespeare"].sha256

    def test_info_of_a_missing_file(self, cli, tmp_path):
        (tmp_path / "there.txt").touch()
        assert cli("data", "info", tmp_path / "three.txt").error == (
            f"{tmp_path}/three.txt: no such file or folder; a source is a file, a folder, a glob or builtin:NAME; "
            f"did you mean '{tmp_path}/there.txt'?"
        )

    def test_fetch_of_an_unknown_name_fetches_nothing(self, cli, tmp_path):
        error = cli("data", "fetch", "text8", "tinyshakespear", "--data-dir", tmp_path).error
        assert error == (
            "tinyshakespear: no such corpus; allowed: tinyshakespeare | text8 | enwik8; did you mean 'tinyshakespeare'?"
        )
        assert list(tmp_path.iterdir()) == []

    def test_fetch_of_what_is_here_prints_its_path(self, cli, tinyshakespeare):
        result = cli("data", "fetch", "tinyshakespeare", "--data-dir", tinyshakespeare.parent)
        assert (result.code, result.out, result.err) == (0, f"{tinyshakespeare}\n", "")


# --- train, sample, eval, resume: one run after the other.


def test_what_runs_without_a_kernel_is_said(cli, trained_run, no_kernels):
    line = "lstm: fused torch layer (oneDNN); no fused CPU kernel: switched off by this test"
    sampled = cli("sample", trained_run, "--seed", 1, "--length", 5)
    assert (sampled.code, sampled.err.splitlines()) == (0, [line])
    scored = cli("eval", trained_run)
    assert (scored.code, scored.err.splitlines()[-1]) == (0, line)


def test_train_sample_eval_resume(cli, tiny_config, tmp_path):
    run = tmp_path / "run"
    result = cli("train", "--config", tiny_config, "--run-dir", run)
    assert (result.code, result.out) == (0, "")
    assert "\r" not in result.err
    assert "%|" not in result.err
    told = result.err.splitlines()
    assert [line.split()[0] for line in told] == [
        *["data"] * 3, "model", "device", "run", "valid", "sample", "valid", "sample", "done", "sample",
    ]  # fmt: skip
    done = r"done     max_steps at step 6, \d+\.\d s; best \d\.\d{4} nats \(\d\.\d{4} bits\) per character at step [36]"
    assert re.fullmatch(done, told[-2])
    assert told[-1] == f"sample   charlm sample {run}"

    written = cli("sample", run, "--prompt", "a", "--length", 30, "--seed", 1)
    assert (written.code, written.err) == (0, "")
    assert re.fullmatch(r"a[a-z .\n]{30}\n", written.out)

    scored = cli("eval", run, "--json")
    assert (scored.code, scored.err) == (0, "")
    rows = lines(run / "metrics.jsonl")
    best = min((row["nats"], row["step"]) for row in rows if row["split"] == "valid")
    assert (json.loads(scored.out)["nats_per_char"], json.loads(scored.out)["step"]) == (
        pytest.approx(best[0]),
        best[1],
    )

    resumed = cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=9", "--json")
    assert resumed.code == 0
    assert "change   train.max_steps: 6 → 9\n" in resumed.err
    assert f"resume   {run}/checkpoints/last.safetensors, step 6\n" in resumed.err
    outcome = json.loads(resumed.out)
    assert (outcome["step"], outcome["reason"], outcome["chars"]) == (9, "max_steps", 9 * 4 * 8)
    assert [row["step"] for row in lines(run / "metrics.jsonl") if row["split"] == "valid"] == [3, 6, 9]

    config = (run / "config.yaml").read_text()
    assert "max_steps: 9" in config


class TestTrain:
    def test_json(self, cli, tiny_config, tmp_path):
        result = cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run", "--json")
        assert result.code == 0
        assert result.out.count("\n") == 1
        outcome = json.loads(result.out)
        assert list(outcome) == [
            "run_dir", "reason", "step", "chars", "elapsed_s", "valid_nats", "best_nats", "best_step", "parameters",
        ]  # fmt: skip
        assert outcome["run_dir"] == str(tmp_path / "run")
        assert outcome["best_nats"] <= outcome["valid_nats"]

    def test_run_dir_by_default_has_the_config_s_name_and_the_time(self, cli, tiny_config, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("time.strftime", lambda *_: "20260102-030405")
        for name in ("tiny-20260102-030405", "tiny-20260102-030405-2"):
            result = cli("train", "--config", tiny_config, "--set", "train.max_steps=1", "--json")
            assert json.loads(result.out)["run_dir"] == f"runs/{name}"
            assert (tmp_path / "runs" / name / "checkpoints" / "last.safetensors").is_file()

    def test_set_and_device_are_written_down(self, cli, tiny_config, tmp_path):
        run = tmp_path / "run"
        words = ["--set", "seed=5", "--set", "device=auto", "--set", "train.max_steps=1", "--device", "cpu"]
        assert cli("train", "--config", tiny_config, "--run-dir", run, *words).code == 0
        config = load_config(run / "config.yaml")
        assert (config.seed, config.device, config.train.max_steps) == (5, "cpu", 1)

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (None, "{file}: no such file or folder; a source is a file, a folder, a glob or builtin:NAME; did you mean "
                   "'{folder}/text.txt'?"),
            (b"", "{file}: no text in 0 B; at least one character is needed; add text"),
            (b"\xef\xbb\xbf", "{file}: no text in 3 B; at least one character is needed; add text"),
            (b"abc", "train split: 2 characters; 4 streams of 8 steps need at least 33; lower train.batch_size or "
                     "train.bptt, or give it more text (data.split)"),
            (b"ab\xff", "{file}: byte 0xFF at offset 2 is not UTF-8 (invalid start byte); data.level: char needs UTF-8 "
                        "text; convert the file or set data.level: byte"),
        ],
        ids=["missing", "empty", "only a byte order mark", "too small", "not UTF-8"],
    )  # fmt: skip
    def test_corpus_that_cannot_be_used(self, cli, tiny_config, tmp_path, content, text):
        file = tmp_path / "texts.txt"
        if content is not None:
            file.write_bytes(content)
        for command in (["train", "--run-dir", tmp_path / "run"], ["plan"]):
            error = cli(*command, "--config", tiny_config, "--set", f"data.source={file}").error
            assert error == text.format(file=file, folder=tmp_path)
        assert not (tmp_path / "run").exists()

    def test_folder_that_holds_a_run(self, cli, tiny_config, trained_run):
        before = (trained_run / "config.yaml").read_bytes()
        assert cli("train", "--config", tiny_config, "--run-dir", trained_run).error == (
            f"{trained_run}: already holds a run; allowed: --resume to go on with it, or another --run-dir"
        )
        assert (trained_run / "config.yaml").read_bytes() == before

    def test_folder_that_is_a_file(self, cli, tiny_config, text_file):
        assert cli("train", "--config", tiny_config, "--run-dir", text_file).error == (
            f"{text_file}: {text_file} is a file; allowed: a folder that can be written; see --run-dir"
        )

    def test_cuda_that_is_not_there(self, cli, tiny_config, trained_run, tmp_path):
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device")
        for words in (
            ["train", "--config", tiny_config, "--run-dir", tmp_path / "run"],
            ["sample", trained_run],
            ["eval", trained_run],
        ):
            assert re.fullmatch(
                r"device: found cuda, but this PyTorch \(built (without CUDA|for CUDA [\d.]+)\) sees no GPU; "
                r"allowed here: auto \| cpu",
                cli(*words, "--device", "cuda").error,
            )

    @pytest.mark.parametrize("option", ["model.embedding=99999999999999999999", "model.cell.hidden=4000000000"])
    def test_sizes_beyond_any_memory(self, cli, tiny_config, tmp_path, option):
        words = ["--config", tiny_config, "--set", option]
        for command in (["train", "--run-dir", tmp_path / "run"], ["plan"]):
            assert re.fullmatch(
                r"memory: the model and a window need at least [\d.,]+ [TE]B; \S+ GB are available \(cpu\); "
                "lower model.cell.hidden, model.layers, train.batch_size or train.bptt",
                cli(*command, *words).error,
            )

    def test_memory_that_runs_out_all_the_same(self, cli, tiny_config, monkeypatch):
        from charlm.training import memory

        monkeypatch.setattr(memory, "available_bytes", lambda _: None)
        assert cli("plan", "--config", tiny_config, "--set", "model.cell.hidden=400000").error == (
            "out of memory; lower model.cell.hidden, train.batch_size or train.bptt"
        )


class TestResume:
    @pytest.mark.parametrize("made", [False, True])
    def test_without_a_run(self, cli, tmp_path, made):
        if made:
            (tmp_path / "run").mkdir()
        assert cli("train", "--resume", "--run-dir", tmp_path / "run").error == (
            f"{tmp_path}/run: no checkpoints/ to resume from; allowed: the folder of a run"
        )

    def test_with_other_options_of_the_model(self, cli, copied_run):
        words = ["--set", "model.cell.hidden=32", "--set", "train.bptt=9", "--set", "train.max_steps=9"]
        result = cli("train", "--resume", "--run-dir", copied_run, *words)
        assert (result.code, result.out) == (1, "")
        assert result.err == (
            "error: model.cell.hidden: found 32, the run has 16; allowed on --resume: the same; start a new run\n"
            "error: train.bptt: found 9, the run has 8; allowed on --resume: the same; start a new run\n"
        )

    def test_with_another_kind(self, cli, copied_run):
        words = ["--set", "optimizer.name=sgd", "--set", "model.cell.kind=gru"]
        result = cli("train", "--resume", "--run-dir", copied_run, *words)
        assert result.err == (
            "error: optimizer.name: found 'sgd', the run has 'adamw'; allowed on --resume: the same; start a new run\n"
            "error: model.cell.kind: found 'gru', the run has 'lstm'; allowed on --resume: the same; start a new run\n"
        )
        words = ["--set", "optimizer.schedule.name=cosine", "--set", "train.max_steps=7"]
        assert cli("train", "--resume", "--run-dir", copied_run, *words).code == 0
        words = ["--set", "optimizer.schedule.name=constant", "--set", "train.max_steps=8"]
        assert (
            "change   optimizer.schedule.name: 'cosine' → 'constant'\n"
            in cli("train", "--resume", "--run-dir", copied_run, *words).err
        )

    def test_with_another_config_file(self, cli, copied_run, tiny_config):
        result = cli("train", "--resume", "--run-dir", copied_run, "--config", tiny_config)
        assert result.code == 0
        moved = tiny_config.with_name("text.txt")
        assert result.err.startswith("change   data.source: ")
        assert result.err.splitlines()[0].endswith(f"→ '{moved}'")

    def test_with_a_fault_in_an_override(self, cli, copied_run):
        error = cli("train", "--resume", "--run-dir", copied_run, "--set", "train.max_stesp=9").error
        assert error.startswith("--set train.max_stesp=9: train.max_stesp: unknown key; allowed: ")
        assert error.endswith("; did you mean 'max_steps'?")

    def test_with_a_changed_corpus(self, cli, tiny_config, text_file, tmp_path):
        run = tmp_path / "run"
        assert cli("train", "--config", tiny_config, "--run-dir", run).code == 0
        text_file.write_text(words_text(20_001, seed=1)[1:])
        assert cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=9").error == (
            f"{text_file}: its text has changed since the run was trained, and its splits with it; "
            "allowed: the same text; train on a new one with --init-from, score one with --file"
        )
        assert cli("eval", run).error.startswith(f"{text_file}: its text has changed since the run was trained")
        assert cli("eval", run, "--file", text_file).code == 0
        text_file.write_text(words_text(19_999) + "Z")
        assert cli("eval", run).error.startswith(f"{text_file}: its text has changed since the run was trained")

    def test_from_a_damaged_checkpoint(self, cli, copied_run):
        """The newest whole one takes its place; with none left, one line."""
        last = copied_run / "checkpoints" / "last.safetensors"
        best = last.with_name("best.safetensors")
        best.write_bytes(best.read_bytes())  # no longer the same file under another name
        last.write_bytes(last.read_bytes()[:-1])
        result = cli("train", "--resume", "--run-dir", copied_run, "--set", "train.max_steps=8")
        assert result.code == 0
        assert f"damaged  {last}: damaged or no checkpoint (" in result.err
        assert f"resume   {best}, step 6\n" in result.err
        assert "done     max_steps at step 8" in result.err
        for path in last.parent.iterdir():
            path.write_bytes(b"")
        error = cli("train", "--resume", "--run-dir", copied_run).error
        assert error.startswith(f"{last}: damaged or no checkpoint (")
        assert error.endswith(f"; use another one of the run; no other in {last.parent} is whole")

    def test_a_checkpoint_of_a_later_version_is_not_passed_over(self, cli, copied_run):
        last = copied_run / "checkpoints" / "last.safetensors"
        last.write_bytes(last.read_bytes().replace(b'"version":"1"', b'"version":"2"'))
        error = cli("train", "--resume", "--run-dir", copied_run).error
        assert error == f"{last}: found format version 2; this charlm reads 1; update charlm"


class TestInitFrom:
    def test_other_model(self, cli, tiny_config, trained_run, tmp_path):
        words = ["--init-from", trained_run, "--set", "model.cell.hidden=32", "--set", "model.cell.kind=gru"]
        result = cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run", *words, "--set", "seed=2")
        assert result.code == 1
        assert result.err == (
            "error: model.cell.kind: found 'gru'; the checkpoint of --init-from has 'lstm'; allowed: the same\n"
        )

    def test_unseen_characters_and_a_grown_vocabulary(self, cli, tiny_config, trained_run, tmp_path):
        more = tmp_path / "more.txt"
        more.write_text(words_text(4000, seed=3) + "É Z\n" * 200)
        run = tmp_path / "run"
        words = ["train", "--config", tiny_config, "--run-dir", run, "--init-from", trained_run]
        words += ["--set", f"data.source={more}"]
        assert cli(*words).error == (
            f"data.source: the checkpoint of --init-from has never seen 'Z' (U+005A), 'É' (U+00C9); allowed: {SEEN}; "
            "--set data.grow_vocabulary=true gives new ones an id"
        )
        assert not run.exists()
        grown = cli(*words, "--set", "data.grow_vocabulary=true")
        assert grown.code == 0
        assert "grow     2 new characters: 'Z' (U+005A), 'É' (U+00C9)\n" in grown.err
        written = cli("sample", run, "--prompt", "É Z", "--length", 5, "--seed", 1)
        assert (written.code, written.out[:3]) == (0, "É Z")
        assert cli("eval", run, "--split", "test").code == 0
        assert cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=7").code == 0

    def test_missing_checkpoint(self, cli, tiny_config, tmp_path):
        words = ["--run-dir", tmp_path / "run", "--init-from", tmp_path / "no"]
        assert cli("train", "--config", tiny_config, *words).error == (
            f"{tmp_path}/no: no such file; allowed: a run's folder or a checkpoint in its checkpoints/"
        )


class TestSample:
    def test_the_same_seed_gives_the_same_text(self, cli, trained_run):
        first, again, other = (cli("sample", trained_run, "--length", 60, "--seed", seed).out for seed in (1, 1, 2))
        assert first == again != other
        assert len(first) == 61

    def test_a_seed_drawn_is_told_and_gives_the_text_again(self, cli, trained_run):
        result = cli("sample", trained_run, "--length", 40)
        seed = re.fullmatch(r"seed (\d+)\n", result.err).group(1)
        assert cli("sample", trained_run, "--length", 40, "--seed", seed).out == result.out

    def test_file_of_the_checkpoint(self, cli, trained_run):
        path = trained_run / "checkpoints" / "best.safetensors"
        words = ["--length", 20, "--seed", 1]
        assert cli("sample", path, *words).out == cli("sample", trained_run, *words).out

    def test_count(self, cli, trained_run):
        single = [cli("sample", trained_run, "--prompt", "a", "--length", 20, "--seed", seed).out for seed in (4, 5, 6)]
        result = cli("sample", trained_run, "--prompt", "a", "--length", 20, "--seed", 4, "--count", 3)
        assert result.out == "".join(
            f"--- seed {seed} ---\n{text}" for seed, text in zip((4, 5, 6), single, strict=True)
        )

    def test_json(self, cli, trained_run):
        plain = cli("sample", trained_run, "--prompt", "a", "--length", 20, "--seed", 4)
        result = cli("sample", trained_run, "--prompt", "a", "--length", 20, "--seed", 4, "--count", 2, "--json")
        assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
        value = json.loads(result.out)
        assert list(value) == ["checkpoint", "samples"]
        assert value["checkpoint"] == str(trained_run / "checkpoints" / "best.safetensors")
        assert [list(sample) for sample in value["samples"]] == [["seed", "prompt", "text"]] * 2
        assert [(sample["seed"], sample["prompt"]) for sample in value["samples"]] == [(4, "a"), (5, "a")]
        assert "a" + value["samples"][0]["text"] + "\n" == plain.out

    def test_stop(self, cli, trained_run):
        whole = cli("sample", trained_run, "--length", 200, "--seed", 1).out
        stop = whole[50:52]
        stopped = cli("sample", trained_run, "--length", 200, "--seed", 1, "--stop", stop).out
        assert stopped == whole[: whole.index(stop) + 2] + "\n"
        assert len(stopped) < len(whole)

    def test_temperature_zero_needs_no_luck(self, cli, trained_run):
        words = ["sample", trained_run, "--length", 30, "--temperature", 0]
        greedy = cli(*words, "--seed", 1).out
        assert greedy == cli(*words, "--seed", 2).out
        assert greedy == cli("sample", trained_run, "--length", 30, "--top-k", 1, "--seed", 3).out
        assert greedy == cli("sample", trained_run, "--length", 30, "--top-p", 0, "--seed", 4).out

    def test_largest_seed(self, cli, trained_run):
        assert cli("sample", trained_run, "--length", 5, "--seed", 2**63 - 1, "--count", 2).code == 0

    def test_novelty_is_told_apart_from_the_text(self, cli, trained_run):
        text = (trained_run.parent / "text.txt").read_text()[:18_000]
        words = ["sample", trained_run, "--prompt", "so ", "--length", 60, "--seed", 4, "--count", 2]
        plain, result = cli(*words), cli(*words, "--novelty")
        assert (result.code, result.out) == (0, plain.out)
        told = [line for line in result.err.splitlines() if line.startswith("novelty")]
        samples = [sample.removeprefix("so ") for sample in re.split(r"--- seed \d+ ---\n", plain.out)[1:]]
        for seed, line, sample in zip((4, 5), told, samples, strict=True):
            found = re.fullmatch(
                rf"novelty  seed {seed}; verbatim in the training text: (\d+\.\d)% of its windows of 20 characters; "
                r"at most (\d+) characters in a row: ('.*')",
                line,
            )
            stretch = ast.literal_eval(found[3])
            assert stretch in text
            assert stretch in sample
            assert len(stretch) == int(found[2])
            longer = (sample[at : at + len(stretch) + 1] for at in range(60 - len(stretch)))
            assert not any(other in text for other in longer)
            share = sum(sample[at : at + 20] in text for at in range(41)) / 41
            assert found[1] == f"{100 * share:.1f}"

    def test_novelty_is_against_the_training_text(self, cli, trained_run, monkeypatch):
        from charlm.inference import novelty as module

        asked, found = [], module.novelty
        monkeypatch.setattr(module, "novelty", lambda samples, corpus: asked.append(corpus) or found(samples, corpus))
        for words in ([], ["--json"]):
            assert cli("sample", trained_run, "--length", 30, "--seed", 4, "--novelty", *words).code == 0
        vocabulary = sorted(set(words_text(20_000)))
        assert ["".join(vocabulary[index] for index in ids) for ids in asked] == [words_text(20_000)[:18_000]] * 2

    def test_novelty_in_json(self, cli, trained_run):
        words = ["sample", trained_run, "--prompt", "a", "--length", 30, "--seed", 4, "--count", 2]
        samples = json.loads(cli(*words, "--json", "--novelty").out)["samples"]
        assert [list(sample) for sample in samples] == [["seed", "prompt", "text", "novelty"]] * 2
        assert [list(sample["novelty"]) for sample in samples] == [["longest", "stretch", "windows_share"]] * 2
        for sample in samples:
            assert sample["novelty"]["stretch"] in sample["text"]
            assert len(sample["novelty"]["stretch"]) == sample["novelty"]["longest"] > 0
        told = cli(*words, "--novelty").err
        assert all(repr(sample["novelty"]["stretch"]) in told for sample in samples)

    def test_novelty_of_less_than_a_window(self, cli, trained_run):
        words = ["sample", trained_run, "--length", 19, "--seed", 1, "--novelty"]
        assert "verbatim in the training text: shorter than 20 characters; at most " in cli(*words).err
        assert json.loads(cli(*words, "--json").out)["samples"][0]["novelty"]["windows_share"] is None

    def test_novelty_of_bytes(self, cli, tiny_config, tmp_path):
        from charlm.cli.sample import _novelty_line

        run = tmp_path / "bytes"
        assert cli("train", "--config", tiny_config, "--run-dir", run, "--set", "data.level=byte").code == 0
        result = cli("sample", run, "--length", 40, "--seed", 1, "--novelty", "--json")
        [sample] = json.loads(result.out)["samples"]
        assert sample["novelty"]["longest"] >= 1
        assert sample["novelty"]["windows_share"] == 0
        assert _novelty_line(7, {"longest": 2, "stretch": "é\n", "windows_share": 0.25}, "byte") == (
            "novelty  seed 7; verbatim in the training text: 25.0% of its windows of 20 bytes; "
            r"at most 2 bytes in a row: 'é\n'"
        )

    def test_unknown_characters_of_the_prompt(self, cli, trained_run):
        result = cli("sample", trained_run, "--prompt", "aZbé", "--length", 5, "--seed", 1)
        assert result.error == (
            "--prompt: found 'Z' (U+005A), 'b' (U+0062), 'é' (U+00E9), which the model has never seen; "
            f"allowed: {SEEN}; --skip-unknown leaves others out"
        )
        skipped = cli("sample", trained_run, "--prompt", "aZbés", "--length", 5, "--seed", 1, "--skip-unknown")
        assert (skipped.code, skipped.err) == (0, "prompt: left out 'Z' (U+005A), 'b' (U+0062), 'é' (U+00E9)\n")
        assert skipped.out == cli("sample", trained_run, "--prompt", "as", "--length", 5, "--seed", 1).out

    def test_prompt_file_and_stdin(self, cli, trained_run, tmp_path):
        words = ["sample", trained_run, "--length", 5, "--seed", 1]
        expected = cli(*words, "--prompt", "so\ntee").out
        file = tmp_path / "prompt.txt"
        file.write_bytes(b"so\ntee")
        assert cli(*words, "--prompt-file", file).out == expected
        assert cli(*words, "--prompt-file", "-", stdin=b"so\ntee").out == expected

    def test_prompt_file_that_cannot_be_used(self, cli, trained_run, tmp_path):
        words = ["sample", trained_run, "--seed", 1, "--prompt-file"]
        file = tmp_path / "prompt.txt"
        assert cli(*words, file).error == (
            f"--prompt-file {file}: No such file or directory; allowed: a text file, or - for stdin"
        )
        assert cli(*words, tmp_path).error == (
            f"--prompt-file {tmp_path}: Is a directory; allowed: a text file, or - for stdin"
        )
        file.write_bytes(b"\xef\xbb\xbfso")
        assert cli(*words, file, "--length", 1).out.startswith("so")
        file.write_bytes(b"abc\xff")
        assert cli(*words, file).error == f"--prompt-file {file}: found no UTF-8 at byte offset 3; allowed: UTF-8"
        assert (
            cli(*words, "-", stdin=b"\xff").error == "--prompt-file -: found no UTF-8 at byte offset 0; allowed: UTF-8"
        )
        file.write_text("Z")
        assert cli(*words, file).error.startswith(
            f"--prompt-file {file}: found 'Z' (U+005A), which the model has never "
        )

    def test_control_characters_are_shown_as_such_on_a_terminal(self, capsys, monkeypatch):
        from charlm.cli.sample import _stream

        _stream("a\x1b[2J", ["\n\t\x07"])
        assert capsys.readouterr().out == "a\x1b[2J\n\t\x07\n"
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        _stream("a\x1b[2J", ["\n\t\x07\x9bé"])
        assert capsys.readouterr().out == "a\\x1b[2J\n\t\\x07\\x9bé\n"


class TestBadCheckpoint:
    @pytest.mark.parametrize("command", ["sample", "eval"])
    def test_each_in_one_line(self, cli, trained_run, tmp_path, command):
        import torch
        from safetensors.torch import save_file

        good = (trained_run / "checkpoints" / "last.safetensors").read_bytes()
        marker = tmp_path / "run by the pickle"

        class Malice:
            def __reduce__(self):
                return os.mkdir, (str(marker),)

        save_file({"a": torch.zeros(1)}, tmp_path / "other")
        bad = {
            "missing": (None, r"no such file; allowed: a run's folder or a checkpoint in its checkpoints/"),
            "empty": (b"", r"damaged or no checkpoint \(.*\); use another one of the run"),
            "truncated": (good[: len(good) // 2], r"damaged or no checkpoint \(.*\); use another one of the run"),
            "altered": (good[:-1] + b"\x7f", "altered or damaged: its content hash does not match; use another one"),
            "pickle": (pickle.dumps(Malice()), r"damaged or no checkpoint \(.*\); use another one of the run"),
            "text": (b"to be or not to be", r"damaged or no checkpoint \(.*\); use another one of the run"),
            "other": ((tmp_path / "other").read_bytes(), "a safetensors file, but no charlm checkpoint"),
            "newer": (
                good.replace(b'"version":"1"', b'"version":"2"'),
                "found format version 2; this charlm reads 1; update charlm",
            ),
        }
        for name, (content, text) in bad.items():
            path = tmp_path / f"{name}.safetensors"
            if content is not None:
                assert content != good
                path.write_bytes(content)
            assert re.fullmatch(re.escape(f"{path}: ") + text, cli(command, path).error), name
        assert not marker.exists()
        error = f"{tmp_path}: no checkpoint in {tmp_path}/checkpoints; allowed: the folder of a run, or a checkpoint"
        assert cli(command, tmp_path).error == error


class TestEval:
    KEYS = ("checkpoint", "step", "text", "nats_per_char", "bits_per_char", "targets", "chars_per_s")

    def test_splits(self, cli, trained_run):
        for split, targets in (("train", 17_999), ("valid", 999), ("test", 999)):
            result = cli("eval", trained_run, "--split", split, "--json")
            assert (result.code, result.out.count("\n")) == (0, 1)
            value = json.loads(result.out)
            assert tuple(value) == self.KEYS
            assert (value["text"], value["targets"], value["step"]) == (split, targets, 6)
            assert value["bits_per_char"] == pytest.approx(value["nats_per_char"] * 1.4426950408889634)

    def test_table_says_the_same(self, cli, trained_run):
        table = dict(re.split(" +", line, maxsplit=1) for line in cli("eval", trained_run).out.splitlines())
        value = json.loads(cli("eval", trained_run, "--split", "valid", "--json").out)
        assert tuple(table) == self.KEYS
        assert table["nats_per_char"] == f"{value['nats_per_char']:.4f}"
        assert table["targets"] == "999"
        assert table["checkpoint"] == str(trained_run / "checkpoints" / "best.safetensors")

    def test_per_char_adds_up(self, cli, trained_run, tmp_path):
        file = tmp_path / "other.txt"
        file.write_text("so, the rain\n".replace(",", "").replace("h", ""))
        text = file.read_text()
        result = cli("eval", trained_run, "--file", file, "--per-char", tmp_path / "scores.csv", "--json")
        assert result.code == 0
        value = json.loads(result.out)
        assert (value["text"], value["targets"]) == (str(file), len(text) - 1)
        with (tmp_path / "scores.csv").open(newline="", encoding="utf-8") as table:
            header, *rows = csv.reader(table)
        assert header == ["position", "character", "nats", "bits"]
        assert [(int(position), symbol) for position, symbol, *_ in rows] == list(enumerate(text))[1:]
        assert sum(float(row[2]) for row in rows) / len(rows) == pytest.approx(value["nats_per_char"], abs=1e-5)
        assert sum(float(row[3]) for row in rows) / len(rows) == pytest.approx(value["bits_per_char"], abs=1e-5)

    def test_per_char_that_cannot_be_written(self, cli, trained_run, tmp_path):
        file = tmp_path / "no" / "scores.csv"
        assert cli("eval", trained_run, "--per-char", file).error == (
            f"--per-char {file}: No such file or directory; allowed: a file that can be written"
        )

    def test_dynamic(self, cli, trained_run):
        path = trained_run / "checkpoints" / "best.safetensors"
        before = path.read_bytes()
        static = json.loads(cli("eval", trained_run, "--streams", 1, "--json").out)
        words = ["eval", trained_run, "--dynamic", "--dynamic-lr", 0.01, "--dynamic-steps", 10]
        result = cli(*words, "--json")
        assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
        value = json.loads(result.out)
        dynamic = value.pop("dynamic")
        assert value | {"chars_per_s": 0} == static | {"chars_per_s": 0}
        assert list(dynamic) == [*self.KEYS[3:], "streams", "lr", "decay", "steps"]
        assert dynamic["nats_per_char"] < static["nats_per_char"]
        assert dynamic["bits_per_char"] == pytest.approx(dynamic["nats_per_char"] / math.log(2))
        assert (dynamic["targets"], dynamic["streams"], dynamic["lr"], dynamic["steps"]) == (999, 1, 0.01, 10)

        table = dict(re.split(" +", line, maxsplit=1) for line in cli(*words).out.splitlines())
        assert tuple(table) == (*self.KEYS, "dynamic")
        for key in ("nats_per_char", "bits_per_char"):
            assert table[key] == f"{value[key]:.4f} static  {dynamic[key]:.4f} dynamic"
        assert table["dynamic"] == f"streams 1, lr 0.01, decay {dynamic['decay']}, steps 10"
        assert path.read_bytes() == before

    def test_dynamic_defaults_are_those_of_the_help(self, cli, trained_run):
        from charlm.inference.dynamic import Adaptation

        text = " ".join(cli("eval", "--help").out.split())
        for name, value in vars(Adaptation()).items():
            assert re.search(rf"--dynamic-{name} [^-]*\[default: {value}\]", text), name
        dynamic = json.loads(cli("eval", trained_run, "--dynamic", "--json").out)["dynamic"]
        assert dynamic.items() >= {"streams": 1, **vars(Adaptation())}.items()

    def test_dynamic_scores_by_character(self, cli, trained_run, tmp_path):
        file = tmp_path / "other.txt"
        file.write_text("so\ntee\n" * 30)
        words = ["eval", trained_run, "--file", file, "--json", "--per-char", tmp_path / "scores.csv"]
        sums = []
        for dynamic in ([], ["--dynamic"]):
            value = json.loads(cli(*words, *dynamic).out)
            with (tmp_path / "scores.csv").open(newline="", encoding="utf-8") as table:
                rows = list(csv.DictReader(table))
            sums.append(sum(float(row["nats"]) for row in rows) / len(rows))
            assert sums[-1] == pytest.approx(value.get("dynamic", value)["nats_per_char"], abs=1e-5)
        assert sums[0] != pytest.approx(sums[1], abs=1e-3)

    def test_what_needs_the_training_text(self, cli, tiny_config, text_file, tmp_path):
        run, file = tmp_path / "run", tmp_path / "other.txt"
        assert cli("train", "--config", tiny_config, "--run-dir", run).code == 0
        file.write_text("so\ntee\n" * 30)
        text_file.write_text("so\ntee\n" * 30)
        needing = (["eval", run, "--file", file, "--dynamic"], ["sample", run, "--novelty"])
        for words in needing:
            changed = f"{text_file}: its text has changed since the run was trained, and its splits with it; "
            for error in (cli(*words).error, cli(*words, "--json").error):
                assert error.startswith(f"{words[-1]} needs the text that the run was trained on: {changed}")
                assert error.endswith(f"; put it back or leave out {words[-1]}")
        text_file.unlink()
        for words in needing:
            option = words[-1]
            assert re.fullmatch(
                f"{option} needs the text that the run was trained on: {text_file}: no such file or folder; "
                f".*; put it back or leave out {option}",
                cli(*words).error,
            )
            assert cli(*words[:-1]).code == 0

    def test_gradients_are_measured_on_the_training_text(self, cli, trained_run, tmp_path, monkeypatch):
        from charlm.inference import dynamic

        file, asked, measured = tmp_path / "other.txt", [], dynamic.gradient_rms
        file.write_text("so\ntee\n" * 30)
        monkeypatch.setattr(dynamic, "gradient_rms", lambda *of, **how: asked.append(of[1]) or measured(*of, **how))
        for words in (["--file", file], ["--split", "test"]):
            assert cli("eval", trained_run, "--dynamic", *words).code == 0
        vocabulary = sorted(set(words_text(20_000)))
        assert ["".join(vocabulary[index] for index in ids) for ids in asked] == [words_text(20_000)[:18_000]] * 2

    def test_dynamic_rate_that_is_too_high(self, cli, trained_run):
        assert re.fullmatch(
            "dynamic evaluation: found a loss of (nan|inf) nats; allowed: finite numbers; lower --dynamic-lr",
            cli("eval", trained_run, "--dynamic", "--dynamic-lr", 1e38).error,
        )

    def test_absent_split(self, cli, tiny_config, tmp_path):
        run = tmp_path / "run"
        words = ["--set", "data.split=[1, 0, 0]", "--set", "train.max_steps=1"]
        assert cli("train", "--config", tiny_config, "--run-dir", run, *words).code == 0
        for given, split in ((["--split", "test"], "test"), ([], "valid")):
            assert cli("eval", run, *given).error == (
                f"--split {split}: the run has none; allowed: train, or --file FILE"
            )

    def test_unknown_characters_of_a_file(self, cli, trained_run, tmp_path):
        file = tmp_path / "other.txt"
        file.write_text("so\nZ so Z, é\n", encoding="utf-8")
        listed = "'Z' (U+005A) × 2, ',' (U+002C) × 1, 'é' (U+00E9) × 1"
        assert cli("eval", trained_run, "--file", file).error == (
            f"{file}: {listed}: not in the model's vocabulary of 14 characters; use text without them or a model that "
            "knows them"
        )
        skipped = cli("eval", trained_run, "--file", file, "--skip-unknown", "--json")
        assert skipped.code == 0
        assert (
            skipped.err.splitlines(True)[-1]
            == f"{file}: left out 4 characters: 'Z' (U+005A), ',' (U+002C), 'é' (U+00E9)\n"
        )
        assert json.loads(skipped.out)["targets"] == 8

    def test_file_that_cannot_be_used(self, cli, trained_run, tmp_path):
        file = tmp_path / "other.txt"
        assert cli("eval", trained_run, "--file", file).error.startswith(f"{file}: no such file or folder; ")
        file.write_text("s")
        assert cli("eval", trained_run, "--file", file).error == (
            "evaluation: found a text of 1 characters; allowed: 2 or more"
        )
        file.write_text("ZZ")
        assert cli("eval", trained_run, "--file", file, "--skip-unknown").error == (
            f"{file}: none of its characters is in the model's vocabulary; use other text"
        )


class TestPlan:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch):
        from charlm.training import plan

        monkeypatch.setattr(plan, "_MEASURE_S", 0.01)

    def test_table(self, cli, tiny_config, tmp_path):
        result = cli("plan", "--config", tiny_config)
        assert (result.code, result.err) == (0, "")
        rows = dict(re.split("  +", line, maxsplit=1) for line in result.out.splitlines())
        assert list(rows) == [
            "train", "valid", "test", "vocabulary", "parameters", "memory", "layers", "speed", "epoch",
        ]  # fmt: skip
        assert rows["train"] == "18,000 characters"
        # V·E; 4·H·(E + H) and torch's two biases of 4·H; H·V + V
        assert rows["parameters"] == "2,014 (embedding 112, layers 1,664, logits 238)"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "tiny.yaml"]

    def test_windows_that_grow_are_measured_at_their_full_length(self, cli, tiny_config, monkeypatch):
        from charlm.training import plan

        found = []

        def update_once(trainer):
            trainer.update()
            found.append(trainer.state.chars)
            return 1.0

        monkeypatch.setattr(plan, "_step_s", update_once)
        result = cli("plan", "--config", tiny_config, "--set", "train.bptt_start=1", "--set", "train.vary_bptt=0.5")
        assert (result.code, found) == (0, [4 * 8])

    def test_json(self, cli, tiny_config):
        result = cli("plan", "--config", tiny_config, "--set", "train.bptt=16", "--json")
        assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
        value = json.loads(result.out)
        assert list(value) == [
            "splits", "vocabulary", "parameters", "weights_bytes", "optimizer_bytes", "activations_bytes",
            "steps_per_epoch", "step_s", "chars_per_s", "epoch_s", "backend",
        ]  # fmt: skip
        assert value["splits"] == {"train": 18_000, "valid": 1000, "test": 1000}
        assert value["steps_per_epoch"] == (17_999 // 4) // 16
        assert value["chars_per_s"] == pytest.approx(4 * 16 / value["step_s"])
        assert value["weights_bytes"] == 2 * 4 * sum(value["parameters"].values())


# --- Processes of their own.


def test_a_reader_that_has_gone_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "charlm", "config", "schema"]
    with os.fdopen(writing, "wb") as gone:
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")


def test_module_is_the_command_and_errors_need_no_utf8_terminal(tmp_path):
    (tmp_path / "bad.yaml").write_text("seed: -1\n")
    done = subprocess.run(
        [sys.executable, "-m", "charlm", "config", "check", "bad.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(Path(charlm.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("error: bad.yaml: seed: found -1; allowed: an integer \\u2265 0 and < 9223372036854775808\n")


def test_an_unexpected_error_keeps_its_traceback(cli, monkeypatch):
    def broken() -> str:
        raise RuntimeError("a bug of charlm")

    monkeypatch.setattr("charlm.config.options.options_table", broken)
    with pytest.raises(RuntimeError, match="a bug of charlm"):
        cli("config", "options")
