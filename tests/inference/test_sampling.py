"""Drawing characters."""

import numpy as np
import pytest
import torch

from charlm.cells import CELLS
from charlm.config import parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DivergenceError, VocabularyError
from charlm.inference.sampling import Choice, StepByStep, choose, sample_ids, sample_text
from charlm.model import build_model, map_state
from tests.cells.measure import own
from tests.pairwise import pairwise
from tests.recordable import CheckedGraphs

CPU = torch.device("cpu")
VOCABULARY = Vocabulary("char", "\n abcdefgé")
PROBABILITIES = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)


def model_of(kind="lstm", vocabulary=VOCABULARY):
    torch.manual_seed(5)
    return build_model(
        parse_config({"model": {"cell": {"kind": kind, "hidden": 16}}}, "t").model, len(vocabulary)
    ).eval()


def frequencies(choice, draws=20_000):
    uniform = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    order = torch.tensor([2, 0, 3, 1])
    logits = PROBABILITIES.log()[order].expand(draws, -1)
    counts = torch.bincount(choose(logits, choice, uniform), minlength=4) / draws
    return counts[order.argsort()].tolist()


def test_draws_follow_the_probabilities():
    assert frequencies(Choice()) == pytest.approx(PROBABILITIES.tolist(), abs=2e-4)


def test_temperature_sharpens():
    p = PROBABILITIES**2
    assert frequencies(Choice(temperature=0.5)) == pytest.approx((p / p.sum()).tolist(), abs=2e-4)


def test_temperature_zero_takes_the_likeliest():
    assert frequencies(Choice(temperature=0)) == [1, 0, 0, 0]


def test_top_k():
    assert frequencies(Choice(top_k=2)) == pytest.approx([0.625, 0.375, 0, 0], abs=2e-4)
    assert frequencies(Choice(top_k=99)) == pytest.approx(PROBABILITIES.tolist(), abs=2e-4)


def test_top_p_keeps_the_fewest_that_reach_it():
    assert frequencies(Choice(top_p=0.4)) == [1, 0, 0, 0]
    assert frequencies(Choice(top_p=0.7)) == pytest.approx([0.625, 0.375, 0, 0], abs=2e-4)
    assert frequencies(Choice(top_p=0.0)) == [1, 0, 0, 0]


def test_min_p_keeps_those_nearly_as_likely_as_the_likeliest():
    assert frequencies(Choice(min_p=0.59)) == pytest.approx([0.625, 0.375, 0, 0], abs=2e-4)
    assert frequencies(Choice(min_p=0.61)) == [1, 0, 0, 0]
    assert frequencies(Choice(min_p=1.0)) == [1, 0, 0, 0]
    assert frequencies(Choice(min_p=0.05)) == frequencies(Choice())


def test_min_p_acts_after_the_temperature():
    """At temperature 0.5 the second is (0.3 / 0.5)² = 0.36 times as likely as the first."""
    p = PROBABILITIES[:2] ** 2
    kept = pytest.approx([*(p / p.sum()).tolist(), 0, 0], abs=2e-4)
    assert frequencies(Choice(temperature=0.5, min_p=0.35)) == kept
    assert frequencies(Choice(temperature=0.5, min_p=0.37)) == [1, 0, 0, 0]


def test_of_several_limits_the_strictest_holds():
    two = pytest.approx([0.625, 0.375, 0, 0], abs=2e-4)
    assert frequencies(Choice(top_k=2, top_p=0.99, min_p=0.01)) == two
    assert frequencies(Choice(top_k=3, top_p=0.7, min_p=0.01)) == two
    assert frequencies(Choice(top_k=3, top_p=0.99, min_p=0.5)) == two


def test_min_p_keeps_all_that_are_equally_likely():
    logits = torch.zeros(3, 4, dtype=torch.float64)
    assert choose(logits, Choice(min_p=1.0), torch.tensor([0.1, 0.6, 0.9])).tolist() == [0, 2, 3]


def test_a_tiny_temperature_takes_the_likeliest():
    for temperature in (1e-300, 1e-310, 5e-324):
        assert frequencies(Choice(temperature=temperature)) == [1, 0, 0, 0]


def test_extreme_draws_stay_in_range():
    logits = torch.tensor([[0.0, -800.0, 1.0]], dtype=torch.float64)
    for draw in (0.0, 1 - 2**-53):
        assert choose(logits, Choice(), torch.tensor([draw], dtype=torch.float64)).item() in (0, 2)


def text_of(model, seeds=(1,), vocabulary=VOCABULARY, **options):
    options = {"prompt": "a", "length": 40, "choice": Choice(), **options}
    steps = list(sample_text(model, vocabulary, seeds=seeds, device=CPU, **options))
    return ["".join(pieces) for pieces in zip(*steps, strict=True)]


@pytest.mark.parametrize("kind", CELLS)
def test_steps_with_carried_state_are_the_whole_sequence(kind):
    """Greedy text is what the argmax of one pass over prompt and text says."""
    model = model_of(kind)
    prompt = VOCABULARY.encode("abc").tolist()
    drawn = [int(i) for i in sample_ids(model, prompt, 20, Choice(temperature=0), [0], CPU)]
    logits, _ = model(torch.tensor([*prompt, *drawn]).unsqueeze(1))
    assert logits[2:-1, 0].argmax(-1).tolist() == drawn


def test_a_sample_depends_on_its_seed_alone():
    model = model_of()
    alone = [text_of(model, seeds=[seed])[0] for seed in (1, 2, 3)]
    assert text_of(model, seeds=[1, 2, 3]) == alone
    assert text_of(model, seeds=[3, 1]) == [alone[2], alone[0]]
    assert len(set(alone)) == 3


def test_a_long_prompt_is_read_in_windows(monkeypatch):
    model = model_of()
    prompt = "abc dfe\n" * 70
    longest = []
    features = model.features
    monkeypatch.setattr(model, "features", lambda x, *state: longest.append(tuple(x.shape)) or features(x, *state))
    ids = VOCABULARY.encode(prompt)
    drawn = [both.tolist() for both in sample_ids(model, ids.tolist(), 5, Choice(temperature=0), [0, 1], CPU)]
    assert longest[:3] == [(256, 1), (256, 1), (48, 1)]
    monkeypatch.undo()
    logits, state = model(torch.from_numpy(ids.astype("int64")).unsqueeze(1))
    for first, second in drawn:
        assert first == second == int(logits[-1, 0].argmax())
        logits, state = model(torch.tensor([[first]]), state)


def test_more_characters_than_one_block_of_draws():
    text = text_of(model_of(), length=700)[0]
    assert len(text) == 700
    assert text_of(model_of(), length=300)[0] == text[:300]
    assert text[:256] != text[256:512]


def test_the_global_generator_is_left_alone():
    model = model_of()
    before = torch.get_rng_state()
    text_of(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_stop_ends_each_sample_with_it():
    model = model_of()
    texts = text_of(model, seeds=range(8), length=400, stop="e")
    assert all(text.index("e") == len(text) - 1 for text in texts)
    assert len({len(text) for text in texts}) > 1


def test_prompt_steers_and_empty_prompt_is_a_line_start():
    model = model_of()
    greedy = Choice(temperature=0)
    assert text_of(model, prompt="", choice=greedy) == text_of(model, prompt="\n", choice=greedy)


def test_unknown_character_in_the_prompt():
    with pytest.raises(VocabularyError, match=r"'z' \(U\+007A\): not in the model's vocabulary of 10 characters"):
        text_of(model_of(), prompt="az")


def test_bytes_come_out_as_whole_characters():
    """A byte model that writes é € 😀 and then half a character: nothing is shown before it is whole."""
    vocabulary = Vocabulary.of_bytes()
    wanted = "é€😀".encode() + b"\xe2\x82"

    class Scripted:
        begins = None

        def generator(self, state):
            return None

        def logits(self, features):
            return features

        def features(self, x_TB, state=None):
            place = torch.zeros(1, x_TB.shape[1], 1) if state is None else state
            logits = torch.full((1, x_TB.shape[1], 256), -50.0)
            logits[..., wanted[min(int(place[0, 0, 0]), len(wanted) - 1)]] = 50.0
            return logits, place + 1

    steps = sample_text(Scripted(), vocabulary, prompt="x", length=len(wanted), choice=Choice(), seeds=[0], device=CPU)
    assert [piece for [piece] in steps] == ["", "é", "", "", "€", "", "", "", "😀", "", "\udce2\udc82"]


GENERATED = [
    *({"kind": kind} for kind in CELLS),
    {"kind": "rnn", "nonlinearity": "relu"},
    {"kind": "lstm", "layer_norm": True},
    {"kind": "rhn", "depth": 2, "couple_gates": False},
    {"kind": "slstm", "forget_gate": "exponential"},
]
MODELS = [
    {"layers": 1, "embedding": 0},
    {"layers": 3, "embedding": 6},
    {"layers": 3, "embedding": 6, "residual": True, "zoneout": 0.3},
]
CHOICES = [
    Choice(),
    Choice(temperature=0.7, top_k=3),
    Choice(top_p=0.6),
    Choice(temperature=0),
    Choice(temperature=5e-324, min_p=0.5),
    Choice(top_k=100),
    Choice(min_p=0.1),
    Choice(temperature=1.3, top_k=6, top_p=0.9, min_p=0.05),
]


@pytest.mark.usefixtures("needs_kernels")
@pairwise(cell=GENERATED, model=MODELS, threads=[1, 3], precision=["fp32", "bf16"])
def test_the_kernel_draws_what_the_loop_over_characters_does(cell, model, threads, precision, monkeypatch):
    torch.manual_seed(1)
    hidden = 150 if threads > 1 else 21
    config = parse_config({"model": {"cell": cell | {"hidden": hidden}, **model}}, "test").model
    model = build_model(config, 11, precision).eval()
    with torch.no_grad():
        model.decoder.weight *= 8
    torch.set_num_threads(threads)

    def draw(choice):
        return torch.stack(list(sample_ids(model, [1, 2], 100, choice, [3, 4, 3, 5, 6, 7, 8], CPU)))

    assert model.generator(model.layers.zero_state(1)) is not None
    found = [draw(choice) for choice in CHOICES]
    monkeypatch.setattr(model, "generator", lambda state: None)
    # A draw may fall between two roundings of a probability; from there on that stream has another text.
    same = [(ids == draw(choice)).all(0) for choice, ids in zip(CHOICES, found, strict=True)]
    assert torch.stack(same).float().mean() > 0.9
    assert torch.equal(found[0][:, 0], found[0][:, 2])
    assert not torch.equal(found[0][:, 0], found[0][:, 1])


@pytest.mark.parametrize("with_kernel", [True, False])
@pytest.mark.parametrize("choice", [Choice(), Choice(temperature=0)])
def test_logits_that_are_not_finite_are_refused(choice, with_kernel, request):
    request.getfixturevalue("needs_kernels" if with_kernel else "no_kernels")
    for bias in (3.4e38, torch.nan, -torch.inf):
        model = model_of()
        with torch.no_grad():
            model.decoder.weight[3], model.decoder.bias[3] = 3.4e38, bias
        assert (model.generator(model.layers.zero_state(1)) is not None) == with_kernel
        with pytest.raises(
            DivergenceError, match=r"^logits: found numbers that are not finite; use another checkpoint"
        ):
            text_of(model, seeds=range(5), choice=choice)


@pairwise(cell=GENERATED, model=MODELS, choice=CHOICES)
def test_a_graph_can_record_a_step(cell, model, choice, monkeypatch):
    config = parse_config({"model": {"cell": cell | {"hidden": 21}, **model}}, "test").model
    model = build_model(config, 11).eval()
    layers = own(model.layers)  # which a GPU uses
    monkeypatch.setattr(model.layers, "forward", lambda x, state=None, resets=None: layers(x, state, resets))
    monkeypatch.setattr("charlm.layers.driven.check_ids", lambda *arguments: None)  # on the CPU only
    _, state = model.features(torch.tensor([[1]]))
    output = torch.randn(1, 3, 21)
    draws = torch.rand(9, 3, dtype=torch.float64)
    state = map_state(lambda part: part.expand(-1, 3, -1).contiguous(), state)
    with torch.inference_mode():
        wanted = StepByStep(model, output, state, choice)(draws)
        checked = StepByStep(model, output, state, choice)
        checked.graphs = CheckedGraphs()
        found = torch.cat([checked(draws[:5]), checked(draws[5:])])
    assert torch.equal(found, wanted)
    assert checked.graphs.runs == 9


def test_vocabulary_without_line_end_or_space():
    vocabulary = Vocabulary("char", "xyz")
    assert len(text_of(model_of(vocabulary=vocabulary), vocabulary=vocabulary, prompt="")[0]) == 40


def test_draws_are_independent_across_steps():
    model = model_of()
    ids = np.array([int(i) for i in sample_ids(model, [1], 2000, Choice(temperature=5.0), [0], CPU)])
    counts = np.bincount(ids, minlength=10) / 2000
    assert counts.min() > 0.05
