"""Samples during training: their surprise, samples.jsonl, and their form in TensorBoard's text tab."""

import json
import re
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from charlm.inference import load
from charlm.inference.options import SamplingOptions
from charlm.training.sample import COLUMNS, Sample, _of_characters, draw_sample, shaded
from charlm.training.start import resume_run, start_run
from charlm.training.step import Trainer


def samples(run):
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("unit", ["text", "line"])
@pytest.mark.parametrize("level", ["char", "byte"])
def test_every_character_has_the_bits_of_its_score(tmp_path, config_of, level, unit):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"ü {n}.\nπός {n} 日本 €\n" for n in range(300)))
    data = {"source": str(text), "level": level, "unit": unit}
    start_run(config_of({"max_steps": 6, "sample_every": 6, "sample_length": 60}, data=data), tmp_path / "run")
    [_, row] = samples(tmp_path / "run")
    text, bits = row["text"], row["bits"]
    assert row["step"] == 6
    assert len(text) == len(bits)
    if level == "char":
        trained = load(tmp_path / "run/checkpoints/last.safetensors", "cpu")
        read_first = {"text": "\n", "line": ""}[unit]
        [expected] = trained.char_scores([read_first + text])
        if unit == "line":  # the newline that ends the line is scored, but no part of the sample
            expected = expected[:-1]
        np.testing.assert_allclose(bits, expected, atol=0.006)


def test_bits_of_bytes_add_up_to_those_of_characters():
    np.testing.assert_array_equal(_of_characters(np.arange(1.0, 8), "aé\udcff日"), [1, 5, 4, 18])
    assert len(_of_characters(np.array([]), "")) == 0


@pytest.mark.parametrize(
    ("every", "steps"), [(500, [0, 10, 30, 100]), (20, [0, 10, 20, 40, 60, 80, 100]), (0, []), (10, range(0, 101, 10))]
)
def test_the_first_samples_are_early(tmp_path, config_of, every, steps):
    train = {"max_steps": 100, "sample_every": every, "sample_length": 3, "eval_every": 0, "save_every": 0, "bptt": 2}
    start_run(config_of(train), tmp_path / "run")
    drawn = samples(tmp_path / "run")
    assert [row["step"] for row in drawn] == [*steps]
    events = EventAccumulator(str(tmp_path / "run/train"), {"tensors": 0}).Reload()
    charted = events.Tensors("sample/text_summary") if steps else []
    assert [event.step for event in charted] == [*steps]


def test_a_run_that_is_killed_before_its_first_checkpoint_has_one_sample_of_step_0(tmp_path, config_of, finished_run):
    with mock.patch.object(Trainer, "update", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        start_run(config_of(), tmp_path / "run")
    [first] = samples(tmp_path / "run")
    resume_run(tmp_path / "run")
    assert samples(tmp_path / "run") == samples(finished_run)
    assert samples(finished_run)[0] == first


def test_sampling_draws_nothing_that_training_needs(tmp_path, config_of):
    """Weights and random state are the same with samples and without."""
    for every in (0, 1):
        start_run(config_of({"sample_every": every}, model={"dropout": 0.3}), tmp_path / str(every))
    with_samples, without = (load(tmp_path / str(every), "cpu").network.state_dict() for every in (1, 0))
    assert all(torch.equal(with_samples[name], tensor) for name, tensor in without.items())


def test_a_model_that_is_not_finite_has_no_bits(trained_run, monkeypatch):
    trained = load(trained_run, "cpu")
    monkeypatch.setattr(
        "charlm.training.sample.score_texts", lambda model, texts, device: [np.full(len(texts[0]) - 1, np.nan)]
    )
    options = SamplingOptions(length=5)
    drawn = draw_sample(trained.network, trained.vocabulary, options=options, seed=3, device=trained.device)
    assert drawn.bits == [None] * 5
    assert json.loads(json.dumps(drawn.as_json(1), allow_nan=False))["bits"] == [None] * 5


# In TensorBoard


def rows_of(sample):
    """The rows that TensorBoard shows, after its Markdown and its sanitizing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorBoard's copy of a sanitizer speaks of its future
        from tensorboard.plugin_util import markdown_to_safe_html
    page = markdown_to_safe_html(shaded(sample))
    shown = re.fullmatch(r"<pre>(.*)</pre>\s*", page, re.DOTALL)
    assert shown, page
    return shown[1].split("\n")[2:]


@pytest.mark.parametrize(
    ("text", "bits", "rows"),
    [
        (  # bars stand below characters
            "so, 日é\u0301\n\tx",
            [0.2, 1.0, 3.99, 8.1, 30.0, 2.0, 1.0, None, 5.0, 0.0],
            ["so,<strong> </strong><strong>日</strong>é\u0301", " ▁▃███▂", "<strong>→</strong>x", "▅"],
        ),
        ("a\x00\x1b\u202eb", [1.0] * 5, ["a\ufffd\ufffd\ufffdb", "▁▁▁▁▁"]),
        ("שלום\nab", [1.0] * 7, ["שלום", "ab", "▁▁"]),  # letters from right to left have none
    ],
)
def test_rows(text, bits, rows):
    assert rows_of(Sample(text, bits))[: len(rows)] == rows


@pytest.mark.parametrize(
    "text", ["<b>&amp;", "</pre><script>x</script>", "*a* _b_ `c` | d", "# no\n\n- list\n\n    code", "<!-- a", "&lt;"]
)
def test_nothing_is_markup_or_markdown(text):
    rows = rows_of(Sample(text, [0.0] * len(text)))
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert rows[::2] == escaped.split("\n")


def test_rows_are_wrapped_and_have_all_characters():
    text = "word " * 50 + "x" * 200 + "\n\nend"
    rows = rows_of(Sample(text, [1.0] * len(text)))[::2]
    assert max(map(len, rows)) <= COLUMNS
    assert "".join(rows) == text.replace("\n", "")


def test_the_event_is_the_shaded_sample(finished_run):
    events = EventAccumulator(str(finished_run / "train")).Reload().Tensors("sample/text_summary")
    shown = [event.tensor_proto.string_val[0].decode() for event in events]
    written = samples(finished_run)
    assert [event.step for event in events] == [row["step"] for row in written] == [0, 6, 12]
    assert shown == [shaded(Sample(row["text"], row["bits"])) for row in written]
