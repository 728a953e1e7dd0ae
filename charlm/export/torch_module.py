"""A model as a folder with weights, vocabulary and a Python file, which need PyTorch and safetensors but not charlm.

char_model.py         Model, load and sample
weights.safetensors   the state dict of Model, whose names are charlm's own
vocabulary.json       see `vocabulary_json`

In the Python file, layers that torch.nn has are torch.nn.RNN, LSTM or GRU. For all others the file has the step of
their cell, written from its program.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from charlm.cells.program import Program
from charlm.data.outputs import CODE, VOCABULARY, WEIGHTS
from charlm.data.vocabulary import Vocabulary
from charlm.export.check_export import Agreement, check_agreement, vocabulary_json
from charlm.export.step_code import step_code
from charlm.inference import TrainedModel
from charlm.inference.sampling import first_read
from charlm.layers import RecurrentLayers, as_tuple
from charlm.layers.torch_operator import torch_backend
from charlm.model import CharLM


def write_torch(trained: TrainedModel, path: Path) -> Agreement:
    """Write the folder, run its code, and compare its logits with charlm's."""
    network = trained.on_cpu_in_float32().only_member
    path.mkdir()
    save_file(state_dict(network), path / WEIGHTS)
    (path / VOCABULARY).write_text(json.dumps(vocabulary_json(trained), ensure_ascii=False), encoding="utf-8")
    (path / CODE).write_text(model_code(trained, network), encoding="utf-8")
    model = load_exported(path)["load"]()
    alone = len(network.layers.state_names) == 1

    def step(ids_TB: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        logits, last = model(ids_TB, state[0] if alone else state)
        return logits, as_tuple(last)

    return check_agreement(network, step, "torch")


def state_dict(network: CharLM) -> dict[str, Tensor]:
    """The weights of Model; tied ones occur twice."""
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in network.state_dict().items()}
    if (zoneout_11S := zoneout_share(network.layers)) is not None:
        weights["layers.zoneout"] = zoneout_11S
    return weights


def load_exported(folder: Path) -> dict[str, Any]:
    """What the Python file of an exported folder defines."""
    file = folder / CODE
    names: dict[str, Any] = {"__name__": "exported", "__file__": str(file)}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    return names


def model_code(trained: TrainedModel, network: CharLM) -> str:
    """The whole file."""
    cell, layers = trained.config.model.cell, network.layers
    plain = is_plain(layers)
    lines = [
        f'"""A character-level language model, exported by charlm: {cell.name}, {layers.num_layers} × {cell.hidden}.\n',
        'It needs PyTorch and safetensors. `python char_model.py "Once upon"` writes text.\n"""\n',
        _imports(plain),
        'HERE = Path(__file__).parent\nVOCABULARY = json.loads((HERE / "vocabulary.json").read_text(encoding="utf-8"))',
    ]
    if not plain:
        programs = _programs(layers)
        lines += ["\n", step_code(programs), "\n", _layers_class(layers, programs)]
    lines += ["\n", _model_class(network, plain), "\n", _LOADING, "\n", _coding(trained.vocabulary)]
    lines += ["\n", _sampling(trained), "\n", 'if __name__ == "__main__":\n    print(sample(load(), *sys.argv[1:2]))']
    return "\n".join(lines) + "\n"


def is_plain(layers: RecurrentLayers) -> bool:
    """Whether one of torch.nn's modules computes all layers."""
    backend = torch_backend(layers, torch.device("cpu"))
    return not layers.residual and backend is not None and backend.prepare(False) is None


def zoneout_share(layers: RecurrentLayers) -> Tensor | None:
    """The share of each state that zoneout keeps, [1, 1, S]; None without zoneout."""
    [state, *_] = layers.split_state(None, 1)
    return layers.zoneout_share(state, 1, training=False, like=next(layers.parameters()))


def _imports(plain: bool) -> str:
    functions = "" if plain else "from torch.nn import functional as F\n"
    return f"""import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
{functions}"""


def _programs(layers: RecurrentLayers) -> dict[str, Program]:
    """The programs of all layers by the names of their functions.

    The first layer has one of its own if the cell computes something else where inputs and states differ in size.
    """
    first, step = layers.program(0), layers.program(layers.num_layers - 1)
    differ = step_code({"step": first}) != step_code({"step": step})
    return {"first_step": first, "step": step} if differ else {"step": step}


def _layers_class(layers: RecurrentLayers, programs: dict[str, Program]) -> str:
    """A module of all layers, by the functions of the programs."""
    shapes = "".join(f'            "{name}": {tuple(each.shape)},\n' for name, each in layers.named_parameters())
    chosen, names = "", str([parameter.name for parameter in programs["step"].parameters])
    if "first_step" in programs:
        chosen = "            step_of_layer = step if layer else first_step\n"
        first = str([parameter.name for parameter in programs["first_step"].parameters])
        names = names if names == first else f"({names} if layer else {first})"
    called = "step_of_layer" if chosen else "step"
    zoneout = zoneout_share(layers)
    buffer, step = "", f"states = {called}(x_t, *states, *parameters)"
    if zoneout is not None:
        buffer = f"""        # The share of each state that zoneout keeps.
        self.register_buffer("zoneout", torch.empty({tuple(zoneout.shape)}))
"""
        step = f"""new = {called}(x_t, *states, *parameters)
                states = tuple(map(torch.lerp, new, states, self.zoneout[0].chunk({len(layers.state_names)}, -1)))"""
    several = len(layers.state_names) > 1
    given_state, returned = ("state", "tuple(last)") if several else ("(state,)", "last[0]")
    output = "            x = torch.stack(outputs)"
    if layers.residual:
        output = """            y = torch.stack(outputs)
            x = x + y if layer else y"""
    return f'''class Layers(nn.Module):
    """Inputs [T, B, I] and a state → outputs [T, B, H] and the new state: {_state_words(several)}."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {{
{shapes}        }}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
{buffer}
    def forward(self, x, state=None):
        zeros = x.new_zeros({layers.num_layers}, x.shape[1], {layers.hidden_size})
        state = [zeros] * {len(layers.state_names)} if state is None else {given_state}
        last = []
        for layer in range({layers.num_layers}):
{chosen}            parameters = [getattr(self, f"{{name}}_l{{layer}}") for name in {names}]
            states, outputs = tuple(part[layer] for part in state), []
            for x_t in x:
                {step}
                outputs.append(states[0])
{output}
            last.append(states)
        last = [torch.stack(parts) for parts in zip(*last)]
        return x, {returned}'''


def _state_words(several: bool) -> str:
    return "a tuple of tensors [L, B, H]" if several else "[L, B, H]"


def _model_class(network: CharLM, plain: bool) -> str:
    layers, V, E = network.layers, network.vocabulary_size, network.embedding
    inputs = "self.embedding(ids)" if E else f"nn.functional.one_hot(ids, {V}).float()"
    embedding = f"        self.embedding = nn.Embedding({V}, {E.embedding_dim})\n" if E else ""
    relu = ', nonlinearity="relu"' if getattr(layers.cell, "nonlinearity", "") == "relu" else ""
    size = f"{layers.input_size}, {layers.hidden_size}, num_layers={layers.num_layers}{relu}"
    module = f"nn.{layers.kind.upper()}({size})" if plain else "Layers()"
    tied = E is not None and E.weight is network.decoder.weight
    tie = "        self.decoder.weight = self.embedding.weight\n" if tied else ""
    projection, logits, features = "", "self.decoder(x)", layers.hidden_size
    if network.projection is not None:
        features = network.projection.out_features
        projection = f"        self.projection = nn.Linear({layers.hidden_size}, {features}, bias=False)\n"
        logits = "self.decoder(self.projection(x))"
    if not network.is_line_model:
        forward = f"        x, state = self.layers({inputs}, state)\n"
    else:
        one = len(layers.state_names) == 1
        reset_state = "state * goes_on" if one else "tuple(part * goes_on for part in state)"
        forward = f"""        outputs = []
        for step_ids, x in zip(ids, {inputs}):
            if state is not None:  # a newline begins a line, from the zero state
                goes_on = (step_ids != {network.reset_id}).unsqueeze(-1)
                state = {reset_state}
            output, state = self.layers(x.unsqueeze(0), state)
            outputs.append(output)
        x = torch.cat(outputs)
"""
    return f'''class Model(nn.Module):
    """Ids [T, B] and a state, or None to start → logits [T, B, V] of the next ids, and the new state."""

    def __init__(self) -> None:
        super().__init__()
{embedding}        self.layers = {module}
{projection}        self.decoder = nn.Linear({features}, {V})
{tie}
    def forward(self, ids, state=None):
{forward}        return {logits}, state'''


_LOADING = '''def load() -> Model:
    """The model with its weights, for use."""
    model = Model()
    model.load_state_dict(load_file(HERE / "weights.safetensors"))
    return model.eval()'''


def _coding(vocabulary: Vocabulary) -> str:
    """`encode` and `decode`."""
    if vocabulary.level == "byte":
        ids, text = "list(text.encode())", 'bytes(ids).decode("utf-8", "replace")'
    else:
        ids = '[VOCABULARY["characters"].index(character) for character in text]'
        text = '"".join(VOCABULARY["characters"][index] for index in ids)'
    return f'''def encode(text: str) -> list[int]:
    """The ids of a text."""
    return {ids}


def decode(ids: list[int]) -> str:
    """The text of ids."""
    return {text}'''


def _sampling(trained: TrainedModel) -> str:
    reset_id = trained.network.reset_id
    start = repr(first_read(trained.vocabulary))
    read = f"prompt or {start}" if reset_id is None else f"{start} + prompt"
    ends = "" if reset_id is None else f"        if int(ids) == {reset_id}:\n            break\n"
    return f'''@torch.inference_mode()
def sample(model: Model, prompt: str = "", length: int = 300, temperature: float = 0.8) -> str:
    """A text that begins with the prompt and has up to `length` further characters (or bytes)."""
    ids, state, written = torch.tensor(encode({read})).unsqueeze(1), None, []
    for _ in range(length):
        logits, state = model(ids, state)
        scaled = (logits[-1] - logits[-1].amax(-1, True)).double() / (temperature or 1)
        ids = scaled.softmax(-1).multinomial(1) if temperature else scaled.argmax(-1, True)
{ends}        written.append(int(ids))
    return prompt + decode(written)'''
