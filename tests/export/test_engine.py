"""What exported pages compute, in a real browser: the model, the choice of characters, the vocabulary."""

import random

import pytest
import torch

from charlm.cells import CELLS
from charlm.data.vocabulary import Vocabulary
from charlm.export.html_model import packed_model
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import choose
from charlm.web.page import packed
from tests.export.models import CELLS_TO_EXPORT, every_model, extreme_model_of, model_of, some_ids

FLOAT32_BOUND = 1e-4
INT8_BOUND = 1e-3
"""Logits of int8 weights may differ so much from charlm's with the same weights: products round states to 16 bits."""

READ = """async ({ data, ids, logits }) => {
  const expected = await engine.unpacked(logits);
  const model = await engine.openModel(await engine.unpacked(data));
  const state = model.start();
  let most = 0;
  ids.forEach((id, step) => {
    const logits = model.read(state, id);
    if (logits.length * ids.length !== expected.length) throw new Error("size");
    logits.forEach((logit, place) => {
      const difference = Math.abs(logit - expected[step * model.size + place]);
      most = difference <= most ? most : difference; // also if it is not a number
    });
  });
  const before = model.copy(state);
  const shown = state.flatMap((_, layer) =>
    Object.entries(model.shown(state, layer)).map(([name, values]) => [`${layer + 1} ${name}`, [...values]]));
  return { most, shown, next: [...model.read(state, 0)], again: [...model.read(before, 0)] };
}"""


def check_logits(engine, trained, int8, steps, bound, most):
    """Logits of the page's model differ by at most `bound`, or so much of what is above `most`; what else it says."""
    trained, ids = trained.on_cpu_in_float32(), some_ids(trained, steps, 1)
    data = packed_model(trained, "int8" if int8 else "float32")["model"]
    with torch.inference_mode():
        logits, _ = trained.network(ids)
        _, _, shown = trained.network.outputs_and_activations(ids)
    read = engine.evaluate(READ, {"data": data, "ids": ids[:, 0].tolist(), "logits": packed(logits.numpy())})
    assert read["most"] < bound * max(1.0, float(logits.abs().max()) / most)
    return read, shown


@every_model
def test_logits_states_and_gates_are_charlms(engine, options):
    trained = model_of(**options)  # an SRU of three layers has logits of 100
    read, layers = check_logits(engine, trained, False, 300, FLOAT32_BOUND, 10)
    expected = {}
    for layer, shown in enumerate(layers, 1):
        for (name, is_gate), values in shown.items():
            expected[f"{layer} gate {name}" if is_gate else f"{layer} {name}"] = values[-1]
    assert [name for name, _ in read["shown"]] == [*expected]
    for name, values in read["shown"]:
        torch.testing.assert_close(torch.tensor(values), expected[name][0], atol=1e-4, rtol=1e-4, msg=name)
    assert read["next"] == read["again"]  # of a copy of the state
    check_logits(engine, trained, True, 300, INT8_BOUND, 10)


@pytest.mark.parametrize("case", CELLS_TO_EXPORT)
def test_gates_far_out_of_their_range(engine, case):
    check_logits(engine, extreme_model_of(case), False, 200, FLOAT32_BOUND, 1)


def test_every_kind_is_tested():
    assert {cell["kind"] for cell in CELLS_TO_EXPORT.values()} == CELLS.keys()


def test_random_numbers_are_those_of_torch(engine):
    seeds = [0, 123, 2**32 - 1, 2**40 + 17, 2**63 - 1, -1]
    expected = [
        torch.rand(1500, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).tolist() for seed in seeds
    ]
    drawn = """(seeds) => seeds.map((seed) => {
      const uniform = new engine.Uniform(BigInt(seed));
      return Array.from({ length: 1500 }, () => uniform.next());
    })"""
    assert engine.evaluate(drawn, [str(seed) for seed in seeds]) == expected


def test_choices_are_those_of_charlm(engine):
    random.seed(0)
    cases, expected = [], []
    for _ in range(300):
        V = random.choice([1, 2, 7, 300, 2000])
        logits = torch.randn(V) * random.choice([0, 1, 3, 8])
        logits = (logits * 2).round() / 2 if random.random() < 0.5 else logits  # many are equal, some are −0
        temperature, top_k = random.choice([0.0, 0.3, 1.0, 5.0]), random.choice([0, 1, 3, 1000])
        top_p = random.choice([1e-9, 0.4711, 0.8917, 1.0])
        # Closer to 1, the rounding of sums decides among unlikely ids.
        draw = random.choice([0.0, random.random(), 1 - (2**-53 if V <= 7 else 1e-9)])
        cases.append([logits.tolist(), {"temperature": temperature, "topK": top_k, "topP": top_p}, draw])
        options = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p)
        expected.append(int(choose(logits[None].double(), options, torch.tensor([draw], dtype=torch.float64))))
    chosen = "(cases) => cases.map(([logits, ...rest]) => engine.choose(Float32Array.from(logits), ...rest))"
    found = engine.evaluate(chosen, cases)
    for case, one, other in zip(cases, found, expected, strict=True):
        assert one == other, case


def test_probabilities(engine):
    logits = torch.tensor([-3.0, 1000.0, 999.0, -1000.0])
    found = engine.evaluate("(logits) => [...engine.probabilities(Float32Array.from(logits))]", logits.tolist())
    torch.testing.assert_close(torch.tensor(found).double(), logits.double().softmax(-1), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("level", ["char", "byte"])
def test_text_and_ids(engine, level):
    trained = model_of(level=level, records="\n")
    vocabulary: Vocabulary = trained.vocabulary
    texts = ["", "abba\n", "é😀e"]
    ids = [vocabulary.encode(text).tolist() for text in texts]
    if level == "byte":
        ids.append(random.Random(0).choices([97, 0xC3, 0xA9, 0x9F, 0xF0, 0xE2, 0xFF], k=200))
    encoded, decoded, first, begins, name = engine.evaluate(
        """({ vocabulary, texts, ids }) => {
          const known = new engine.Vocabulary(vocabulary);
          const decode = (ids) => {
            const decoder = known.decoder();
            return ids.map((id) => decoder.push(id)).join("") + decoder.end();
          };
          const encoded = texts.map((text) => known.encode(text));
          return [encoded, ids.map(decode), known.firstRead, known.begins, known.name(226)];
        }""",
        {"vocabulary": packed_model(trained, "int8")["vocabulary"], "texts": [*texts, "zß😀z"], "ids": ids},
    )
    assert encoded[:3] == [{"ids": vocabulary.encode(text).tolist(), "unknown": []} for text in texts]
    assert decoded == [vocabulary.decode(each) for each in ids]
    assert first == begins == trained.network.reset_id
    if level == "char":
        assert encoded[3] == {"ids": vocabulary.encode("😀").tolist(), "unknown": ["z", "ß"]}
    else:
        assert name == "byte E2"


TYPED = [
    "L'été", "L'e\u0301te\u0301", '"Oui" (dit-il)', "«oui»\r\nnon\r", "a\u00a0b\u202fc", "a–b—c\u2010d",
    "\u1100\u1161\u11a8", "ﬁn", "a\u200db", "áß e\u0301ß", "‘x’ “y” „z”", "-1 − 2", "ʼ`´",
]  # fmt: skip
KNOWN = ["\n ’“”éLt-diOunabcá", "\n '\"e\u0301Lt—–diOunabc각", "\r\n\u00a0abc\u1100\u1161\u11a8‘−éß", "abc"]


@pytest.mark.parametrize("known", KNOWN)
def test_typed_texts_are_read_as_on_the_command_line(engine, known):
    vocabulary = Vocabulary("char", "".join(sorted(set(known))))
    data = vocabulary.to_json() | {"begins": None, "firstRead": 0, "substitutes": vocabulary.substitutes}
    familiar = "({ data, texts }) => texts.map((text) => new engine.Vocabulary(data).familiar(text))"
    found = engine.evaluate(familiar, {"data": data, "texts": TYPED})
    assert found == [vocabulary.familiar(text) for text in TYPED]
