"""The Python file of an exported model.

Layers that torch.nn has are torch.nn.RNN, LSTM or GRU. For all others the file has the equations of their kind, which
are copied from its `reference.py`.
"""

import ast
import importlib
import inspect
from collections import defaultdict
from types import ModuleType

import torch
from torch import Tensor

from charlm.cells import RecurrentBase
from charlm.cells.backend import LayerCall
from charlm.cells.torch_base import TorchRecurrentBase
from charlm.data.vocabulary import Vocabulary
from charlm.inference import TrainedModel
from charlm.inference.sampling import first_read
from charlm.model import CharLM


def model_code(trained: TrainedModel, network: CharLM) -> str:
    """The whole file."""
    cell, layers = trained.config.model.cell, network.layers
    plain = is_plain(layers)
    lines = [
        f'"""A character-level language model, exported by charlm: {cell.kind}, {layers.num_layers} × {cell.hidden}.\n',
        'It needs PyTorch and safetensors. `python char_model.py "Once upon"` writes text.\n"""\n',
        _imports([] if plain else [_reference(layers)]),
        'HERE = Path(__file__).parent\nVOCABULARY = json.loads((HERE / "vocabulary.json").read_text(encoding="utf-8"))',
    ]
    if not plain:
        lines += ["\n", _equations(layers), "\n", _layers_class(layers)]
    lines += ["\n", _model_class(network, plain), "\n", _LOADING, "\n", _coding(trained.vocabulary)]
    lines += ["\n", _sampling(trained), "\n", 'if __name__ == "__main__":\n    print(sample(load(), *sys.argv[1:2]))']
    return "\n".join(lines) + "\n"


def is_plain(layers: RecurrentBase) -> bool:
    """Whether one of torch.nn's modules computes all layers."""
    if layers.residual or not isinstance(layers, TorchRecurrentBase):
        return False
    return layers.why_not_torch(torch.device("cpu"), training=False) is None


def kept_share(layers: RecurrentBase) -> Tensor | None:
    """What zoneout keeps of each state, [1, 1, S]; None without zoneout."""
    [state, *_] = layers.split_state(None, 1)
    return layers.kept_share(state, 1, training=False, like=next(layers.parameters()))


_TORCH = "\nimport torch\nfrom safetensors.torch import load_file\n"


def _imports(modules: list[ModuleType]) -> str:
    """The imports of the file, and those that the modules have from outside charlm."""
    names: dict[str, set[str]] = defaultdict(set, {"pathlib": {"Path"}, "torch": {"nn"}})
    if modules:
        names["typing"].add("NamedTuple")
        names["torch"].add("Tensor")
    whole = {"json", "sys"}
    for node in (node for module in modules for node in ast.parse(inspect.getsource(module)).body):
        if isinstance(node, ast.Import):
            whole.update(ast.unparse(alias) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("charlm"):
            names[node.module].update(ast.unparse(alias) for alias in node.names)
    listed = [f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names)]
    ours = [line for line in listed if line.startswith("from torch")]
    standard = [*(f"import {name}" for name in sorted(whole - {"torch"})), *(sorted({*listed} - {*ours}))]
    return "\n".join(["from __future__ import annotations\n", *standard]) + "\n" + _TORCH + "\n".join(ours) + "\n"


def _reference(layers: RecurrentBase) -> ModuleType:
    """The module with the equations of a kind."""
    return importlib.import_module(f"{type(layers).__module__}.reference")


def _equations(layers: RecurrentBase) -> str:
    """The source of a kind's equations, with what they need of charlm."""
    module = _reference(layers)
    source = inspect.getsource(module)
    nodes = ast.parse(source).body
    imported = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("charlm")]
    needed = [LayerCall, *(getattr(module, alias.asname or alias.name) for node in imported for alias in node.names)]
    last_import = max(node.end_lineno or 0 for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    own = "\n".join(source.splitlines()[last_import:]).strip()
    note = "\n".join(f"# {line}".rstrip() for line in (inspect.getdoc(module) or "").splitlines())
    helpers = [inspect.getsource(each).rstrip() for each in dict.fromkeys(needed)]
    return "\n\n\n".join([*helpers, f"{note}\n\n{own}"])


def _layers_class(layers: RecurrentBase) -> str:
    """A module of all layers, by the equations."""
    named = {name: tuple(tensor.shape) for name, tensor in layers.named_parameters()}
    shapes = "".join(f'            "{name}": {shape},\n' for name, shape in named.items())
    kind_options = [name for name in layers.option_names if name not in layers.initial_options]
    options = "".join(f"        self.{name} = {getattr(layers, name)!r}\n" for name in kind_options)
    kept = kept_share(layers)
    buffer = "None" if kept is None else f"torch.empty({tuple(kept.shape)})"
    names = list(layers.parameter_shapes(0))
    count = len(layers.state_names)
    added = "x + y if layer else y" if layers.residual else "y"
    return f'''class Layers(nn.Module):
    """Inputs [T, B, I] and a state → outputs [T, B, H] and the new state: one [L, B, H], or a tuple of them."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_size = {layers.hidden_size}
{options}        shapes = {{
{shapes}        }}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.register_buffer("kept", {buffer})

    def forward(self, x, state=None):
        if state is None:
            state = (x.new_zeros({layers.num_layers}, x.shape[1], {layers.hidden_size}),) * {count}
        state, last = (state,) if isinstance(state, Tensor) else state, []
        for layer in range({layers.num_layers}):
            parameters = [getattr(self, f"{{name}}_l{{layer}}") for name in {names}]
            call = LayerCall(parameters, tuple(part[layer] for part in state), kept_TBS=self.kept)
            y, layer_state = self.reference_layer(x, call)
            x = {added}
            last.append(layer_state)
        state = tuple(torch.stack(parts) for parts in zip(*last))
        return x, state if len(state) > 1 else state[0]

{inspect.getsource(type(layers).reference_layer).rstrip()}'''


def _model_class(network: CharLM, plain: bool) -> str:
    layers, V, E = network.layers, network.vocabulary_size, network.embedding
    inputs = "self.embedding(ids)" if E else f"nn.functional.one_hot(ids, {V}).float()"
    embedding = f"        self.embedding = nn.Embedding({V}, {E.embedding_dim})\n" if E else ""
    relu = ', nonlinearity="relu"' if getattr(layers, "nonlinearity", "") == "relu" else ""
    size = f"{layers.input_size}, {layers.hidden_size}, num_layers={layers.num_layers}{relu}"
    module = f"nn.{type(layers).__name__}({size})" if plain else "Layers()"
    tied = E is not None and E.weight is network.decoder.weight
    tie = "        self.decoder.weight = self.embedding.weight\n" if tied else ""
    if network.begins is None:
        forward = f"        x, state = self.layers({inputs}, state)\n"
    else:
        one = len(layers.state_names) == 1
        kept = "state * goes_on" if one else "tuple(part * goes_on for part in state)"
        forward = f"""        outputs = []
        for step_ids, x in zip(ids, {inputs}):
            if state is not None:  # a newline begins a line, from the zero state
                goes_on = (step_ids != {network.begins}).unsqueeze(-1)
                state = {kept}
            output, state = self.layers(x.unsqueeze(0), state)
            outputs.append(output)
        x = torch.cat(outputs)
"""
    return f'''class Model(nn.Module):
    """Ids [T, B] and a state, or None to start → logits [T, B, V] of the next ids, and the new state."""

    def __init__(self) -> None:
        super().__init__()
{embedding}        self.layers = {module}
        self.decoder = nn.Linear({layers.hidden_size}, {V})
{tie}
    def forward(self, ids, state=None):
{forward}        return self.decoder(x), state'''


_LOADING = '''def load() -> Model:
    """The model with its weights, for use."""
    model = Model()
    model.load_state_dict(load_file(HERE / "weights.safetensors"))
    return model.eval()'''


def _coding(vocabulary: Vocabulary) -> str:
    """`encode` and `decode`."""
    turned = "[::-1]" if vocabulary.backward else ""
    if vocabulary.level == "byte":
        ids, text = "list(text.encode())", f'bytes(ids{turned}).decode("utf-8", "replace")'
    else:
        ids = '[VOCABULARY["characters"].index(character) for character in text]'
        text = f'"".join(VOCABULARY["characters"][index] for index in ids{turned})'
    order = "; the last comes first, because the model reads backward" if vocabulary.backward else ""
    return f'''def encode(text: str) -> list[int]:
    """The ids of a text{order}."""
    return {ids}{turned}


def decode(ids: list[int]) -> str:
    """The text of ids."""
    return {text}'''


def _sampling(trained: TrainedModel) -> str:
    begins, vocabulary = trained.network.begins, trained.vocabulary
    start = repr(first_read(vocabulary))
    if begins is None:
        read = f"prompt or {start}"
    else:
        read = f"prompt + {start}" if vocabulary.backward else f"{start} + prompt"
    ends = "" if begins is None else f"        if int(ids) == {begins}:\n            break\n"
    result = "decode(written) + prompt" if vocabulary.backward else "prompt + decode(written)"
    where = "ends with" if vocabulary.backward else "begins with"
    return f'''@torch.inference_mode()
def sample(model: Model, prompt: str = "", length: int = 300, temperature: float = 0.8) -> str:
    """A text that {where} the prompt and has up to `length` further characters (or bytes)."""
    ids, state, written = torch.tensor(encode({read})).unsqueeze(1), None, []
    for _ in range(length):
        logits, state = model(ids, state)
        scaled = (logits[-1] - logits[-1].amax(-1, True)).double() / (temperature or 1)
        ids = scaled.softmax(-1).multinomial(1) if temperature else scaled.argmax(-1, True)
{ends}        written.append(int(ids))
    return {result}'''
