"""Whether a backend agrees with the reference loop, and the proof that a driver of a GPU does.

A driver proves itself before layers first use it, on the card that will compute them: in a few small windows with the
kernels that will run. The cache keeps the outcome.
"""

import functools
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from charlm.cells.derivative import passes_of
from charlm.cells.on_tensors import array_of
from charlm.cells.state_options import StateOptions
from charlm.cells.triton import kernels
from charlm.errors import DataError, LoopError, is_out_of_memory
from charlm.gpu.graphs import reason_of
from charlm.gpu.recurrence import GpuDriver
from charlm.layers.backend import Backend, LayerCall, LayerForm, Task
from charlm.layers.buffers import BufferCache
from charlm.layers.recurrence import gpu_layer
from charlm.layers.reference import REFERENCE
from charlm.system.cache import cache_folder, limit_cache, open_private
from charlm.system.console import say
from charlm.system.device import autocasts_to_bf16, describe_card, fp32_precision, without_autocast
from charlm.system.files import replace_file

HIDDEN, INPUTS = 13, 5
STEPS, STREAMS, RUNS = 6, 3, 4
_TIMES = 4
"""How much more a backend may err than the reference loop in float32."""
_EXACT = 1e-10
"""How much it may err in float64, relative to the largest value or 1."""
CPU = torch.device("cpu")

Results = dict[str, Tensor]
"""Outputs, last states, and gradients."""
Start = tuple[Tensor, LayerCall]
"""The input of a layer [T, B, I], and the rest of its call."""


# The comparison


def random_starts(
    form: LayerForm, options: StateOptions, parameters: dict[str, Tensor] | None = None, *, training: bool = True
) -> list[Start]:
    """RUNS calls, from states that a step from zeros reaches; in float64 on the CPU.

    parameters: of the layer; None: random ones, near the initial ones. training: in an evaluation, zoneout has the same
    shares for all steps and streams.
    """
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device=CPU)

    if parameters is None:
        parameters = {}
        for declared in form.program.parameters:
            parameters[declared.name] = 0.3 * draw(*declared.shape(form.hidden, form.inputs))
            blocks = parameters[declared.name].view(max(1, len(declared.starts)), -1)
            for block, start in zip(blocks, declared.starts, strict=False):
                if isinstance(start, float | bytes):
                    # The layer's own array has another length: its numbers repeat.
                    array = array_of(start) if isinstance(start, bytes) else torch.tensor([start], dtype=torch.float64)
                    value = array[torch.arange(len(block)) % len(array)]
                    block *= torch.where(value == 0, 1, value.abs().clamp(max=1))  # most keep their signs
                    block += value
    shares = (STEPS, STREAMS) if training else (1, 1)
    plain, passes, starts = passes_of(form.program), passes_of(form.program, options), []
    for _ in range(RUNS):
        zeros = tuple(draw(STREAMS, form.hidden).zero_() for _ in passes.states)
        with torch.no_grad():
            first = LayerCall(plain, parameters, form.inputs, zeros, {})
            _, state = REFERENCE.layer(draw(1, STREAMS, form.inputs), first)
        given = {}
        if options.mask:
            given["mask"] = 2.0 * (draw(1, STREAMS, form.hidden) > 0)
        if options.zoneout:
            given["zoneout"] = draw(*shares, len(passes.states) * form.hidden).sigmoid()
        if options.resets:
            given["keep"] = (draw(STEPS, STREAMS, 1) > -0.5).double()
        call = LayerCall(passes, parameters, form.inputs, state, given)
        starts.append((draw(STEPS, STREAMS, form.inputs), call))
    return starts


def run(backend: Backend, start: Start) -> Results:
    """Outputs, last states, and all gradients, under fixed gradients of both; in float64 on the CPU."""
    x_TBI, given = start
    x_TBI, *state = (tensor.detach().requires_grad_() for tensor in (x_TBI, *given.state))
    parameters, trained = {}, {one.name for one in given.passes.split.program.parameters if not one.fixed}
    for name, tensor in given.parameters.items():
        parameters[name] = tensor.detach().requires_grad_(name in trained)
    call = given._replace(state=tuple(state), parameters=parameters)
    y_TBH, last = backend.layer(x_TBI, call)
    names = call.passes.states
    outputs = {"y": y_TBH} | dict(zip(names, last, strict=True))
    inputs = {"dx": x_TBI} | {f"d{name}0": tensor for name, tensor in zip(names, state, strict=True)}
    inputs |= {f"d{name}": parameters[name] for name in parameters if name in trained}
    generator = torch.Generator().manual_seed(2)
    upstream = [torch.randn(output.shape, generator=generator).to(output) for output in outputs.values()]
    pairs = zip(outputs.values(), upstream, strict=True)
    objective = sum(((output * d_output).sum() for output, d_output in pairs if output.requires_grad), torch.zeros(()))
    gradients = [torch.zeros_like(tensor) for tensor in inputs.values()]
    if objective.requires_grad:
        gradients = torch.autograd.grad(objective, [*inputs.values()], allow_unused=True, materialize_grads=True)
    results = outputs | dict(zip(inputs, gradients, strict=True))
    return {name: tensor.detach().cpu().double() for name, tensor in results.items()}


def moved(start: Start, device: torch.device, dtype: torch.dtype) -> Start:
    """The tensors of a start on a device, in a dtype."""
    x_TBI, call = start
    parameters = {name: tensor.to(device, dtype) for name, tensor in call.parameters.items()}
    given = {name: tensor.to(device, dtype) for name, tensor in call.given.items()}
    state = tuple(tensor.to(device, dtype) for tensor in call.state)
    return x_TBI.to(device, dtype), call._replace(parameters=parameters, given=given, state=state)


def disagreement(
    results: list[Results], expected: list[Results], truth: list[Results], tolerance: float | None = None
) -> str:
    """What errs more than _TIMES the expected errors, in words; "" if nothing does.

    tolerance: an error that is allowed, relative to the largest value or 1; None: of rounding.
    """
    if tolerance is None:
        tolerance = _EXACT if expected is truth else 2 * torch.finfo(torch.float32).eps
    for name in truth[0]:
        size = max(float(one[name].abs().max()) for one in truth)
        allowed = _TIMES * largest_error(expected, truth, name) + tolerance * max(1.0, size)
        found = largest_error(results, truth, name)
        if not found <= allowed:
            return f"{name} differs from the reference loop by up to {found:.2g}"
    return ""


def largest_error(results: list[Results], truth: list[Results], name: str) -> float:
    """The largest error of a result in all runs; NaN if one is NaN."""
    errors = [(result[name] - true[name]).abs().max() for result, true in zip(results, truth, strict=True)]
    return float(torch.stack(errors).max())


# The proof

_AGREES = "agrees"
_GPU_ROUNDING = 1e-4
"""Rounding of a GPU's exp must not cost the speed of its loop. What is wrong differs by more."""


def fault_on_device(driver: GpuDriver, task: Task, device: torch.device) -> str | None:
    """Why a driver cannot be trusted with these layers on this device, or None if it can.

    Compares its results with the reference loop's, unless the cache has the outcome. Leaves random numbers, buffers and
    graphs of the process as they were. Errors of the reference loop come through, and those of memory.
    """
    if device.type == "meta":
        return "tensors there have no values"
    kind, is_said = task.cell.name, False
    for form, options in dict.fromkeys(_loops(task)):
        name = f"{kind}-{_digest(form, options, task.training, driver, device)}.proof"
        outcome = _kept(name)
        if not outcome:
            if not is_said:
                say("check", f"{kind}: {driver.name} and reference loop, once for this card ...")
                is_said = True
            try:
                outcome = prove(form, options, task.training, driver.for_a_proof(), device) or _AGREES
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                # Not kept: the reason may go away, as that of a missing compiler.
                return reason_of(error.__cause__ or error if isinstance(error, LoopError) else error)
            _keep(name, outcome)
        if outcome != _AGREES:
            return outcome
    return None


def _loops(task: Task) -> Iterator[tuple[LayerForm, StateOptions]]:
    """The loops of all layers, at sizes for which Triton compiles their kernels alike, and their options.

    In training also without the mask: an evaluation must not fail later.
    """
    for mask in {False, task.options.mask}:
        options = task.options._replace(mask=mask)
        for form in task.layers:
            # Triton compiles one kernel for sizes that are multiples of 16, and another one for all other sizes.
            hidden = 16 if form.hidden % 16 == 0 else HIDDEN
            inputs = 48 if form.inputs % 16 == 0 else INPUTS
            yield form._replace(hidden=hidden, inputs=hidden if form.inputs == form.hidden else inputs), options


def prove(form: LayerForm, options: StateOptions, training: bool, driver: GpuDriver, device: torch.device) -> str:
    """Why a driver of its own does not compute what the reference loop does, or "" if it does."""
    backend = Backend(driver.name, partial(gpu_layer, driver, BufferCache()), driver=driver)
    with torch.inference_mode(False), torch.enable_grad():
        with without_autocast(CPU):
            starts = random_starts(form, options, training=training)
            truth = [run(REFERENCE, start) for start in starts]
        single = [moved(start, device, torch.float32) for start in starts]
        expected = [run(REFERENCE, start) for start in single]
        results = [run(backend, start) for start in single]
        with torch.no_grad():  # then a step overwrites what the one before has saved
            others = [backend.layer(*start) for start in single[:2]]
    if any(not tensor.isfinite().all() for one in truth for tensor in one.values()):
        return ""  # the reference loop overflows at these values, and shows nothing
    # A call is recorded the second time, in both passes.
    if driver.graphs and driver.graphs.replays < 2 * (RUNS - 2):
        return "no window was replayed"
    for k, (y_TBH, last) in enumerate(others):
        values = dict(zip(("y", *form.program.states), (y_TBH, *last), strict=True))
        results.append(truth[k] | {name: tensor.cpu().double() for name, tensor in values.items()})
    faults = []
    for number, result in enumerate(results):
        k = number % RUNS
        alone = [*truth[:k], result, *truth[k + 1 :]]
        faults.append(disagreement(alone, expected, truth, _GPU_ROUNDING))
    # In bfloat16 rounding may decide on which side of 0 an argument of relu is. So a fault shows in two runs: in those
    # that were launched, in those that were replayed, or in those without gradients.
    pairs = zip(faults[::2], faults[1::2], strict=True)
    return next((first for first, second in pairs if first and second), "")


# What the cache keeps


def _digest(form: LayerForm, options: StateOptions, training: bool, driver: GpuDriver, device: torch.device) -> str:
    """Identifies a proof: the driver, the kernels and what launches them, the software, and the card."""
    import triton  # can be missing where no driver proves itself

    both = kernels(passes_of(form.program, options), bf16=autocasts_to_bf16(device))
    software = torch.__version__, torch.version.cuda, triton.__version__, fp32_precision(), _sources()
    parts = driver.name, both, training, options, form, software, describe_card(device)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@functools.cache
def _sources() -> str:
    """A digest of the files that compute the loop on GPUs and prove it."""
    folders = (Path(__file__).parents[1] / name for name in ("cells", "gpu", "layers"))
    files: Iterable[Path] = sorted(file for folder in folders for file in folder.glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _kept(name: str) -> str:
    """The outcome in the cache, or ""."""
    try:
        with open_private(cache_folder("kernels") / name) as file:
            return file.read().decode(errors="replace")
    except (OSError, DataError):
        return ""


def _keep(name: str, outcome: str) -> None:
    """Keep an outcome, where the cache can be written."""
    with suppress(OSError, DataError):
        replace_file(cache_folder("kernels") / name, outcome.encode(), 0o600)
        limit_cache("kernels")
