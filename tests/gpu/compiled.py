"""Compiles the kernels of cells for GPUs, which needs none: python -m tests.gpu.compiled ARCHITECTURES CASES

Exits with an error if a kernel spills registers to memory. Its own process, because Triton must not interpret kernels.
"""

import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from charlm.cells.derivative import passes_of
from charlm.cells.state_options import ALL, PLAIN
from charlm.cells.triton import TritonKernel, kernels
from charlm.gpu.kernels import AS_WRITTEN, compiled, shape
from tests.cells.measure import CASES

KINDS = {"given_row": "i32", "copy": "*bf16", "d_copy": "*bf16"}
DUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def main() -> None:
    warnings.simplefilter("ignore")
    architectures = [int(number) for number in sys.argv[1].split(",")]
    for case in CASES:
        if str(case) not in sys.argv[2:]:
            continue
        for options, bf16 in ((PLAIN, False), (ALL, True)):
            passes = passes_of(case.start(1, 2).forms[0].program, options)
            functions, both = compiled(passes, bf16), kernels(passes, bf16)
            for kernel in [kernel for _, those in (*both.forward, *both.backward) for kernel in those]:
                for units in (40, 512, 1500) if kernel.whole_rows else (512,):
                    for architecture in architectures:
                        check(functions[kernel.name], kernel, architecture, units, tl.int32)
                check(functions[kernel.name], kernel, architectures[0], 512, tl.int64)


def check(function: object, kernel: TritonKernel, architecture: int, units: int, index: object) -> None:
    types = {argument.name: KINDS.get(argument.kind, "*fp32") for argument in kernel.arguments}
    types |= {"B": "i32", "N": "i32", "BLOCK": "constexpr", "INDEX": "constexpr"}
    block = shape(kernel, units)
    constants = {"BLOCK": block.pop("BLOCK"), "INDEX": index}
    source = ASTSource(fn=function, signature=types, constexprs=constants)
    binary = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={**block, **AS_WRITTEN})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary.asm["cubin"])
        used = subprocess.run([DUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    stack = re.search(r"STACK:(\d+)", used)
    # Registers that do not suffice spill to the stack. Triton 3.7 spills up to 24 bytes of a kernel of 1,500 units.
    assert stack is not None
    assert int(stack[1]) <= (24 if triton.__version__.startswith("3.7.") else 0), (kernel.name, units, used)
    assert "LOCAL:0 " in used, (kernel.name, units, used)
    assert binary.metadata.shared <= 48 * 1024


if __name__ == "__main__":
    main()
