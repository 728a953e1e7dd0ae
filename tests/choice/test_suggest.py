"""Settings for a text, a time and a machine: valid, sensible, and what the user asked for."""

import itertools
import math
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from charlm.checkpoint import read_checkpoint
from charlm.choice import speed as speed_module
from charlm.choice.families import USUAL, Request
from charlm.choice.recipe import all_settings
from charlm.choice.rule import Candidate, best, is_promising, relative_nats
from charlm.choice.speed import update_s
from charlm.choice.suggest import suggest
from charlm.config import Config, load_config, merged, parse_config, read_settings
from charlm.data.corpus import Corpus, CountedSources
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CharlmError, DeviceError
from charlm.model import count_parameters
from charlm.runs import find_checkpoint
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.fine_tuning import settings_of_run
from charlm.training.machine import Machine, least_bytes
from charlm.training.start import start_run
from tests.text import words_text

MEASURE = speed_module.measure
pytestmark = pytest.mark.usefixtures("speed", "text_of", "of_machine")


@dataclass
class Speed:
    """A machine whose updates take 1 ms, and 10 ns for each parameter and stream of 64 characters."""

    factor: float = 1.0  # how much slower it is
    without_kernels: float = 1.0  # how much slower all but the plain LSTM are
    largest: int = 10**6  # how many hidden units fit into memory
    measured: list[Config] = field(default_factory=list)

    def update_s(self, config, characters):
        model = config.model
        is_plain = model.cell.kind == "lstm" and model.layers == 1 and not model.cell.layer_norm
        factor = self.factor * (1 if is_plain else self.without_kernels)
        return factor * (1e-3 + 1e-8 * count_parameters(model, characters) * config.train.batch_size)

    def measure(self, config, corpus, *_):
        self.measured.append(config)
        fits = config.model.cell.hidden <= self.largest
        return self.update_s(config, len(corpus.vocabulary)) if fits else math.inf


@pytest.fixture
def speed(monkeypatch):
    speed = Speed()
    monkeypatch.setattr(speed_module, "measure", speed.measure)
    return speed


@pytest.fixture
def text_of(monkeypatch):
    """Makes every source a text of so many characters, 120,000 at first, without writing it."""

    def build(chars, vocabulary=70):
        ids = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), shape=(chars,), strides=(0,))
        corpus = Corpus(Vocabulary("char", "".join(map(chr, range(32, 32 + vocabulary)))), {"train": ids}, "", chars, 1)
        text = SimpleNamespace(corpus=lambda vocabulary, whole: corpus)
        monkeypatch.setattr("charlm.choice.suggest.CountedSources", lambda data: text)

    build(120_000)
    return build


MACHINE = Machine(torch.device("cpu"), ProcessGroup(), 2, "fp32", "", 8 * 10**9, has_kernels=True)


@pytest.fixture
def of_machine(monkeypatch):
    """Chooses for a machine with two threads and 8 GB; what it returns changes that."""

    def change(**changes):
        machine = replace(MACHINE, **changes)
        monkeypatch.setattr(
            "charlm.choice.suggest.choose_machine", lambda base, group, cells: replace(machine, group=group)
        )

    change()
    return change


def choice(minutes=1, given=(), **others):
    return suggest(Request("my.txt", minutes, read_settings(given)), **others).config


def units(config):
    return config.model.layers * config.model.cell.hidden


def test_more_time_or_a_faster_machine_means_a_larger_model_and_more_dropout(speed):
    short, long = (choice(minutes) for minutes in (0.2, 30))
    assert units(long) > units(short)
    assert long.model.dropout.output > short.model.dropout.output
    fast = choice()
    speed.factor = 30
    assert units(choice()) < units(fast)


@pytest.mark.parametrize(
    ("chars", "minutes", "given", "setting", "expected"),
    [
        (1_000_000, 5, "", "model.members", 1),  # fewer than 15 passes for each of two
        (300_000, 240, "", "model.members", 4),
        (1_000_000, 1, "model.members=3", "model.members", 3),
        (100_000, 240, "train.max_epochs=30", "model.members", 1),
        (300_000, 240, "train.max_epochs=90 train.max_steps=100000000", "model.members", 4),  # no limits at all
        (20_000, 480, "", "train.max_epochs", 60),
        (3_000_000, 1, r'data.records="\n"', "train.read_share", 1),  # lines come in a random order
        (120_000, 1, "optimizer.name=sgd", "optimizer.weight_decay", 0),
        (120_000, 5, "data.split=[1,0,0]", "train.eval_every", 0),
    ],
)
def test_choices(text_of, chars, minutes, given, setting, expected):
    text_of(chars)
    assert attrgetter(setting)(choice(minutes, given.split())) == expected


@pytest.mark.parametrize(("vocabulary", "is_told"), [(70, True), (1, False)])
def test_who_gives_a_short_text_that_may_have_words_is_told_what_to_expect(text_of, vocabulary, is_told):
    text_of(10_000, vocabulary)
    reasons = suggest(Request("text", 1, {})).reasons
    assert ("expect words" in reasons["text"]) == is_told
    assert "expect" not in reasons["choice"]


@pytest.mark.parametrize(
    ("chars", "minutes", "least", "most"),
    [
        (60_000, 0.5, 8, 12),
        (200_000, 0.4, 4, 10),
        (60_000, 1 / 6, 3, 6),
        (200_000, 0.3, 6, 10),
        (1_000_000, 0.3, 0, 1),
        (200_000, 30, 15, 20),
    ],
)
def test_evaluations_are_as_many_as_the_time_allows(text_of, chars, minutes, least, most):
    """About ten where the text is read often, so that overfitting shows; none that cost a short run its updates."""
    text_of(chars)
    suggestion = suggest(Request("my.txt", minutes))
    every = suggestion.config.train.eval_every
    assert least <= (suggestion.updates // every if every else 0) <= most


def test_as_many_members_as_half_of_the_free_memory_holds(text_of, of_machine):
    text_of(300_000)
    given = ["model.cell.kind=lstm", "model.cell.hidden=256", "model.layers=1", "train.batch_size=16"]
    config = choice(240, given)
    for members in (1, 2, 4):
        model = config.model.model_copy(update={"members": members})
        of_machine(free_bytes=2 * least_bytes(config.model_copy(update={"model": model}), 70, MACHINE))
        assert choice(240, given).model.members == members
    of_machine(free_bytes=0)
    with pytest.raises(DeviceError):
        choice(240, given)


@pytest.mark.parametrize(
    ("chars", "minutes", "factor"),
    [(500, 1 / 6, 30), (500, 480, 1e-3), (300_000, 240, 1), (10**9, 1 / 6, 30), (10**9, 480, 1e-3)],
)
def test_from_ten_seconds_to_eight_hours_and_500_characters_to_a_gigabyte(speed, text_of, chars, minutes, factor):
    """Every choice is a valid config that makes updates within the time, fits into memory and can be scored."""
    speed.factor = factor
    text_of(chars)
    suggestion = suggest(Request("my.txt", minutes))
    train, data = suggestion.config.train, suggestion.config.data
    assert suggestion.updates * speed.update_s(suggestion.config, 70) < 60 * minutes
    valid = int(chars * data.split[1])
    assert sum(data.split) == pytest.approx(1)
    assert train.bptt < valid <= min(0.21 * chars, 300_000)
    assert train.batch_size * (train.bptt + 1) < chars * data.split[0]
    assert 1e-4 < suggestion.config.optimizer.lr < 5e-2
    assert train.eval_every <= suggestion.updates
    assert train.patience == 0 or train.patience == suggestion.updates // train.eval_every // 2 >= 5


def test_a_section_gives_the_options_that_are_in_it_and_all_if_it_may_change_its_kind():
    given = read_settings(["train={batch_size: 4, ema: 0.5}", "model={cell: {kind: gru}}"])
    request = Request("my.txt", 1, given)
    taken = ("train.batch_size", "train.ema", "model.cell.kind", "model.cell.hidden")
    left = ("train.bptt", "train.eval_every", "model.layers", "data.split")
    assert [request.gives(option) for option in (*taken, *left)] == [True] * 4 + [False] * 4


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        (["model.cell.gate_bias=-3", "train.reset_state=0.1"], {("rhn", 1)}),
        (["model.layers=3", "model.dropout=0.3"], {("lstm", 3), ("rhn", 3)}),
        (["model.cell.layer_norm=true", "model.cell.hidden=100"], {("lstm", 1), ("lstm", 2)}),
        (["model.layers=1"], {("lstm", 1), ("rhn", 1)}),
    ],
)
def test_options_choose_the_kinds_that_have_them(speed, given, kinds):
    choice(given=given)
    assert {(measured.model.cell.kind, measured.model.layers) for measured in speed.measured} == kinds
    assert not any(measured.model.residual for measured in speed.measured if measured.model.layers == 1)


def test_without_kernels_a_plain_lstm_is_chosen_where_it_is_four_times_as_fast(speed, of_machine):
    of_machine(has_kernels=False)
    speed.without_kernels = 4
    model = choice(0.5).model
    assert (model.cell.kind, model.layers, model.cell.layer_norm) == ("lstm", 1, False)
    assert choice(0.5, ["model.cell.kind=rhn"]).model.cell.kind == "rhn"


def test_another_optimizer_has_its_own_rate():
    rates = [choice(given=[f"optimizer.name={name}"]).optimizer.lr for name in ("adamw", "sgd", "rmsprop")]
    assert rates == pytest.approx([rates[0], 25 * rates[0], rates[0] / 3], rel=0.1)


def test_a_slow_moment_of_the_machine_does_not_decide(speed, monkeypatch):
    steady, measure = choice().model, speed_module.measure
    slow_places = range(len(speed.measured))
    for slow in slow_places:
        factors = (4 if number == slow else 1 for number in itertools.count())
        monkeypatch.setattr(speed_module, "measure", lambda *args, factors=factors: next(factors) * measure(*args))
        assert choice().model == steady


def test_memory_bounds_the_model(speed):
    assert choice(5).model.cell.hidden >= 192
    speed.largest = 150
    assert choice(5).model.cell.hidden <= 150
    speed.largest = 0
    with pytest.raises(CharlmError):
        choice(5)


def test_processes_share_the_batch(speed):
    group = ProcessGroup()
    group.size = 3
    config = choice(group=group)
    assert config.train.batch_size % 3 == 0
    assert {measured.train.batch_size for measured in speed.measured} == {config.train.batch_size}


def test_trained_weights_get_the_rate_that_their_knowledge_of_the_text_allows(
    write, trained_run, tmp_path, monkeypatch
):
    """Much lower on their own text, whose split stays; that of random weights on a text unlike it."""
    monkeypatch.setattr("charlm.choice.suggest.CountedSources", CountedSources)  # the files, after all
    longer = {"train.max_steps": 200, "train.eval_every": 0, "train.sample_every": 0, "optimizer.lr": 0.02}
    start_run(load_config(trained_run / "config.yaml", longer), tmp_path / "run")
    initial = read_checkpoint(find_checkpoint(tmp_path / "run"))
    own = initial.config.data.source
    other = str(write("other.txt", words_text(20_000)[::-1]))
    taken = merged(settings_of_run(initial.config), {"train.max_steps": 2})
    rates = {}
    for source in (own, other):
        for start in (initial, None):
            config = suggest(Request(source, 1, taken, start)).config
            rates[source, start is None] = config.optimizer.lr
            assert (config.data.split == initial.config.data.split) == (source == own and start is not None)
    assert rates[other, False] > 0.5 * rates[other, True]
    assert rates[own, False] < 0.5 * rates[own, True]


# What the choice rests on: the rule for models, texts and times, and the speed of the machine


def candidate(parameters=10**6, *, updates=1000, batch_size=16, train_chars=10**6, family=USUAL[0], hidden=None):
    request = Request("x", 1)
    settings = request.settings(family, hidden or family.hidden[0], batch_size, 64)
    return Candidate(family, settings, request.config(settings), parameters, train_chars=train_chars, updates=updates)


def nats(*parameters, **options):
    return relative_nats(candidate(*parameters, **options))


RHN = USUAL[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"updates": 20}, 3.6e-2),  # a column's own rate, and that of the nearest one
        ({"updates": 250}, 3.6e-2),
        ({"updates": 4000}, 1.8e-2),
        ({"updates": 632_000}, 9e-3),  # between two columns
        ({"hidden": 512}, 9e-3),
        ({"family": USUAL[2], "hidden": 768, "updates": 500}, 8.5e-3),
        ({"batch_size": 4}, 9e-3),
        ({"family": RHN, "batch_size": 256}, 1.6e-2),
        ({"batch_size": 64}, 2.4e-2),
        ({"batch_size": 64, "hidden": 512, "updates": 250}, 3.6e-2),
    ],
)
def test_the_learning_rate_is_that_of_a_table_for_the_units_and_the_batch(options, expected):
    settings = all_settings(replace(candidate(**options), update_s=0.01), 1, 0.1, 1.0)
    assert settings["optimizer"]["lr"] == pytest.approx(expected, rel=0.01)


def test_a_surplus_of_parameters_and_repetitions_gain_little():
    def gain(train_chars):
        return nats(10**6, updates=5000, train_chars=train_chars) - nats(10**7, updates=5000, train_chars=train_chars)

    assert gain(10**8) > 0.05
    assert 0 <= gain(10**5) < 1e-4
    passes = [nats(updates=100 * n, train_chars=100 * 1024) for n in (1, 2, 4, 16, 64)]
    gains = [before - after for before, after in itertools.pairwise(passes)]
    assert all(gain > 0 for gain in gains)
    assert gains[-1] < gains[0] / 10


def test_of_equals_the_largest_of_those_that_the_text_needs_and_the_rule_was_fitted_to():
    """Larger ones must promise more than what counts as equal."""

    def parameters(train_chars):
        sizes = (10**6, 2_200_000, 8 * 10**6, 10**8)
        return best([candidate(size, updates=5000, train_chars=train_chars) for size in sizes]).parameters

    assert [parameters(chars) for chars in (10**5, 5 * 10**5, 10**9)] == [10**6, 2_200_000, 10**8]


def test_time_for_many_passes_goes_to_members(text_of):
    """Each is of the size that the text needs, and makes passes enough."""
    text_of(100_000)
    suggestion = suggest(Request("my.txt", 5))
    model, train = suggestion.config.model, suggestion.config.train
    assert model.members > 1
    assert 2 < count_parameters(model, 70) / model.members / 90_000 < 8
    assert suggestion.updates * train.batch_size * train.bptt > 15 * 90_000


def test_a_wide_model_needs_more_updates_and_no_model_is_far_larger_than_the_text():
    assert not is_promising(candidate(10**8, train_chars=10**6))
    for hidden, least in ((320, 2000), (640, 4000)):
        found = [is_promising(candidate(updates=updates, family=RHN, hidden=hidden)) for updates in (least - 1, least)]
        assert found == [False, True]


@pytest.mark.parametrize("update_ms", [2, 30, 400])
def test_the_measured_speed_is_what_a_run_reaches(monkeypatch, update_ms):
    """The first updates take long, as what they do is recorded; later ones differ a little, and a few are late."""
    now_s, number = 0.0, itertools.count()
    later_ms = [update_ms * (1 + 0.03 * (n % 2)) * (2 if n % 50 == 10 else 1) for n in range(1000)]

    def update():
        nonlocal now_s
        n = next(number)
        now_s += (5 * update_ms + 20 if n < 4 else later_ms[n]) / 1000

    machine: Any = SimpleNamespace(group=ONE_PROCESS, device=torch.device("cpu"))
    monkeypatch.setattr(speed_module, "Trainer", lambda *_: SimpleNamespace(update=update, **vars(machine)))
    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    corpus = Corpus(Vocabulary("char", "ab"), {"train": np.zeros(5000, np.uint8)}, sha256="", size_bytes=5000, files=1)
    measured_s = MEASURE(parse_config({}, "test"), corpus, machine, 0.05)
    assert measured_s == pytest.approx(sum(later_ms) / 1e6, rel=0.05)


def test_what_is_not_measured_is_on_lines_between_what_is():
    """Below the smallest a tenth of its time is overhead; beyond the largest, time is in proportion."""
    measured = {60_000: 12e-3, 20_000: 4e-3, 100_000: 16e-3}
    found = [update_s(parameters, measured) for parameters in (10_000, 20_000, 30_000, 80_000, 200_000)]
    assert found == pytest.approx([2.2e-3, 4e-3, 6e-3, 14e-3, 32e-3])
    assert [update_s(n, {20_000: 4e-3}) for n in (10_000, 20_000, 40_000)] == pytest.approx([2.2e-3, 4e-3, 8e-3])
