"""What tests of whole commands and runs share. Nothing here imports torch: tests that need none start at once."""

import errno
import io
import itertools
import os
import shutil
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from charlm.system.cache import cache_dir
from tests.browser import chromium, opened  # noqa: F401 (fixtures)
from tests.text import words_text
from tests.windows import windows  # noqa: F401 (a fixture)

if TYPE_CHECKING:
    from charlm.inference.trained import TrainedModel

ROOT = Path(__file__).parents[1]
USERS_CACHE = cache_dir()

TINY = """\
data: {{source: {source}}}
model: {{cell: {{kind: lstm, hidden: 16}}, embedding: 8}}
train: {{batch_size: 4, bptt: 8, max_steps: 6, log_every: 2, eval_every: 3, sample_every: 3, sample_length: 20}}
device: cpu
threads: 1
precision: fp32
"""


LEARNS_SOON = [
    "model.cell.hidden=24",
    "optimizer.lr=0.02",
    "train.bptt=16",
    "train.log_every=100",
    "train.eval_every=200",
]


def _refuse_the_network(event: str, arguments: tuple[object, ...]) -> None:
    """Of the tests' own process: what they start themselves is this machine's."""
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in _OWN:
        raise AssertionError(f"a test asks for the network: {arguments[1]}")


_OWN = ("127.0.0.1", "::1", "localhost")
sys.addaudithook(_refuse_the_network)

if not Path("/dev/nvidiactl").exists():
    # Without a GPU, Triton's kernels run in its interpreter. It decides that when it is imported, by torch for example.
    os.environ["TRITON_INTERPRET"] = "1"

# Set before torch is imported: more threads than cores run at once here, so those that wait should sleep, not spin.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# charlm heeds that background jobs ignore Ctrl-C, and nohup a SIGHUP; processes started here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="one case of every test, for each kind of cell; none slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --quick, keep the first case of every test; of a test that runs over kinds of cells, the first of each."""
    if not config.getoption("--quick"):
        return
    first: dict[tuple[str, str], pytest.Item] = {}
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        case = parameters.get("case", parameters.get("kind"))
        kind = str(getattr(case, "kind", case))  # not the variants of a kind
        if "slow" not in item.keywords:
            first.setdefault((item.nodeid.partition("[")[0], kind), item)
    kept = set(first.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.fixture(autouse=True)
def cache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The cache folder of this test alone, empty; charlm makes it when it needs it.

    Once torch is imported, this process has the compiled kernels in memory and does not look for them in the cache.
    """
    if "torch" in sys.modules:
        request.getfixturevalue("compiled")
    folder = tmp_path_factory.getbasetemp() / "caches" / f"{next(_NUMBERS)}"
    monkeypatch.setenv("CHARLM_CACHE", str(folder))
    return folder


_NUMBERS = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The cache folder of fixtures that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHARLM_CACHE", str(tmp_path_factory.getbasetemp() / "caches/shared"))
        yield


@pytest.fixture(scope="session")
def compiled() -> Path:
    """Compile all kernels, once for all workers and later runs; returns their folder, in the user's own cache.

    Without a compiler the tests run without kernels.
    """
    from charlm.native.kernels import SHARED_KERNELS, kernel_of
    from charlm.native.loading import KernelError, load
    from tests.cells.measure import CASES, compiled_options

    cells = [case.start(1, 2).cell for case in CASES]
    of_kinds = {kernel_of(cell, options) for cell in cells for options in compiled_options(cell)}
    folder = USERS_CACHE / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The first worker compiles while the others wait, then they find the kernels in the cache.
    with FileLock(folder / ".lock"), pytest.MonkeyPatch.context() as patch, suppress(KernelError):
        patch.setenv("CHARLM_CACHE", str(USERS_CACHE))
        load(*SHARED_KERNELS, *of_kinds)
    return folder


@pytest.fixture(scope="session")
def libraries(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The compiled kernels, on the disk of the tests; what tests compile is kept with the others in the end."""
    folder = tmp_path_factory.mktemp("kernels")
    _link_libraries(compiled, folder)
    yield folder
    _link_libraries(folder, compiled)


@pytest.fixture
def kernels(cache: Path, libraries: Path) -> Iterator[None]:
    """Compiled kernels for this process and for those that the test starts."""
    folder = cache / "kernels"
    folder.mkdir(mode=0o700, parents=True)
    _link_libraries(libraries, folder)
    yield
    _link_libraries(folder, libraries)


def _link_libraries(source: Path, target: Path) -> None:
    """Give the libraries in a folder second names in another; copies on another disk."""
    for file in [*source.glob("*.sha256"), *source.glob("*.so")]:  # one without its digest is compiled again
        with suppress(FileExistsError, FileNotFoundError):
            try:
                os.link(file, target / file.name)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM):
                    raise
                shutil.copy2(file, target / f".{file.name}.{os.getpid()}")
                (target / f".{file.name}.{os.getpid()}").replace(target / file.name)


@pytest.fixture(autouse=True)
def same_start() -> None:
    """Every test draws the same random numbers, on one thread, which is quickest for small tensors."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        torch.manual_seed(0)


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of a user's mistake, without `error: `."""
        assert self.code == 1, self
        lines = self.err.splitlines()
        assert [line.startswith("error: ") for line in lines] == [False] * (len(lines) - 1) + [True], self.err
        assert self.out == ""
        return lines[-1].removeprefix("error: ")

    @property
    def usage_error(self) -> str:
        """What a wrong use of options is told, behind the usage line."""
        assert self.code == 2, self
        assert self.err.startswith("Usage: charlm"), self.err
        assert self.out == ""
        return self.err.split("\nError: ", 1)[1].rstrip("\n")


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What charlm does without kernels."""
    from charlm.native import loading

    monkeypatch.setattr(loading, "_outcomes", {})
    monkeypatch.setenv("CHARLM_KERNELS", "none")


@pytest.fixture
def needs_kernels(kernels: None) -> None:
    """For tests of what kernels do."""
    from charlm.native.kernels import PRODUCT
    from charlm.native.loading import KernelError, load

    try:
        load(PRODUCT)
    except KernelError as error:
        if "no C++ compiler" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture
def cli(kernels: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs `charlm ARGS…` in this process; an exception that no user can cause comes through."""

    def run(*args: object, stdin: bytes | None = None) -> Result:
        from charlm.cli import main

        monkeypatch.setattr(sys, "argv", ["charlm", *map(str, args)])
        monkeypatch.setattr("charlm.cli.commands.IMPORTED_S", time.perf_counter())
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err, err
        code = left.value.code
        return Result(code if isinstance(code, int) else 0, out, err)

    return run


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """20,000 characters of lower-case words, full stops and line ends."""
    path = tmp_path / "text.txt"
    path.write_text(words_text(20_000), encoding="utf-8")
    return path


@pytest.fixture
def tiny_config(tmp_path: Path, text_file: Path) -> Path:
    """A config that trains within a second."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.format(source=text_file), encoding="utf-8")
    return path


def train(folder: Path, text: str, *settings: str) -> Path:
    """Train the tiny config with these settings on a text in this folder; returns the run's folder."""
    from charlm.config import load_config, read_settings
    from charlm.training.start import start_run

    (folder / "text.txt").write_text(text, encoding="utf-8")
    (folder / "tiny.yaml").write_text(TINY.format(source=folder / "text.txt"), encoding="utf-8")
    start_run(load_config(folder / "tiny.yaml", read_settings(settings)), folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Path:
    """The folder of a run of the tiny config, to read only: every test shares it."""
    return train(tmp_path_factory.mktemp("trained"), words_text(20_000))


@pytest.fixture
def copied_run(trained_run: Path, tmp_path: Path) -> Path:
    """A run of this test's own, in the place where its config says its text is."""
    return shutil.copytree(trained_run, tmp_path / "run")


@pytest.fixture
def model(trained_run: Path) -> "TrainedModel":
    """The model of that run."""
    from charlm.inference.loading import load

    return load(trained_run, device="cpu")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's number of threads; the test's end sets one again."""
    import torch

    yield torch.set_num_threads
    torch.set_num_threads(1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds that take no time to measure: updates take longer, the larger the model is."""
    monkeypatch.setattr("charlm.training.plan._MEASURE_S", 0.01)
    monkeypatch.setattr("charlm.choice.speed.measure", lambda config, *_: 1e-8 * config.model.cell.hidden**2)


@pytest.fixture
def standard_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python takes for its standard library."""
    folder = tmp_path / "library"
    folder.mkdir()
    get_path = sysconfig.get_path
    monkeypatch.setattr(sysconfig, "get_path", lambda name, *_: str(folder) if name == "stdlib" else get_path(name))
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes | str], str]:
    """Writes a file below tmp_path, with its folders, and returns its path."""

    def write(name: str, content: bytes | str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write
