"""What exported pages compute, in a real browser: the model, the choice of characters, the vocabulary."""

import random

import pytest
import torch

from charlm.data.vocabulary import Vocabulary
from charlm.export.html import packed_model
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import choose
from charlm.web.page import packed
from tests.cells.measure import EXTREMES
from tests.export.models import CELLS_TO_EXPORT, every_model, model_of, some_ids

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
  const shown = state.flatMap((_, layer) =>
    Object.entries(model.shown(state, layer)).map(([name, values]) => [`${layer + 1} ${name}`, [...values]]));
  return { most, shown };
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
    read, layers = check_logits(engine, trained, False, 300, 1e-4, 10)
    expected = {}
    for layer, shown in enumerate(layers, 1):
        for (name, is_gate), values in shown.items():
            expected[f"{layer} gate {name}" if is_gate else f"{layer} {name}"] = values[-1]
    assert [name for name, _ in read["shown"]] == [*expected]
    for name, values in read["shown"]:
        found = torch.tensor(values, dtype=torch.float32)  # JSON makes integers of gates that are 0 or 1
        torch.testing.assert_close(found, expected[name][0], atol=1e-4, rtol=1e-4, msg=name)
    check_logits(engine, trained, True, 300, 1e-3, 10)  # products round states to 16 bits


@pytest.mark.parametrize("case", CELLS_TO_EXPORT)
def test_gates_far_out_of_their_range(engine, case):
    """Characters drive every gate there, from the zero state on."""
    trained = model_of(case, "one-hot")
    with torch.no_grad():
        for name, parameter in trained.network.layers.named_parameters():
            if name == "weight_ih_l0":
                parameter.copy_(torch.tensor(EXTREMES)[torch.randint(len(EXTREMES), parameter.shape)])
            elif not name.startswith("weight_ln"):
                parameter.zero_()
    check_logits(engine, trained, False, 200, 1e-4, 1)


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
    encoded, decoded, begins = engine.evaluate(
        """({ vocabulary, texts, ids }) => {
          const known = new engine.Vocabulary(vocabulary);
          const decode = (ids) => {
            const decoder = known.decoder();
            return ids.map((id) => decoder.push(id)).join("") + decoder.end();
          };
          return [texts.map((text) => known.encode(text)), ids.map(decode), known.begins];
        }""",
        {"vocabulary": packed_model(trained, "int8")["vocabulary"], "texts": [*texts, "zß😀z"], "ids": ids},
    )
    assert encoded[:3] == [{"ids": vocabulary.encode(text).tolist(), "unknown": []} for text in texts]
    assert decoded == [vocabulary.decode(each) for each in ids]
    assert begins == trained.network.reset_id
    if level == "char":
        assert encoded[3] == {"ids": vocabulary.encode("😀").tolist(), "unknown": ["z", "ß"]}


@pytest.mark.parametrize("known", ["\n ’“”éLt-diOunabc", "\n '\"e\u0301Lt—–diOunabc각"])
def test_typed_texts_are_read_as_on_the_command_line(engine, known):
    texts = [
        "L'été",
        "L'e\u0301te\u0301",
        '"Oui"\r\nnon\r',
        "a\u00a0b\u202fc–b—c",
        "\u1100\u1161\u11a8",
        "ﬁn“y”",
        "áß",
        "Üe\u0301é",
    ]
    vocabulary = Vocabulary("char", "".join(sorted(set(known))))
    data = vocabulary.to_json() | {"begins": None, "firstRead": 0, "substitutes": vocabulary.substitutes}
    familiar = "({ data, texts }) => texts.map((text) => new engine.Vocabulary(data).familiar(text))"
    found = engine.evaluate(familiar, {"data": data, "texts": texts})
    assert found == [vocabulary.familiar(text) for text in texts]


def test_one_character_stands_for_all_rare_ones(engine):
    data = Vocabulary("char", "abg", other="g").to_json() | {"begins": None, "firstRead": 0, "substitutes": {}}
    encoded = engine.evaluate("(data) => new engine.Vocabulary(data).encode('aß€b')", data)
    assert encoded == {"ids": [0, 2, 2, 1], "unknown": []}
    drawn = engine.evaluate(
        "(data) => engine.choose(new engine.Vocabulary(data).drawable([1, 2, 3]), {temperature: 0}, 0)", data
    )
    assert drawn == 1
