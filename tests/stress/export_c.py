"""Runs the tests of exported C files with several compilers and for other machines (scripts/stress export_c).

What is not installed is left out and named: clang, ziglang (a package of pip), and qemu-user.
"""

import importlib.util
import os
import shutil
import subprocess
import sys

ZIG = f"{sys.executable} -m ziglang cc -target"
TARGETS = {
    "gcc, sanitizers": ("gcc -g -fsanitize=address,undefined -fno-sanitize-recover", ""),
    "clang": ("clang", ""),
    "ARM, 64 bits": (f"{ZIG} aarch64-linux-musl", "qemu-aarch64"),
    "ARM, 32 bits": (f"{ZIG} arm-linux-musleabihf", "qemu-arm"),
    "x86, 32 bits": (f"{ZIG} x86-linux-musl", "qemu-i386"),
    "MIPS, big-endian": (f"{ZIG} mips-linux-musleabihf", "qemu-mips"),
}
"""A compiler of C, and what runs its programs."""
FOR_CXX = {"gcc": "g++", "clang": "clang++", "cc": "c++"}


def main() -> None:
    failed = []
    for name, (compiler, emulator) in TARGETS.items():
        missing = [tool for tool in (compiler.split()[0], *emulator.split()) if not shutil.which(tool)]
        if compiler.startswith(ZIG) and not importlib.util.find_spec("ziglang"):
            missing.append("ziglang")
        if missing:
            print(f"{name}: left out; {', '.join(missing)} is not installed", flush=True)
            continue
        print(name, flush=True)
        for_cxx = " ".join(FOR_CXX.get(word, word) for word in compiler.split())
        environment = os.environ | {"CHARLM_CC": compiler, "CHARLM_CXX": for_cxx, "CHARLM_CC_RUN": emulator}
        command = [sys.executable, "-m", "pytest", "-q", "tests/export/test_c.py"]
        if subprocess.run(command, env=environment, check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"export_c: failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
