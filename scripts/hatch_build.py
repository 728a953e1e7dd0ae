"""Build hook: with CHARLM_WHEEL=<platform>, a wheel holds the kernels of all built-in cells, compiled for it by zig.

Without that variable nothing is compiled, and charlm compiles its kernels where it runs. Needs what scripts/wheels
installs; not PyTorch. Libraries are kept in charlm's cache, so only what changed is compiled.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, NamedTuple, get_args

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-std=c++20", "-O3", "-ffp-contract=fast", "-fvisibility=hidden", "-w"]
RUNTIME = Path(__file__).resolve().parents[1] / "charlm/native/runtime.cpp"


class Platform(NamedTuple):
    """Where a wheel runs: its tag, zig's name for the system, and the CPU of each level."""

    tag: str
    target: str
    base: str
    """The oldest CPU."""
    levels: dict[str, str]


_X86 = {
    "x86-64-v3": "x86_64_v3",
    "x86-64-v4": "x86_64_v4",
    # AMX is used where the system grants it.
    "x86-64-v4-bf16": "x86_64_v4+avx512bf16+amx_tile+amx_bf16",
}
PLATFORMS = {
    "linux-x86_64": Platform("manylinux_2_28_x86_64", "x86_64-linux-gnu.2.28", "x86_64", _X86),
    "linux-aarch64": Platform("manylinux_2_28_aarch64", "aarch64-linux-gnu.2.28", "generic", {"arm64": "generic"}),
    "macos-arm64": Platform("macosx_11_0_arm64", "aarch64-macos.11.0", "apple_m1", {"arm64": "apple_m1"}),
    "windows-x86_64": Platform("win_amd64", "x86_64-windows-gnu", "x86_64", _X86),
}


class Kernels(BuildHookInterface):
    """Adds the compiled kernels of CHARLM_WHEEL to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        name = os.environ.get("CHARLM_WHEEL")
        if not name:
            return
        if name not in PLATFORMS:
            raise SystemExit(f"CHARLM_WHEEL: found {name}; allowed: {', '.join(PLATFORMS)}")
        sys.path.insert(0, self.root)
        folder = Path(self.root, "build/kernels", name)
        shutil.rmtree(folder, ignore_errors=True)
        compile_kernels(PLATFORMS[name], folder)
        build_data |= {"pure_python": False, "tag": f"py3-none-{PLATFORMS[name].tag}"}
        build_data["force_include"][str(folder)] = "charlm/native/shipped"


def compile_kernels(platform: Platform, folder: Path) -> None:
    """The library of threads in `folder`, and all others in a folder for each level."""
    from charlm.native.loading import THREADS
    from charlm.system.cache import limit_cache
    from charlm.system.host import count_cores

    libraries = shipped_kernels()
    with ThreadPoolExecutor(count_cores()) as pool:
        done = [pool.submit(_put, THREADS, platform, platform.base, folder)]
        for level, cpu in platform.levels.items():
            done += [pool.submit(_put, library, platform, cpu, folder / level) for library in libraries]
    for one in done:
        one.result()
    limit_cache("kernels")


def _put(library: Any, platform: Platform, cpu: str, folder: Path) -> None:
    """Put a library into a folder: from charlm's cache, or compiled if a source, an option or zig has changed."""
    from charlm.native.loading import shipped_path
    from charlm.system.cache import cache_folder, open_private
    from charlm.system.files import replace_file

    options = "".join(file.read_text() for file in (Path(__file__), RUNTIME))
    parts = [platform.target, cpu, options, version_of("ziglang"), library.digest]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    kept = cache_folder("kernels") / f"{library.name}-{digest}.so"
    out = shipped_path(folder, library)
    try:
        with open_private(kept) as file:
            data = file.read()
    except OSError:
        with tempfile.TemporaryDirectory() as temporary:
            data = _compile(library, platform, cpu, Path(temporary, out.name))
        replace_file(kept, data, 0o700)
    folder.mkdir(parents=True, exist_ok=True)
    out.write_bytes(data)


def _compile(library: Any, platform: Platform, cpu: str, out: Path) -> bytes:
    from charlm.native.loading import THREADS

    source, unit = out.with_suffix(".cpp"), out.with_suffix(".o")
    shared = ["-shared", "-s"]
    if "linux" in platform.target:
        shared.append("-Wl,-z,defs")  # all symbols must be there: elsewhere a linker's default
    if "macos" in platform.target:
        shared.append(f"-Wl,-install_name,{out.name}")  # else the library would hold the path at which it was linked
    compiler = ["c++", "-target", platform.target, f"-mcpu={cpu}", *FLAGS]
    if "windows" not in platform.target:
        compiler.append("-fPIC")
    text = f'#include "{library.source}"\n{library.text}'
    if library is THREADS:
        source.write_text(text)
        _zig([*compiler, *shared, str(source), "-o", str(out)])
    else:
        source.write_text(f'{text}\n#include "{RUNTIME}"\n')
        flags = ["-c", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"]
        _zig([*compiler, *flags, str(source), "-o", str(unit)])
        # As C: without the C++ runtime.
        _zig(["cc", "-target", platform.target, *shared, str(unit), "-lm", "-o", str(out)])
    return out.read_bytes()


def _zig(command: list[str]) -> None:
    completed = subprocess.run([sys.executable, "-m", "ziglang", *command], capture_output=True, text=True)
    if completed.returncode:
        raise SystemExit(f"zig {' '.join(command)}:\n{completed.stderr}")


def shipped_kernels() -> list[Any]:
    """The kernels that all trainings need, those of usual cells, and of other depths without options of states."""
    from charlm.cells import RHN, Mogrifier
    from charlm.cells.state_options import ALL, PLAIN
    from charlm.native.kernels import SHARED_KERNELS, kernel_of

    of_cells = [kernel_of(cell, options) for cell in usual_cells() for options in (PLAIN, ALL)]
    of_cells += [kernel_of(RHN(depth=depth)) for depth in range(1, 11)]
    of_cells += [kernel_of(Mogrifier(rounds=rounds)) for rounds in range(7)]
    different = {(kernel.name, kernel.digest): kernel for kernel in of_cells}
    return [*SHARED_KERNELS, *different.values()]


def usual_cells() -> Iterator[Any]:
    """Each kind with its defaults and with each other choice of an option, and those of configs/."""
    from charlm.cells import CELLS, RHN
    from charlm.config import load_config

    for kind in CELLS.values():
        yield kind()
        for name, field in kind.model_fields.items():
            choices = (True, False) if field.annotation is bool else get_args(field.annotation)
            for choice in choices if name != "kind" and all(isinstance(one, str | bool) for one in choices) else ():
                yield kind(**{name: choice})
    yield RHN(depth=4)  # which charlm chooses
    for path in sorted(Path("configs").glob("*.yaml")):
        yield load_config(path).model.cell
