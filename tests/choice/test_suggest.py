"""Settings for a text, a time and a machine: valid, sensible, and what the user asked for."""

import itertools
import math
import time
from dataclasses import replace

import pytest
import torch

from charlm.choice import speed
from charlm.choice.families import USUAL, Request
from charlm.choice.suggest import suggest
from charlm.config import load_config
from charlm.config.commented import commented_yaml
from charlm.data.corpus import load_configured_corpus
from charlm.errors import CharlmError, DataError
from charlm.model import count_parameters
from charlm.system.process_group import ProcessGroup
from tests.text import words_text


@pytest.mark.usefixtures("machine")
def test_more_time_means_a_larger_model_and_more_dropout(text_file):
    short, long = (suggest(Request(text_file, minutes)).config for minutes in (0.2, 30))
    assert long.model.cell.hidden * long.model.layers > short.model.cell.hidden * short.model.layers
    assert long.model.dropout.output > short.model.dropout.output
    assert (short.train.max_minutes, long.train.max_minutes) == (0.2, 30)


def test_a_slower_machine_means_a_smaller_model(machine, text_file):
    def model(factor):
        machine(factor)
        return suggest(Request(text_file, 1)).config.model

    fast = model(1)
    from charlm.system.cache import cache_folder

    for file in cache_folder("speed").iterdir():
        file.unlink()
    slow = model(30)
    assert slow.cell.hidden * slow.layers < fast.cell.hidden * fast.layers


@pytest.mark.usefixtures("machine")
def test_of_equals_the_largest_of_those_that_were_measured(text_of, monkeypatch):
    """Larger ones must promise more than what counts as equal."""
    text_of(1_000_000)

    def promise(nats_per_parameter):
        monkeypatch.setattr(
            "charlm.choice.suggest.relative_nats",
            lambda candidate, reading: 1 + nats_per_parameter * candidate.parameters,
        )
        found = suggest(Request("my.txt", 30)).config
        return count_parameters(found.model, 70)

    assert 2_000_000 < promise(1e-10) < 2_500_000
    assert 2_000_000 < promise(-1e-11) < 2_500_000
    assert promise(-1e-8) > 20_000_000


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("least_updates", "hidden"), [(2000, 448), (1400, 640)])
def test_a_wide_model_needs_more_updates(text_of, monkeypatch, least_updates, hidden):
    """The RHN of 640 units makes 3,000 in half an hour, and has half the learning rate of narrow ones."""
    text_of(1_000_000)
    families = (USUAL[0], replace(USUAL[1], least_updates=least_updates))
    monkeypatch.setattr("charlm.choice.suggest.USUAL", families)
    monkeypatch.setattr(
        "charlm.choice.suggest.relative_nats",
        lambda candidate, reading: 2 - (candidate.family.kind == "rhn") - 1e-8 * candidate.parameters,
    )
    assert suggest(Request("my.txt", 30)).config.model.cell.hidden == hidden


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("chars", [300_000, 3_000_000, 30_000_000])
def test_a_run_of_few_passes_ends_with_a_pass(text_of, chars):
    """Nine tenths of what it reads are whole passes over pieces of the text."""
    text_of(chars)
    found = suggest(Request("my.txt", 1))
    updates = int(found.reasons["plan"].split()[1].replace(",", ""))
    train = found.config.train
    passes = updates * train.batch_size * train.bptt / (chars * found.config.data.split[0])
    if passes < 3:
        assert 0.9 * passes / train.read_share == pytest.approx(math.ceil(0.9 * passes), rel=0.01)
        assert "train.read_share" in found.comments
    else:
        assert train.read_share == 1
    lines = suggest(Request("my.txt", 1, ["data.unit=line"])).config
    assert lines.train.read_share == 1  # they come in a random order


@pytest.mark.parametrize(
    ("chars", "minutes", "factor"),
    [
        *itertools.product((500, 20_000, 10**9), (1 / 6, 480), (1e-3, 30)),
        (3_000, 1, 1),
        (1_000_000, 5, 1),
        (50_000, 60, 0.1),
    ],
)
def test_from_ten_seconds_to_eight_hours_and_500_characters_to_a_gigabyte(machine, text_of, chars, minutes, factor):
    """Every choice is a valid config that makes updates, fits into memory and can be scored."""
    machine(factor)
    text_of(chars)
    found = suggest(Request("my.txt", minutes))
    train, data = found.config.train, found.config.data
    valid = int(chars * data.split[1])
    assert sum(data.split) == pytest.approx(1)
    assert train.bptt < valid <= 0.21 * chars
    assert valid <= 300_000
    assert train.batch_size * (train.bptt + 1) < chars * data.split[0]
    assert 1e-4 < found.config.optimizer.lr < 5e-2
    updates = int(found.reasons["plan"].split()[1].replace(",", ""))
    assert updates >= 30 or "few" in found.reasons
    assert train.eval_every <= updates
    assert train.patience == 0 or train.patience == updates // train.eval_every // 2 >= 5
    assert found.config.optimizer.schedule.warmup_steps >= 1
    if chars in (500, 3_000, 10**9):
        assert "outside of what the rule was fitted to" in found.reasons["outside"]
    assert ("small" in found.reasons) == (chars < 50_000)


@pytest.mark.usefixtures("machine")
def test_the_users_options_stay(text_file):
    given = ["model.cell.kind=gru", "train.batch_size=8", "optimizer.lr=0.001", "seed=7", "data.split=[0.5,0.25,0.25]"]
    config = suggest(Request(text_file, 1, given)).config
    assert config.model.cell.kind == "gru"
    assert (config.train.batch_size, config.optimizer.lr, config.seed) == (8, 0.001, 7)
    assert config.data.split == (0.5, 0.25, 0.25)


@pytest.mark.usefixtures("machine")
def test_the_last_loss_is_told_and_promises_less(text_file):
    sum_, last = (suggest(Request(text_file, 1, [f"train.loss={loss}"])) for loss in ("sum", "last"))
    assert float(last.reasons["expect"].split()[1]) > 1.2 * float(sum_.reasons["expect"].split()[1])
    assert last.reasons["outside"].startswith("train.loss: last is far outside of what the rule was fitted to")
    assert "the loss is a sum over the window" in commented_yaml(sum_.config, "", sum_.comments)
    as_yaml = commented_yaml(last.config, "", last.comments)
    assert "loss: last" in as_yaml
    assert "of 64 characters read, only the last is learned" in as_yaml
    assert "sum" not in as_yaml


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("given", "kind"),
    [("model.cell.depth=6", "rhn"), ("model.cell.layer_norm=true", "lstm"), ("model.cell.kind=slstm", "slstm")],
)
def test_an_option_of_one_kind_chooses_the_kind(text_file, given, kind):
    assert suggest(Request(text_file, 1, [given])).config.model.cell.kind == kind


@pytest.mark.usefixtures("no_kernels")
def test_without_kernels_a_plain_lstm_is_chosen_where_it_is_four_times_as_fast(text_file, monkeypatch):
    def measure(config, *_):
        options = config.model
        plain = options.cell.kind == "lstm" and options.layers == 1 and not options.cell.layer_norm
        return 1e-7 * options.layers * options.cell.hidden**2 * (1 if plain else 4)

    monkeypatch.setattr("charlm.choice.speed.measure", measure)
    model = suggest(Request(text_file, 0.5)).config.model
    assert (model.cell.kind, model.layers, model.cell.layer_norm) == ("lstm", 1, False)
    assert suggest(Request(text_file, 0.5, ["model.cell.kind=rhn"])).config.model.cell.kind == "rhn"


@pytest.mark.usefixtures("machine")
def test_a_size_that_is_given_is_the_only_one_measured(machine, text_file):
    found = suggest(Request(text_file, 1, ["model.cell.hidden=100"]))
    assert found.config.model.cell.hidden == 100
    assert {(measured.model.cell.kind, measured.model.layers) for measured in machine.measured} == {
        (family.kind, family.layers) for family in USUAL
    }
    assert {measured.model.cell.hidden for measured in machine.measured} == {100}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("given", "passes"), [("data.split=[0.9,0.1,0]", 1), ("data.split=[0.45,0.1,0.45]", 2), ("data.split=[1,0,0]", 0.9)]
)
def test_the_plan_knows_the_users_split(text_file, given, passes):
    base = suggest(Request(text_file, 5, ["data.split=[0.9,0.1,0]", "train.max_steps=500", "model.cell.hidden=96"]))
    found = suggest(Request(text_file, 5, [given, "train.max_steps=500", "model.cell.hidden=96"]))

    def epochs(suggestion):
        return float(suggestion.reasons["plan"].split(", ")[-1].split()[0])

    assert epochs(found) == pytest.approx(passes * epochs(base), rel=0.05)
    has_valid = found.config.data.split[1] > 0
    assert (found.config.train.eval_every > 0) == has_valid


@pytest.mark.usefixtures("machine")
def test_a_text_for_validation_leaves_the_whole_text_to_train_on(text_file, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(words_text(30_000, seed=3))
    found = suggest(Request(text_file, 5, [f"data.valid_source={other}"]))
    corpus = load_configured_corpus(found.config.data)
    assert len(corpus.splits["train"]) == 120_000
    assert found.config.train.eval_every > 0


def test_no_model_can_be_measured(machine, text_file, monkeypatch):
    monkeypatch.setattr("charlm.choice.speed.measure", lambda *_: None)
    with pytest.raises(CharlmError, match="memory: not even a small model could be trained"):
        suggest(Request(text_file, 1))


@pytest.mark.usefixtures("machine")
def test_a_vocabulary_of_fifty_thousand(text_of):
    text_of(1_000_000, vocabulary=50_000)
    assert suggest(Request("my.txt", 1)).config.train.max_minutes == 1


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("name", "rate"), [("sgd", 25), ("adagrad", 5), ("rmsprop", 1 / 3), ("adam", 1), ("muon", 1)])
def test_another_optimizer_has_its_own_numbers(text_file, name, rate):
    usual = suggest(Request(text_file, 1)).config.optimizer
    optimizer = suggest(Request(text_file, 1, [f"optimizer.name={name}"])).config.optimizer
    assert optimizer.name == name
    assert optimizer.weight_decay == (0.1 if name == "muon" else 0)
    assert optimizer.lr == pytest.approx(rate * usual.lr, rel=0.1)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    "given",
    [
        ["train.batch_size=1024", "train.bptt=256"],
        ["train.bptt_start=32", "model.cell.kind=gru"],
        ["optimizer.schedule.final_fraction=0.1"],
        ["model.layers=3", "model.dropout=0.3"],
        ["data.level=byte"],
    ],
)
def test_options_that_are_not_for_all_candidates(text_file, given):
    config = suggest(Request(text_file, 1, given)).config
    assert config.optimizer.lr < 5e-2
    if "model.cell.kind=gru" in given:
        assert (config.model.layers, config.model.cell.kind) == (1, "gru")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("text", ["a" * 5000, "one line without an end " * 300, "\n" * 2000])
def test_odd_texts(tmp_path, text):
    (tmp_path / "odd.txt").write_text(text)
    config = suggest(Request(str(tmp_path / "odd.txt"), 1)).config
    assert 0 < config.data.split[1] <= 0.2


@pytest.mark.usefixtures("machine")
def test_a_gpu_gets_larger_batches_and_a_bounded_rate(text_of, monkeypatch):
    text_of(10_000_000)
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr("charlm.choice.suggest.resolve_device", lambda *_: cuda)
    monkeypatch.setattr("charlm.choice.suggest.available_bytes", lambda device: 10**11)
    monkeypatch.setattr("charlm.choice.suggest.choose_precision", lambda *_: ("bf16", ""))
    monkeypatch.setattr("charlm.choice.suggest.describe_device", lambda device: "a GPU")
    monkeypatch.setattr("charlm.choice.speed._Store", NoStore)
    monkeypatch.setattr("charlm.choice.speed.free_memory", lambda: None)
    config = suggest(Request("my.txt", 10)).config
    assert config.train.batch_size in (64, 256)
    assert config.optimizer.lr <= 2.4e-2


class NoStore:
    def __init__(self, *_):
        pass

    def read(self):
        return None

    def write(self, seconds):
        pass


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("model.cell.dept=6", "model.cell.rhn.dept|model.cell.dept"),
        ("train.batch_size=0", "train.batch_size"),
        ("nonsense", "found no KEY=VALUE"),
        ("model.cell.kind=foo", "model.cell.kind"),
        ("device=cuda:99", "device: found cuda"),
    ],
)
def test_faults(text_file, given, fault):
    with pytest.raises(CharlmError, match=fault):
        suggest(Request(text_file, 1, [given]))


@pytest.mark.usefixtures("machine")
def test_a_text_that_is_too_short(tmp_path):
    (tmp_path / "short.txt").write_text("to be or not to be\n" * 3)
    with pytest.raises(DataError, match=r"short.txt: found 57 characters; allowed: 500 or more"):
        suggest(Request(str(tmp_path / "short.txt"), 1))


@pytest.mark.parametrize("faster", [64, 192])
def test_a_size_that_is_faster_than_its_neighbors_is_found(machine, monkeypatch, text_file, faster):
    measure = speed.measure

    def with_a_fast_size(config, *rest):
        return measure(config, *rest) / (1.5 if config.model.cell.hidden == faster else 1)

    monkeypatch.setattr(speed, "measure", with_a_fast_size)
    machine(0.5)
    found = suggest(Request(text_file, 1 / 6)).config.model.cell.hidden
    assert (found == faster) == (faster == 192)


def test_speeds_that_were_measured_beside_other_load_do_not_last(machine, monkeypatch, text_file, tmp_path):
    machine(4.0)
    slow = suggest(Request(text_file, 1)).config.model
    machine(1.0)
    again = suggest(Request(text_file, 1)).config.model
    monkeypatch.setenv("CHARLM_CACHE", str(tmp_path / "empty"))
    assert again == suggest(Request(text_file, 1)).config.model
    assert again.cell.hidden > slow.cell.hidden


@pytest.mark.parametrize("chars", [6_000, 120_000])
@pytest.mark.parametrize("minutes", [0.5, 1, 5])
def test_what_is_chosen_was_measured(machine, tmp_path, chars, minutes):
    (tmp_path / "my.txt").write_text(words_text(chars))
    found = suggest(Request(str(tmp_path / "my.txt"), minutes)).config.model
    assert (found.cell.kind, found.layers, found.cell.hidden) in {
        (measured.model.cell.kind, measured.model.layers, measured.model.cell.hidden) for measured in machine.measured
    }


def test_a_model_too_large_to_be_measured_is_not_chosen(machine, monkeypatch, text_file, tmp_path):
    measure = speed.measure
    assert suggest(Request(text_file, 5)).config.model.cell.hidden >= 256
    monkeypatch.setattr(speed, "measure", lambda c, *rest: None if c.model.cell.hidden >= 256 else measure(c, *rest))
    monkeypatch.setenv("CHARLM_CACHE", str(tmp_path / "empty"))
    assert suggest(Request(text_file, 5)).config.model.cell.hidden < 256


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("processes", [3, 32])
def test_processes_share_the_batch(machine, text_file, processes):
    group = ProcessGroup()
    group.size = processes
    config = suggest(Request(text_file, 1), group).config
    assert config.train.batch_size % processes == 0
    assert {measured.train.batch_size for measured in machine.measured} == {config.train.batch_size}


@pytest.mark.usefixtures("machine")
def test_memory_bounds_the_model(text_file, monkeypatch):
    free = suggest(Request(text_file, 480)).config.model
    monkeypatch.setattr("charlm.choice.suggest.available_bytes", lambda device: 60_000_000)
    tight = suggest(Request(text_file, 480)).config.model
    assert tight.cell.hidden * tight.layers < free.cell.hidden * free.layers
    monkeypatch.setattr("charlm.choice.suggest.available_bytes", lambda device: 1_000_000)
    with pytest.raises(CharlmError, match="memory"):
        suggest(Request(text_file, 1))


@pytest.mark.usefixtures("machine")
def test_as_yaml_it_is_the_same_config(text_file, tmp_path):
    found = suggest(Request(text_file, 2, ["seed=3"]))
    file = tmp_path / "mine.yaml"
    file.write_text(commented_yaml(found.config, "settings", found.comments))
    assert load_config(file) == found.config


@pytest.mark.usefixtures("machine")
def test_time_that_has_passed_is_not_planned(text_file, monkeypatch):
    monkeypatch.setattr("charlm.choice.suggest.compiling_s", lambda since_s: 0.0)
    one = ["model.cell={kind: lstm, hidden: 384}", "model.layers=1"]

    def updates(began_s):
        plan = suggest(Request(text_file, 1, one), began_s=began_s).reasons["plan"]
        return int(plan.removeprefix("about ").partition(" ")[0].replace(",", ""))

    late, hardly = updates(time.perf_counter() - 20), updates(time.perf_counter() - 1000)
    assert late == pytest.approx(updates(None) * (60 - 20 - 1.5) / 57, rel=0.05)
    assert hardly == pytest.approx(updates(None) * 30 / 57, rel=0.02)  # half of the minutes in any case
