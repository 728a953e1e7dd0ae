"""Drawing characters."""

import numpy as np
import pytest
import torch

from charlm.cells import CELLS
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DivergenceError, VocabularyError
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import SampleText, choose, read_ids, sample_ids, sample_text
from charlm.system.formatting import readable
from tests.inference.models import model_of

VOCABULARY = Vocabulary("char", "\n abcdefgé")
PROBABILITIES = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)


def options(**others):
    return SamplingOptions(**{"temperature": 1.0, **others})


def ids_after(model, prompt, seeds=(0,), **others):
    """The ids [T, N] that a model draws after the ids of a prompt."""
    return torch.stack([*sample_ids(model, *read_ids(model, prompt), options(**others), seeds)])


def text_of(model, seeds=(1,), vocabulary=VOCABULARY, prompt="a", **others):
    steps = sample_text(model, vocabulary, prompt, options(**{"length": 40, **others}), seeds)
    return ["".join(pieces) for pieces in zip(*steps, strict=True)]


ONE, TWO, ALL = [1, 0, 0, 0], [0.625, 0.375, 0, 0], PROBABILITIES.tolist()
SQUARED = (PROBABILITIES**2 / (PROBABILITIES**2).sum()).tolist()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, ALL),
        ({"temperature": 0.5}, SQUARED),
        ({"temperature": 0}, ONE),
        ({"top_k": 2}, TWO),
        ({"top_p": 0.7}, TWO),
        # top_p is a share of what top_k leaves.
        ({"top_k": 2, "top_p": 0.55}, ONE),
    ],
)
def test_draws_follow_the_probabilities_within_the_limits(limits, expected):
    draws = 20_000
    uniform = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    order = torch.tensor([2, 0, 3, 1])
    logits = PROBABILITIES.log()[order].expand(draws, -1)
    counts = torch.bincount(choose(logits, options(**limits), uniform), minlength=4) / draws
    assert counts[order.argsort()].tolist() == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("kind", CELLS)
def test_steps_with_carried_state_are_the_whole_sequence(kind):
    """Greedy text is what the argmax of one pass over prompt and text says, also after a prompt of several windows."""
    length = 560 if kind == "lstm" else 3
    model = model_of(kind, tie_embeddings=kind == "gru")
    prompt = np.random.default_rng(0).integers(10, size=length).tolist()
    ids = ids_after(model, prompt, [0, 1], length=20, temperature=0)
    assert torch.equal(ids[:, 0], ids[:, 1])
    logits, _ = model(torch.tensor([*prompt, *ids[:, 0].tolist()]).unsqueeze(1))
    assert logits[length - 1 : -1, 0].argmax(-1).tolist() == ids[:, 0].tolist()


def test_a_sample_depends_on_its_seed_alone():
    model, before = model_of(vocabulary=10), torch.get_rng_state()
    alone = [text_of(model, seeds=[seed])[0] for seed in (1, 2, 3)]
    assert text_of(model, seeds=[1, 2, 3]) == alone
    assert text_of(model, seeds=[3, 1]) == [alone[2], alone[0]]
    assert len(set(alone)) == 3
    assert torch.equal(torch.get_rng_state(), before)


def test_an_empty_prompt_needs_neither_line_end_nor_space():
    vocabulary = Vocabulary("char", "xyz")
    assert len(text_of(model_of(vocabulary=3), vocabulary=vocabulary, prompt="")[0]) == 40


def test_bytes_come_out_as_whole_characters():
    ids = "é€😀".encode() + b"\xe2\x82"
    sample = SampleText(Vocabulary("byte"), SamplingOptions(), None)
    pieces = [sample.append(id, is_last=place == len(ids)) for place, id in enumerate(ids, start=1)]
    assert pieces == ["", "é", "", "", "€", "", "", "", "😀", "", "\udce2\udc82"]
    assert readable(pieces[-1]) == "\ufffd"


LIMITS = [
    {},
    {"top_p": 0.6},
    {"temperature": 0},
    {"temperature": 5e-324},
    {"temperature": 1.3, "top_k": 6, "top_p": 0.9},
]
ONE_LAYER = {"layers": 1, "embedding": 0}
THREE_LAYERS = {"layers": 3, "embedding": 6, "residual": True, "zoneout": 0.3}


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize(
    ("cell", "model", "precision", "count"),
    [
        ({"kind": "rnn", "nonlinearity": "relu"}, ONE_LAYER, "fp32", 1),
        ({"kind": "lstm"}, THREE_LAYERS, "bf16", 3),
        ({"kind": "rhn", "couple_gates": False}, {**ONE_LAYER, "members": 2}, "fp32", 1),
        ({"kind": "mogrifier"}, {"layers": 2, "embedding": 6}, "fp32", 3),
    ],
    ids=str,
)
def test_the_kernel_draws_what_the_loop_over_characters_does(cell, model, precision, count, threads, monkeypatch):
    hidden = 150 if count > 1 else 21
    model = model_of(cell={**cell, "hidden": hidden}, precision=precision, **model)
    threads(count)

    def draw(limits):
        return ids_after(model, [1, 2], [3, 4, 3, 5, 6, 7, 8], length=40, **limits)

    assert model.generator(model.initial_state(1)) is not None
    by_kernel = [draw(limits) for limits in LIMITS]
    monkeypatch.setattr(type(model), "generator", lambda model, state, never=(): None)
    # A draw may fall between two roundings of a probability; from there on that stream has another text.
    same = [(ids == draw(limits)).all(0) for limits, ids in zip(LIMITS, by_kernel, strict=True)]
    assert torch.stack(same).float().mean() > 0.9
    assert torch.equal(by_kernel[0][:, 0], by_kernel[0][:, 2])
    assert not torch.equal(by_kernel[0][:, 0], by_kernel[0][:, 1])


@pytest.mark.parametrize("kernels", ["needs_kernels", "no_kernels"])
def test_what_overflows_after_the_end_of_a_sample_does_not_fail_it(kernels, request):
    """The state grows by a thousand each step, so the logits overflow within the characters of one call."""
    request.getfixturevalue(kernels)
    model = model_of(cell={"kind": "rnn", "hidden": 13, "nonlinearity": "relu"}, vocabulary=10, layers=1)
    with torch.no_grad():
        for name, parameter in model.layers.named_parameters():
            parameter.copy_(1000 * torch.eye(13) if name.startswith("weight_hh") else torch.ones_like(parameter))
    [first] = text_of(model, temperature=0, length=1)
    assert text_of(model, seeds=(1, 2), temperature=0, stop=first) == [first, first]
    with pytest.raises(DivergenceError):
        text_of(model, temperature=0)


@pytest.mark.parametrize(
    ("kernels", "temperature", "members"), [("needs_kernels", 1.0, 1), ("needs_kernels", 0, 2), ("no_kernels", 1.0, 2)]
)
def test_logits_that_are_not_finite_are_refused(kernels, temperature, members, request):
    request.getfixturevalue(kernels)
    for bias in (3.4e38, torch.nan):
        model = model_of(vocabulary=10, members=members, layers=1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "decoder" in name:
                    parameter[3] = bias if name.endswith("bias") else 3.4e38
        with pytest.raises(DivergenceError):
            text_of(model, seeds=range(5), temperature=temperature)


def test_a_letter_of_several_symbols_cannot_be_banned():
    vocabulary = Vocabulary("char", "eu\u0301")
    for letter in ("é", "e\u0301"):
        with pytest.raises(VocabularyError, match=r"^ban: found 'é', which is two characters of this model; "):
            vocabulary.never_drawn(letter)
    assert vocabulary.never_drawn("\u0301e") == [0, 2]
