"""Random programs that pass the check, as a stranger's checkpoint may hold them, and every path that one can take."""

import ast
import json
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from charlm.cells.check import check
from charlm.cells.cpp import cpp
from charlm.cells.derivative import derive
from charlm.cells.equations import Lines, _Back, derivative, equations
from charlm.cells.operations import BINARY, UNARY
from charlm.cells.passes import Passes
from charlm.cells.program import STATIC, Node, Parameter, Program, Size, needed, scalarized, when
from charlm.cells.split import split
from charlm.cells.stored import StoredCell, _of_program, restored
from charlm.cells.triton import Options, kernels
from charlm.export.html_model import program_json
from charlm.export.onnx_graph import build_model
from charlm.layers import RecurrentLayers
from charlm.layers.reference import TensorProgram
from charlm.model import CharLM
from tests.cells.measure import Run, by_kernel, in_one_library, run
from tests.cells.programs import evaluated

KIND = "/somewhere/forged.py:Forged"
NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1e-30, 1e-300, -60.0, -61.0, 88.0, -700.0, 3e38, -3e38)
LARGEST = 1e9
HIDDEN, INPUTS = 4, 3


def forged(random: Random, *, square: bool, operations: int) -> Program:
    """A program of all operations, many of them with constants. square: as for layers with I = H."""
    states = ("h", "c", "n")[: random.randint(1, 3)]
    nodes = [Node("input", size="I"), *(Node("state", name=name) for name in states)]
    nodes += [Node("constant", size="", number=random.choice(NUMBERS)) for _ in range(random.randint(1, 4))]
    parameters: list[Parameter] = []

    def vectors(size: Size = "", count: int = 0) -> int:
        """A node with a size, of this many vectors; 0 and "": of any."""
        fits = [
            place
            for place, node in enumerate(nodes)
            if node.size != "" and node.op != "greater" and size in ("", node.size) and count in (0, node.count)
        ]
        return random.choice(fits[-6:] if fits and random.random() < 0.7 else fits or [0])

    def matching(place: int) -> int:
        """An operand for this node: a constant, or a vector that fits it."""
        node = nodes[place]
        constants = [k for k, other in enumerate(nodes) if other.op == "constant"]
        if random.random() < 0.4:
            return random.choice(constants)
        sizes = ("H", "I") if square and node.size in ("H", "I") else (node.size,)
        fits = [
            k
            for k, other in enumerate(nodes)
            if other.size in sizes and other.op != "greater" and (other.count in (1, node.count) or node.count == 1)
        ]
        return random.choice(fits)

    def joined(args: tuple[int, ...]) -> tuple[int, Size]:
        sizes = {nodes[arg].size for arg in args} - {""}
        return max(nodes[arg].count for arg in args), "H" if len(sizes) > 1 else sizes.pop()

    for number in range(operations):
        op = random.choice([*UNARY, *BINARY, *BINARY, "vector", "product", "normalize", "stop", "where", "where"])
        place = vectors()
        node = nodes[place]
        if op in (*UNARY, "stop"):
            nodes.append(Node(op, (place,), node.count, node.size))
        elif op == "normalize":
            epsilon = random.choice((0.0, 1e-5, 0.1))
            nodes.append(Node(op, (place,), node.count, node.size, index=random.randint(0, 1), number=epsilon))
        elif op in ("vector", "product"):
            gates, stack = random.randint(1, 3), random.choice((0, 0, 2))
            place = vectors(count=1)
            columns = nodes[place].size if op == "product" else ""
            size = random.choice(("H", "H", "I", 5))
            starts = (None,) * (gates * max(stack, 1)) if op == "vector" else ()
            parameters.append(Parameter(f"p{number}", gates, size, columns, stack, starts))
            index = random.randrange(max(stack, 1)) * (gates if op == "vector" else 1)
            args = (place,) if op == "product" else ()
            nodes.append(Node(op, args, gates, size, f"p{number}", index))
            if gates > 1:
                nodes += [Node("part", (len(nodes) - 1,), 1, size, index=k) for k in range(gates)]
        else:
            args = (place, matching(place)) if random.random() < 0.5 else (matching(place), place)
            if op == "where":
                count, size = joined(args)
                nodes.append(Node("greater", args, count, size))
                one, other = matching(len(nodes) - 1), matching(len(nodes) - 1)
                args = (len(nodes) - 1, one, other if nodes[other].count in (1, nodes[one].count) else one)
            if op != "greater":
                count, size = joined(args)
                nodes.append(Node(op, args, count, size))

    # Something of H units that depends on x or a state, for every state.
    parameters.append(Parameter("last", 1, "H", "I"))
    nodes.append(Node("product", (0,), 1, "H", "last"))
    kinds = when(nodes)
    sizes = ("H", "I") if square else ("H",)
    fits = [
        place for place, node in enumerate(nodes) if node.count == 1 and node.size in sizes and node.op != "greater"
    ]
    moving = [place for place in fits if kinds[place] != STATIC]
    results = tuple(random.choice(moving[-5:]) for _ in states)
    gates = tuple((f"g{k}", random.choice(fits)) for k in range(random.randint(0, 2)))
    shown = tuple((f"s{k}", random.choice(fits)) for k in range(random.randint(0, 2)))
    ordered = sorted(parameters, key=lambda each: each.columns == "")
    program = Program(tuple(nodes), states, results, tuple(ordered), states[2:], gates, shown)
    check(program, square)
    return program


NAMES = (
    *("h", "h_", "h__", "H", "h1", "h_1", "h_t", "x", "x_t", "ids", "logits", "new_h", "new_h_", "step_ids"),
    *("state_h", "outputs", "products", "constant_1", "matmul_1", "W", "w", "W_ih", "w_ih", "weight_ih", "b_ih"),
    *("bias_ih", "B", "T", "a", "a1", "a_1", "da", "d", "dh", "dh_t", "delta", "exp", "tanh", "max", "where"),
    *("normalize", "self", "for", "int", "float", "lambda", "constructor", "toString", "length", "name", "gate"),
    *("e", "de", "b", "y", "v1", "sums0"),
)


def renamed(program: Program, random: Random) -> Program:
    """The program with states, parameters and values that are named like one another and like what is generated."""
    states = random.sample(NAMES, len(program.states))
    own = dict(zip(program.states, states, strict=True))
    named = [parameter.name for parameter in program.parameters]
    of_parameters = dict(zip(named, random.sample(NAMES, len(named)), strict=True))
    by_op = {"state": own, "vector": of_parameters, "product": of_parameters}
    nodes = [replace(node, name=by_op[node.op][node.name]) if node.op in by_op else node for node in program.nodes]
    looked_at = zip(random.sample(NAMES, len(program.gates)), program.gates, strict=True)
    shown = zip(random.sample(NAMES, len(program.shown)), program.shown, strict=True)
    return program._replace(
        nodes=tuple(nodes),
        states=tuple(states),
        parameters=tuple(each._replace(name=of_parameters[each.name]) for each in program.parameters),
        internal=tuple(own[name] for name in program.internal),
        gates=tuple((name, place) for name, (_, place) in looked_at),
        shown=tuple((name, place) for name, (_, place) in shown),
    )


def assert_names_differ(program: Program) -> None:
    """No two things in the equations look the same."""
    forward, back = Lines(program), _Back(program)
    symbols = [*forward.symbols.values(), *(f"d{each}" for each in forward.symbols.values())]
    names = [name for name, _ in (*forward.lines(), *back.lines())]
    assert len({*symbols}) == len(symbols)
    assert len({*names}) == len(names)
    states_and_gradients = {*map(forward.after, program.states), *(each for each in symbols if each[0] == "d")}
    assert {*names} & {*symbols} <= states_and_gradients


def stored_cell(program: Program, square: bool) -> StoredCell:
    """The cell of a checkpoint with this program."""
    raw = _of_program(program)
    record = {"states": program.states, "internal": program.internal, "initial": []}
    record["programs"] = [None if square else raw, raw]
    return restored({"kind": KIND, "hidden": HIDDEN}, json.dumps(record))


def layers_of_program(program: Program, square: bool) -> RecurrentLayers:
    """A layer in float64, with random parameters."""
    torch.manual_seed(0)
    return RecurrentLayers(stored_cell(program, square), HIDDEN if square else INPUTS).double()


def inputs_of(layers: RecurrentLayers) -> tuple[Tensor, tuple[Tensor, ...]]:
    x = torch.randn(3, 2, layers.input_size, dtype=torch.float64)
    x[1] = 0
    states = [torch.randn(1, 2, HIDDEN, dtype=torch.float64).tanh() for _ in layers.state_names]
    states[0][0, 0] = 0
    return x, tuple(states)


def assert_every_path(program: Program, square: bool) -> Passes:
    """Derive all that charlm derives of a program; what computes gives the numbers of the reference loop."""
    layers = layers_of_program(program, square)
    assert layers.program(0) == program
    x, states = inputs_of(layers)
    outputs = ["y", *program.states]
    y, last = layers.forward_reference(x, states)
    expected = dict(zip(outputs, (y, *last), strict=True))
    parameters = {name.removesuffix("_l0"): tensor for name, tensor in layers.named_parameters()}
    for form in (program, scalarized(program)):
        with torch.no_grad():
            found = evaluated(form, parameters, x, tuple(state[0] for state in states))
        found = [found[0], *(tensor[None] for tensor in found[1:])]
        assert_same(dict(zip(outputs, found, strict=True)), {name: expected[name] for name in outputs})

    parts = split(program)
    assert all(program.nodes[place].op != "greater" for place in (*parts.windows, *parts.vectors))  # they are numbers
    derived = derive(parts)
    assert "struct Cell0" in cpp([derived])
    for options in (Options(False, False, False, False), Options(True, True, True, True)):
        ast.parse(kernels(derived, options).source)
    for lines in (equations(program), derivative(program)):
        assert all(" = " in line for line in lines)
    inputs = HIDDEN if square else INPUTS
    json.dumps(program_json(program, HIDDEN, inputs), allow_nan=False)
    return derived


@torch.no_grad()
def is_moderate(layers: RecurrentLayers, x: Tensor, states: tuple[Tensor, ...]) -> bool:
    """Whether no value in a window is NaN, or so large that differences are rounding."""
    program, parameters, states = layers.program(0), layers.layer_parameters(0), tuple(state[0] for state in states)
    places = needed(program.nodes, program.results)
    step = TensorProgram(program, (*program.results, *places), parameters)
    for x_BI in x:
        results = step({"input": x_BI, "state": dict(zip(program.states, states, strict=True))})
        states = tuple(results[: len(states)])
        values = [torch.as_tensor(value).double() for value in results]
        if not all(value.abs().max() < LARGEST for value in values):
            return False
    return True


def assert_same(found: Run, expected: Run) -> None:
    """Equal to rounding; also what is infinite or not a number."""
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=1e-9, atol=1e-9, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}"
        )


def some_programs(number: int, first: int = 0) -> list[tuple[Program, bool]]:
    """Random programs, and whether each needs square layers."""
    programs = []
    for seed in range(first, first + number):
        square, operations = bool(seed % 2), (4, 12, 25)[seed % 3]
        programs.append((forged(Random(seed), square=square, operations=operations), square))
    return programs


def assert_alike(found: Run, expected: Run) -> None:
    """Equal to rounding in float32."""
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


def compare_kernels(programs: list[tuple[Program, bool]]) -> None:
    """Compile programs in one library; those whose values are moderate give the numbers of the reference loop."""
    stacks = [layers_of_program(program, square) for program, square in programs]
    with in_one_library(stacks):
        for stack in stacks:
            x, states = inputs_of(stack)
            is_compared = is_moderate(stack, x, states)
            if not stack.forward_reference(x, states)[0].requires_grad:
                continue
            stack = stack.float()
            x, states = x.float(), tuple(state.float() for state in states)
            expected = run(stack.forward_reference, stack, x, states)
            found = run(by_kernel(stack), stack, x, states)
            if is_compared and all(tensor.isfinite().all() for tensor in expected.values()):
                assert_alike(found, expected)


def compare_onnx(program: Program, square: bool) -> None:
    """Run a program as an ONNX graph; it gives the numbers of the reference loop where these are moderate."""
    import onnxruntime

    layers = layers_of_program(program, square).float()
    network = CharLM(11, layers.input_size, layers).eval()
    session = onnxruntime.InferenceSession(build_model(network).SerializeToString())
    ids = torch.randint(11, (3, 2))
    state = layers.zero_state(2)
    inputs = {each.name: tensor.numpy() for each, tensor in zip(session.get_inputs()[1:], state, strict=True)}
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, map(torch.from_numpy, session.run(None, {"ids": ids.numpy(), **inputs})), strict=True))
    with torch.no_grad():
        x = network.embedding(ids)
        y, last = layers.forward_reference(x, state)
        expected = dict(zip(names, (network.logits(y), *last), strict=True))
    if is_moderate(layers, x, state) and all(tensor.isfinite().all() for tensor in expected.values()):
        assert_alike(found, expected)
