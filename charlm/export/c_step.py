"""A layer of any cell as C, from the cell's program.

A plan says which loops over units there are (charlm/cells/plan.py); between them stand products and normalizations of
whole vectors.
"""

import re
from dataclasses import replace

from charlm.cells.equations import equations, notes
from charlm.cells.operations import in_code
from charlm.cells.plan import Loop, Store, Vector, planned
from charlm.cells.program import START, Node, Program, needed, scalarized, units
from charlm.cells.state_options import rows_of_start
from charlm.layers.backend import LayerForm

_WHOLE = ("product", "normalize")
"""Operations on whole vectors."""
_HELPERS = {
    "sigmoid": "static float lm_sigmoid(float a) { return 1 / (1 + expf(-a)); }",
    "softplus": "static float lm_softplus(float a) { return lm_maximum(a, 0) + log1pf(expf(-fabsf(a))); }",
    "relu": "static float lm_relu(float a) { return lm_maximum(a, 0); }",
    "maximum": "static float lm_maximum(float a, float b) { return a > b ? a : b; }",
    "minimum": "static float lm_minimum(float a, float b) { return a < b ? a : b; }",
    "square_root": "static float lm_square_root(float a) { return sqrtf(a); }",
    "exp": "static float lm_exp(float a) { return expf(a); }",
    "log": "static float lm_log(float a) { return logf(a); }",
    "tanh": "static float lm_tanh(float a) { return tanhf(a); }",
    "multiply_transposed": """\
/* y = W^T x, for W as in lm_multiply. */
static void lm_multiply_transposed(float *y, const lm_weight *w, const float *scale, int rows, int columns,
                                   const float *x)
{
    for (int c = 0; c < columns; c++) {
        float sum = 0;
        for (int r = 0; r < rows; r++) sum += w[(size_t)c * rows + r] * scale[r] * x[r];
        y[c] = sum;
    }
}""",
    "normalize": """\
/* y = (v - mean v) / sqrt(var v + epsilon), or v / sqrt(mean v^2 + epsilon) if it is not centered. */
static void lm_normalize(float *y, const float *v, int size, float epsilon, int centered)
{
    float mean = 0, square = 0;
    for (int u = 0; u < size && centered; u++) mean += v[u] / size;
    for (int u = 0; u < size; u++) square += (v[u] - mean) * (v[u] - mean) / size;
    for (int u = 0; u < size; u++) y[u] = (v[u] - mean) / sqrtf(square + epsilon);
}""",
}
"""Functions that a step may call; one may call those after it."""


def helpers(text: str) -> str:
    """The functions that this C calls, in the order in which C needs them."""
    called: list[str] = []
    for name, body in _HELPERS.items():
        if f"lm_{name}(" in text:
            called.append(body)
            text += body
    return "\n".join(reversed(called))


def commented(program: Program) -> str:
    """The equations of a step, as they stand in a comment."""
    lines = equations(program)
    text = "\n".join(["", *lines, "", *notes(lines)]).rstrip()
    return text.replace("*/", "* /").replace("/*", "/ *").replace("\n", "\n *     ").replace("*     \n", "*\n")


class LayerCode:
    """The C of a layer, whose statements it writes in the order of computation.

    text      a struct `<name>_t`, and the functions `<name>_begin`, which sets the initial state, and `<name>`, which
              reads an input and changes the state
    matrices  the field of each matrix, the name of its parameter, and its place in a stack
    vectors   the field and the name of each parameter that is no matrix
    states    the field of each state by its name; the first is the output
    arrays    place → the array that holds a value, and where it begins there
    locals    place → the variable of a value in the loop being written
    """

    def __init__(self, form: LayerForm, name: str) -> None:
        program, hidden, inputs = scalarized(form.program), form.hidden, form.inputs
        self.program = program
        self.nodes: list[Node] = []
        for node in program.nodes:
            size = node.size if node.op == "constant" else units(node.size, hidden, inputs)
            self.nodes.append(replace(node, size=size))
        self.hidden, self.inputs = hidden, inputs
        self.names = {place: name for name, place in program.gates}
        self.names |= dict(zip(program.results, program.states, strict=True))
        self.scratch: list[str] = []
        self.statements: list[str] = []
        self.locals: dict[int, str] = {}
        self.states = {name: f"s_{identifier(name)}_{n}" for n, name in enumerate(program.states)}
        self.fields = {p.name: f"w_{identifier(p.name)}_{n}" for n, p in enumerate(program.parameters)}
        self.stacked = {p.name for p in program.parameters if p.stack}
        self.arrays: dict[int, tuple[str, int]] = {}
        for place, node in enumerate(self.nodes):
            match node.op:
                case "input":
                    self.arrays[place] = "x", 0
                case "state":
                    self.arrays[place] = f"l->{self.states[node.name]}", 0
                case "vector":
                    self.arrays[place] = f"l->{self.fields[node.name]}", node.index * int(node.size)
        self.put_step()
        self.matrices: list[tuple[str, str, int]] = []
        self.vectors: list[tuple[str, str]] = []
        self.text = self.written(name)

    def put_step(self) -> None:
        """The loops over units, and between them what takes whole vectors."""
        in_memory = ("input", "state", "vector", "part", *_WHOLE)
        memory = {place: Vector(node.op) for place, node in enumerate(self.nodes) if node.op in in_memory}
        whole = [self.nodes[place] for place in needed(self.nodes, self.program.results)]
        operands = dict.fromkeys(node.args[0] for node in whole if node.op in _WHOLE and node.args[0] not in memory)
        stores = [Store(Vector("operand", 0, self.nodes[place].size), (place,)) for place in operands]
        for s, place in enumerate(self.program.results):
            stores.append(Store(Vector("state", s, self.hidden), (place,)))
        plan = planned(self.nodes, memory, stores, _WHOLE, lambda size: size)
        for stage in plan.stages:
            for place in stage.begins:
                self.put_whole(place)
            for loop in stage.loops:
                self.put_loop(loop)

    def parameter_fields(self) -> list[str]:
        """The fields of the parameters; notes where their values are."""
        fields: list[str] = []
        for p in self.program.parameters:
            *_, rows, columns = (1, *p.shape(self.hidden, self.inputs))
            if p.columns == "":
                self.vectors.append((self.fields[p.name], p.name))
                fields.append(f"float {self.fields[p.name]}[{rows * columns}];")
                continue
            for k in range(max(p.stack, 1)):
                field = self.matrix(p.name, k)
                self.matrices.append((field, p.name, k))
                fields.append(f"lm_weight {field}[{rows} * {columns}]; float {field}_scale[{rows}];")
        return fields

    def written(self, name: str) -> str:
        states = [f"float {state}[{self.hidden}];" for state in self.states.values()]
        fields = [*self.parameter_fields(), *states, *self.scratch]
        body = self.statements
        if not any(re.search(r"\bx\b", line) for line in body):
            body = ["(void)x;", *body]
        lines = ["typedef struct {", *(f"    {field}" for field in fields), f"}} {name}_t;", ""]
        lines += [f"static void {name}_begin({name}_t *l)", "{", *self.begins(), "}", ""]
        lines += [f"static void {name}({name}_t *l, const float *x)", "{", *(f"    {line}" for line in body), "}"]
        return "\n".join(lines)

    def begins(self) -> list[str]:
        """The statements that set the initial state."""
        rows, lines = rows_of_start(self.program), []
        for state, field in self.states.items():
            call = f"memset(l->{field}, 0"
            if state in rows:
                call = f"memcpy(l->{field}, l->{self.fields[START]} + {rows[state] * self.hidden}"
            lines.append(f"    {call}, sizeof l->{field});")
        return lines

    def matrix(self, name: str, index: int) -> str:
        return f"{self.fields[name]}_{index}" if name in self.stacked else self.fields[name]

    def put_whole(self, place: int) -> None:
        node = self.nodes[place]
        [arg] = node.args
        rows = node.count * int(node.size)
        array = self.new_array(place, rows)
        if node.op == "product":
            matrix = f"l->{self.matrix(node.name, node.index)}"
            columns = self.nodes[arg].size
            function, sizes = "lm_multiply", f"{rows}, {columns}"
            if node.transposed:
                function, sizes = "lm_multiply_transposed", f"{columns}, {rows}"
            call = f"{function}({array}, {matrix}, {matrix}_scale, {sizes}, {self.pointer(arg)});"
        else:
            call = f"lm_normalize({array}, {self.pointer(arg)}, {rows}, {node.number!r}f, {int(not node.is_rms)});"
        self.statements.append(call)

    def put_loop(self, loop: Loop) -> None:
        """A loop over units; it may end with the new states."""
        self.locals = {}
        body: list[str] = []
        for step in loop.steps:
            if isinstance(step, int):
                node = self.nodes[step]
                self.locals[step] = f"{identifier(self.names.get(step, 'v'))}_{step}"
                expression = re.sub(r"(\w+\()", r"lm_\1", in_code("cpp", node.op, *map(self.unit, node.args)))
                body.append(f"const float {self.locals[step]} = {expression};")
            elif isinstance(step, Store) and step.vector.kind != "state":
                body.append(f"{self.new_array(step.value, int(loop.size))}[u] = {self.locals[step.value]};")
        body += self.new_states([store for store in loop.stores if store.vector.kind == "state"])
        self.statements += [f"for (int u = 0; u < {loop.size}; u++) {{", *(f"    {line}" for line in body), "}"]

    def new_states(self, stores: list[Store]) -> list[str]:
        """The statements that end the last loop: all new states before the first changes."""
        news, changes = [], []
        for store in stores:
            n, state, text = store.vector.item, self.program.states[store.vector.item], self.unit(store.value)
            field = f"l->{self.states[state]}[u]"
            if store.value not in self.locals:
                news.append(f"const float new_{n} = {text};")
                text = f"new_{n}"
            changes.append(f"{field} = {text};")
        return [*news, *changes]

    def new_array(self, place: int, size: int) -> str:
        name = f"v_{place}"
        self.scratch.append(f"float {name}[{size}];")
        self.arrays[place] = f"l->{name}", 0
        return f"l->{name}"

    def place_of(self, place: int) -> tuple[str, int]:
        """The array that holds a value, and where it begins there."""
        node = self.nodes[place]
        if place in self.arrays:
            return self.arrays[place]
        array, start = self.place_of(node.args[0])  # of a `part`
        return array, start + node.index * int(node.size)

    def pointer(self, place: int) -> str:
        array, start = self.place_of(place)
        return f"{array} + {start}" if start else array

    def unit(self, place: int) -> str:
        """A value's unit u."""
        node = self.nodes[place]
        if place in self.locals:
            return self.locals[place]
        if node.op == "constant":
            return f"{node.number!r}f"
        array, start = self.place_of(place)
        return f"{array}[{start} + u]" if start else f"{array}[u]"


def identifier(name: str) -> str:
    """Letters of the name that C takes; what callers add makes it unique, and no word of the language."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name).strip("_")[:40] or "v"
