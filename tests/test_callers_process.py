"""What charlm's functions leave of the process that calls them: its settings, its forks and its threads."""

import gc
import logging
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tqdm import tqdm

import charlm
from charlm.system import lock
from charlm.system.device import fp32_precision

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
TEXTS = ["no tea on a line"] * 40 + ["one seat.\n" * 300]


def settings() -> dict[str, object]:
    umask = os.umask(0o22)
    os.umask(umask)
    return {
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "NumPy's random state": str(np.random.get_state()),
        "Python's random state": random.getstate(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads(), threading.enumerate()),
        "products": (torch.get_float32_matmul_precision(), fp32_precision(), torch.is_autocast_enabled("cpu")),
        "determinism": (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), list(gc.callbacks)),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "environment": dict(os.environ),
        "files": (umask, Path.cwd(), list(sys.path), sys.stdout, sys.stderr),
        "processes": (multiprocessing.active_children(), multiprocessing.get_start_method(allow_none=True)),
        "limits": [resource.getrlimit(which) for which in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)],
        "logging": (logging.root.level, list(logging.root.handlers)),
        "progress bars": tqdm.monitor_interval,
        "warnings": (list(warnings.filters), warnings.showwarning, np.geterr()),
    }


def use(model):
    return model.surprise(TEXTS).tolist(), model.sample("no ", length=50, seed=1), model.next("te")


def test_settings_are_as_before(tiny_config, trained_run, tmp_path, threads, monkeypatch):
    def fail(row):
        raise ValueError("mine")

    threads(2)
    torch.manual_seed(7)
    monkeypatch.setattr(tqdm, "monitor_interval", 10)
    before = settings()
    model = charlm.load(trained_run, "cpu")
    use(model)
    model.features(TEXTS)
    model.evaluate_dynamically("no tea\n" * 20)
    charlm.train(config=tiny_config, overrides={"threads": 1}, run_dir=tmp_path / "run")
    assert settings() == before
    with pytest.raises(ValueError, match="mine"):
        charlm.train(config=tiny_config, on_log=fail, run_dir=tmp_path / "failed")
    assert settings() == before
    with torch.inference_mode():  # in which nothing could be trained
        charlm.train(config=tiny_config, run_dir=tmp_path / "inference")
        assert torch.is_inference_mode_enabled()


PROGRAM = """
import os, resource, sys
from pathlib import Path
import charlm

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

before = dict(os.environ)
charlm.train(config=sys.argv[1], run_dir=sys.argv[2])
assert before == dict(os.environ), set(before.items()) ^ set(os.environ.items())

import numpy as np
before = resident_bytes()
block = np.ones(10**8, np.uint8)
del block
print(resident_bytes() - before)
"""


def test_a_program_keeps_its_environment_and_returns_what_it_frees(tiny_config, tmp_path, monkeypatch):
    """After a first training, which imports torch."""
    for name in ("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    command = [sys.executable, "-c", PROGRAM, str(tiny_config), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 10**7


def test_a_function_for_rows_may_change_the_working_folder(tiny_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    run = charlm.train(config=tiny_config, run_dir="run", on_log=lambda row: os.chdir("elsewhere"))
    assert Path.cwd() == tmp_path
    assert run.metrics[-1]["step"] == 6


def test_a_forked_process_does_the_same_with_one_thread(tiny_config, trained_run, tmp_path, threads):
    def train(name, threads):
        run = charlm.train(config=tiny_config, run_dir=tmp_path / name, overrides={"threads": threads})
        return run.best_nats

    def work(connection):
        connection.send((use(model), use(charlm.load(trained_run, "cpu")), train("child", 2)))

    model = charlm.load(trained_run, "cpu")
    wanted = use(model), use(model), train("alone", 1)
    threads(2)
    torch.ones(10**6).exp()  # starts the threads that the child will lack
    train("parent", 2)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=work, args=(theirs,))
    trains, ends = threading.Event(), threading.Event()

    def train_meanwhile():
        with lock.one_training:
            trains.set()
            ends.wait()

    thread = threading.Thread(target=train_meanwhile)
    thread.start()
    trains.wait()
    child.start()
    try:
        assert ours.poll(60), "the child hangs"
        assert ours.recv() == wanted
    finally:
        ends.set()
        child.kill()
        thread.join()


def test_threads_train_one_after_another(tiny_config, trained_run, tmp_path):
    def train(name):
        run = charlm.train(config=tiny_config, run_dir=tmp_path / name, overrides={"model.dropout.output": 0.2})
        return run.best_nats

    model = charlm.load(trained_run, "cpu")
    wanted, alone = use(model), train("alone")
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(train, f"{n}") for n in range(2)]
        while not all(run.done() for run in runs):
            assert use(charlm.load(trained_run, "cpu")) == use(model) == wanted
    assert [run.result() for run in runs] == [alone] * 2
