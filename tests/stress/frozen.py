"""Freezes what charlm computes, so that two checkouts can be compared bit for bit on one machine.

python tests/stress/frozen.py --out before.json        in one checkout
python tests/stress/frozen.py --compare before.json    in the other; exit code 1 if something differs

A case is a tiny training on one backend, or a command on its model. It uses only what a user sees: the command line and
a run's files. No hash depends on a tensor's name, on wall-clock time, or on a field that is not listed here. A command
that fails has its exit code and error in place of a hash.
"""

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import random
import re
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BACKENDS = {"native": "", "reference": "none"}
"""Values of CHARLM_KERNELS."""
METRICS = ("step", "chars", "split", "loss", "nats", "bpc", "lr", "grad_norm")
SCORES = "nats_per_char|bits_per_char|bits|per_char|probability"
Cases = dict[str, dict[str, str]]

CONFIG = """\
model: {cell: {kind: lstm, hidden: 13}, embedding: 7}
train: {batch_size: 3, bptt: 10, max_steps: 12, log_every: 3, eval_every: 6, sample_every: 6, sample_length: 20}
optimizer: {lr: 0.01, clip_norm: 5}
seed: 7
device: cpu
precision: fp32
threads: 1
"""

CELL = '''\
from charlm.cells import Cell, sigmoid, tanh


class Leaky(Cell):
    """Each unit learns how fast it forgets."""

    leak: float = 0.0
    """Initial value of the leaks, before the sigmoid."""

    def step(self, p, x, h):
        a = sigmoid(p.vector("leak", start=self.leak))
        return h + a * (tanh(p.product("weight_ih", x) + p.product("weight_hh", h) + p.vector("bias")) - h)
'''

# Case, kind of cell, and overrides; `m`, `c`, `t`, `o` and `s` stand for sections (SECTIONS).
TRAININGS = """\
rnn              rnn
rnn-relu         rnn        c.nonlinearity=relu m.layers=2 m.residual=true o.name=adagrad
rnn-orthogonal   rnn        m.orthogonal=true m.zoneout=0.2 precision=bf16
lstm             lstm
lstm-norm        lstm       c.layer_norm=true m.layers=2 m.dropout=0.2 m.tie_embeddings=true
lstm-members     lstm       m.members=3 m.dropout=0.1 s.name=cosine s.warmup_steps=3
lstm-bf16        lstm       precision=bf16 m.layers=2 m.dropout.weights=0.3 t.ema=0.8
lstm-norm-bf16   lstm       precision=bf16 c.layer_norm=true m.zoneout=0.1 c.forget_bias=null
lstm-uniform     lstm       m.init_uniform=0.1 c.hidden=33 m.embedding=0 o.name=rmsprop
lstm-lines       lstm       data.unit=line m.layers=2 o.clip_norm=0.5
lstm-penalties   lstm       t.activation_penalty=2 t.change_penalty=1 m.dropout={output: 0.3, variational: true}
lstm-resets      lstm       t.reset_state=0.5 o.name=adam
lstm-decay       lstm       o.weight_decay=0.1 o.betas=[0.8, 0.95] o.clip_norm=0 t.ema=0.5 m.dropout=0.2
gru              gru
gru-dropout      gru        m.layers=2 m.dropout={state: 0.2, input: 0.1, variational: true} o.name=muon
gru-places       gru        m.layers=3 m.residual=true m.dropout={embedding: 0.2, between_layers: 0.3, output: 0.1}
gru-members      gru        m.members=3 m.layers=2 m.tie_embeddings=true data.unit=line m.zoneout=0.1
gru-bytes        gru        data.level=byte t.read_share=0.5 o.name=sgd o.momentum=0.9
gru-bf16         gru        precision=bf16 m.dropout.weights=0.2 s.name=linear s.final_fraction=0.5
rhn              rhn        c.depth=3
rhn-uncoupled    rhn        c.depth=2 c.couple_gates=false c.gate_bias=-1 m.zoneout=0.1 o.name=muon
rhn-dropout      rhn        c.depth=2 m.layers=2 m.dropout={weights: 0.2, state: 0.2} precision=bf16 o.name=adagrad
rhn-lines        rhn        c.depth=1 data.unit=line o.clip_value=0.05 s.name=linear
slstm            slstm
slstm-exp        slstm      c.forget_gate=exponential c.forget_bias=-0.5 m.layers=2 m.zoneout=0.1
mogrifier        mogrifier
mogrifier-rank   mogrifier  c.rounds=3 c.rank=2 m.layers=2 m.dropout=0.2 precision=bf16
sru              sru
sru-plain        sru        c.normalize=false c.highway_bias=-1 m.layers=2 m.dropout.state=0.2 m.embedding=13
mingru           mingru
mingru-positive  mingru     c.positive=true m.layers=2 m.residual=true o.name=rmsprop o.momentum=0.5
mingru-epochs    mingru     data.split=[0.6, 0.4, 0] t.max_steps=null t.max_epochs=0.03 precision=bf16
minlstm          minlstm
minlstm-step     minlstm    c.positive=true s.name=step s.factor=0.5 s.after_epochs=0 t.max_steps=60
own              own
own-options      own        c.leak=0.7 m.layers=2 m.dropout.weights=0.2 m.zoneout=0.1 m.tie_embeddings=true
"""
SECTIONS = {"m": "model", "c": "model.cell", "t": "train", "o": "optimizer", "s": "optimizer.schedule"}
RESUMED = ("lstm-decay", "gru-members", "rhn-dropout", "own-options")
"""Trainings that are also stopped halfway and resumed, which must not change anything."""

# Case whose model it is, a name, and the command; FILE is a text.
COMMANDS = """\
lstm           greedy      sample RUN --length 40 --temperature 0
lstm           hot         sample RUN --length 40 --seed 5 --temperature 1.3
lstm           top-k       sample RUN --length 40 --seed 5 --top-k 4
lstm           top-p       sample RUN --length 40 --seed 5 --top-p 0.6
lstm           count       sample RUN --length 40 --seed 5 --count 3
lstm           next        next RUN --prompt ab --top 7 --json
lstm           test        eval RUN --split test --json
lstm           dynamic     eval RUN --dynamic --json
lstm           file        score RUN FILE --per-char --json
rhn-uncoupled  dynamic     eval RUN --dynamic --json
gru-members    count       sample RUN --seed 5 --count 4
lstm-lines     count       sample RUN --seed 5 --count 4
lstm-lines     per-char    score RUN FILE --per-char --json
gru-bytes      top-p       sample RUN --length 40 --seed 5 --top-p 0.8
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Freeze what charlm computes, or compare it with what was frozen.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the hashes, as JSON")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="hashes to compare with")
    arguments = parser.parse_args()
    began_s = time.perf_counter()
    cases: Cases = {}
    for backend in BACKENDS:
        # A process for each backend: charlm reads CHARLM_KERNELS once.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            cases |= process.submit(measured, backend).result()
    faults = [f"{case}: {field}: {value}" for case in cases for field, value in cases[case].items() if " " in value]
    if arguments.compare:
        faults = list(differences(json.loads(arguments.compare.read_text(encoding="utf-8")), cases))
    for case in cases:
        if case.endswith("/resumed") and cases[case] != cases[case.removesuffix("/resumed")]:
            faults.append(f"{case}: differs from the training that was not stopped")
    if arguments.out:
        arguments.out.write_text(json.dumps(cases, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(*faults, f"{len(cases)} cases, {len(faults)} faults, {time.perf_counter() - began_s:.0f} s", sep="\n")
    sys.exit(bool(faults))


def differences(before: Cases, after: Cases) -> Iterator[str]:
    for case in sorted(before | after):
        old, new = before.get(case, {}), after.get(case, {})
        fields = {"train"} if "train" in new else old | new
        for field in sorted(fields):
            if old.get(field) != new.get(field):
                yield f"{case}: {field}: before {old.get(field)}, now {new.get(field)}"


def measured(backend: str) -> Cases:
    """The cases of one backend, in this process."""
    os.environ["CHARLM_KERNELS"] = BACKENDS[backend]
    sys.path.insert(0, str(ROOT))
    cases: Cases = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
        (folder / "leaky.py").write_text(CELL, encoding="utf-8")
        (folder / "text.txt").write_text(markov_text(20_000, draws=1), encoding="utf-8")
        (folder / "scored.txt").write_text(markov_text(400, draws=2), encoding="utf-8")
        for line in TRAININGS.splitlines():
            case, kind, *overrides = re.split(r"\s+(?=[\w.]+=)|\s{2,}", line)
            settings = as_settings(folder, kind, overrides)
            cases[f"{backend}/{case}"] = training(folder, case, *settings)
            if case in RESUMED:
                cases[f"{backend}/{case}/resumed"] = training(folder, f"{case}-resumed", *settings, stop_at=6)
        tuning = [*as_settings(folder, "gru", []), "--init-from", folder / "gru"]
        cases[f"{backend}/gru/fine-tuned"] = training(folder, "fine-tuned", *tuning)
        for line in COMMANDS.splitlines():
            case, name, *command = line.split()
            files = {"RUN": folder / case, "FILE": folder / "scored.txt"}
            words = [files.get(word, word) for word in command]
            field, read = ("sample", sample) if command[0] == "sample" else ("scores", scores)
            cases[f"{backend}/{case}/{name}"] = {field: attempt(read, words)}
    return cases


def markov_text(length: int, draws: int) -> str:
    """Characters of one Markov chain with four likely successors each; `draws` seeds what is drawn from it."""
    alphabet, chain, draw = "abcdefghijklmnopqrstuvw .,éß→\n", random.Random(0), random.Random(draws)
    successors = {character: chain.sample(alphabet, 4) for character in alphabet}
    text = "a"
    while len(text) < length:
        likely = draw.random() < 0.9
        text += draw.choices(successors[text[-1]], [8, 4, 2, 1])[0] if likely else draw.choice(alphabet)
    return text


def as_settings(folder: Path, kind: str, overrides: list[str]) -> list[str]:
    """The command line's options."""
    kind = f"{folder}/leaky.py:Leaky" if kind == "own" else kind
    settings = ["--set", f"model.cell.kind={kind}"]
    for override in overrides:
        section, dot, name = override.partition(".")
        settings += ["--set", f"{SECTIONS.get(section, section)}{dot}{name}"]
    return settings


def training(folder: Path, name: str, *options: Any, stop_at: int | None = None) -> dict[str, str]:
    """Train, with a stop in between if `stop_at` is given; what the run wrote and what its model does."""
    run = folder / name
    start = ["train", "--config", folder / "config.yaml", folder / "text.txt", "--run-dir", run, *options]
    if stop_at:
        fault = attempt(charlm, [*start, "--set", f"train.max_steps={stop_at}"])
        fault = fault or attempt(charlm, ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=12"])
    else:
        fault = attempt(charlm, start)
    if fault:
        return {"train": fault}
    evaluated = ["eval", run, "--json"]
    scored = ["score", run, folder / "scored.txt", "--json"]
    return {
        "weights": attempt(tensors, run, "weights", "averaged"),
        "optimizer": attempt(tensors, run, "optimizer"),
        "metrics": attempt(metrics, run),
        "sample": attempt(sample, ["sample", run, "--prompt", "ab", "--length", 40, "--seed", 3]),
        "scores": attempt(scores, evaluated, scored),
    }


def attempt(function: Callable[..., str], *arguments: Any) -> str:
    """What the function returns, or what went wrong: a later charlm may lack an option or keep its files elsewhere."""
    try:
        return function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]


def tensors(run: Path, *groups: str) -> str:
    """Hash of the tensors in these groups of the last checkpoint, in an order that does not depend on their names."""
    from safetensors import safe_open

    [path] = run.rglob("last.safetensors")
    with safe_open(path, framework="np") as file:
        names = [name for name in file.keys() if name.startswith(tuple(f"{group}/" for group in groups))]  # noqa: SIM118
        values = [file.get_tensor(name) for name in names]
    if not values:
        raise ValueError(f"no tensors of {groups} in {path.name}")
    return digest(*sorted(digest(str(value.dtype), value.tobytes()) for value in values))


def metrics(run: Path) -> str:
    [path] = run.rglob("metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return digest(*(repr([row.get(name) for name in METRICS]) for row in rows))


def sample(command: list[Any]) -> str:
    return digest(charlm(command))


def scores(*commands: list[Any]) -> str:
    """Hash of the numbers in SCORES that the commands print as JSON, in an order that does not depend on its keys."""
    lines = "".join(charlm(command) for command in commands).splitlines()
    numbers = [sorted(re.findall(rf'"(?:{SCORES})":\s*(?:\[.*?\]|[^],}}]+)', line)) for line in lines]
    if not any(numbers):
        raise ValueError(f"no score in {lines}")
    return digest(json.dumps(numbers))


def digest(*parts: str | bytes) -> str:
    sha256 = hashlib.sha256()
    for part in parts:
        content = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        sha256.update(b"%d:" % len(content) + content)
    return sha256.hexdigest()


def charlm(command: list[Any]) -> str:
    """What `python -m charlm` prints on stdout (`train` with a config: nothing); RuntimeError if it fails."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    sys.argv = ["charlm", *map(str, command)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module("charlm", run_name="__main__")
            code: Any = 0
        except SystemExit as left:
            code = left.code
    printed, said = (stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in (out, err))
    if code:
        raise RuntimeError(f"exit code {code}: {' '.join(said.splitlines()[-1:])}")
    return printed


if __name__ == "__main__":
    main()
