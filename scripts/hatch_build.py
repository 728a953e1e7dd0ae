"""Build hook: with CHARLM_WHEEL=<platform>, a wheel holds the kernels of all built-in cells, compiled for it by zig.

Without that variable nothing is compiled, and charlm compiles its kernels where it runs. Needs what scripts/wheels
installs: ziglang, and charlm's own dependencies, because the cells' C++ is generated.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, get_args

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-std=c++20", "-O3", "-ffp-contract=fast", "-fvisibility=hidden", "-w"]


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
        self.folder = Path(tempfile.mkdtemp())
        compile_kernels(PLATFORMS[name], self.folder)
        build_data |= {"pure_python": False, "tag": f"py3-none-{PLATFORMS[name].tag}"}
        build_data["force_include"][str(self.folder)] = "charlm/native/shipped"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


def compile_kernels(platform: Platform, folder: Path) -> None:
    """The library of threads in `folder`, and all others in a folder for each level."""
    from charlm.native.build import THREADS, shipped_path
    from charlm.native.fused import SHARED_KERNELS, fused
    from charlm.system.host import count_cores

    with tempfile.TemporaryDirectory() as temporary:
        objects = Path(temporary)
        runtime = objects / "runtime.o"
        _zig(
            platform,
            platform.base,
            ["-c", "-fno-exceptions"],
            THREADS.source.with_name("runtime.cpp").read_text(),
            runtime,
        )
        threads = shipped_path(folder, THREADS)
        _zig(platform, platform.base, _shared(platform, threads), _text(THREADS), threads)
        libraries = {fused(cell) for cell in shipped_cells()} | set(SHARED_KERNELS)

        def build(level: str, library: Any) -> None:
            unit = objects / f"{library.name}-{library.digest}-{level}.o"
            flags = ["-c", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"]
            _zig(platform, platform.levels[level], flags, _text(library), unit)
            out = shipped_path(folder / level, library)
            # As C: without the C++ runtime.
            options = ["-target", platform.target, *_shared(platform, out)]
            _run(["cc", *options, str(unit), str(runtime), "-lm", "-o", str(out)])

        for level in platform.levels:
            (folder / level).mkdir()
        with ThreadPoolExecutor(count_cores()) as pool:
            done = [pool.submit(build, level, library) for level in platform.levels for library in libraries]
        for one in done:
            one.result()
    for extra in folder.rglob("*.lib"):  # on Windows zig writes what a linker would need
        extra.unlink()


def shipped_cells() -> Iterator[Any]:
    """Each kind with its defaults and with each other choice of an option, the usual depths, and those of configs/."""
    from charlm.cells import CELLS, RHN, Mogrifier
    from charlm.config import load_config

    for kind in CELLS.values():
        yield kind()
        for name, field in kind.model_fields.items():
            choices = (True, False) if field.annotation is bool else get_args(field.annotation)
            for choice in choices if name != "kind" and all(isinstance(one, str | bool) for one in choices) else ():
                yield kind(**{name: choice})
    for depth in range(1, 11):
        yield RHN(depth=depth)
    for rounds in range(7):
        yield Mogrifier(rounds=rounds)
    for path in sorted(Path("configs").glob("*.yaml")):
        yield load_config(path).model.cell


def _shared(platform: Platform, out: Path) -> list[str]:
    """Options for a shared library whose symbols must all be there."""
    if "linux" in platform.target:
        return ["-shared", "-s", "-Wl,-z,defs"]  # elsewhere a linker's default
    # On macOS a library would hold the path at which it was linked.
    return ["-shared", "-s", *([f"-Wl,-install_name,{out.name}"] if "macos" in platform.target else [])]


def _text(library: Any) -> str:
    return f'#include "{library.source}"\n{library.code}'


def _zig(platform: Platform, cpu: str, options: list[str], source: str, out: Path) -> None:
    """Compile C++ from a file beside `out`."""
    file = out.with_suffix(".cpp")
    file.write_text(source)
    position = [] if "windows" in platform.target else ["-fPIC"]
    _run(["c++", "-target", platform.target, f"-mcpu={cpu}", *FLAGS, *position, *options, str(file), "-o", str(out)])
    file.unlink()


def _run(command: list[str]) -> None:
    completed = subprocess.run([sys.executable, "-m", "ziglang", *command], capture_output=True, text=True)
    if completed.returncode:
        raise SystemExit(f"zig {' '.join(command)}:\n{completed.stderr}")
