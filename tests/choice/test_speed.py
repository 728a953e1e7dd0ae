"""The speed of this machine: measured, interpolated, kept."""

import math
import time

import pytest
import torch

from charlm.choice import speed
from charlm.choice.families import USUAL, Candidate, Request
from charlm.model import count_parameters

CPU = torch.device("cpu")


def family_of(index=0, source="x"):
    family, request = USUAL[index], Request(source, 1)
    found = []
    for hidden in family.hidden:
        settings = request.settings(family, hidden, 16, 64)
        config = request.config({**settings, "precision": "fp32", "threads": 1})
        found.append(Candidate(family, settings, config, count_parameters(config.model, 70)))
    return found


def meter(*families, vocabulary=70, budget_s=60.0):
    return speed.Speedometer(families, CPU, vocabulary, budget_s)


def test_sizes_that_are_not_measured_follow_a_power_of_the_parameters(machine, monkeypatch):
    monkeypatch.setattr(speed, "measure", lambda config, *_: 1e-9 * count_parameters(config.model, 70) ** 1.1)
    family = family_of()
    one = meter(family)
    assert [one.rounds(0, index) for index in range(len(family))] == [0, 1, 0, 0, 0, 0]
    [times] = one.update_s()
    assert times[2:] == pytest.approx([times[1] * each.parameters / family[1].parameters for each in family[2:]])
    assert one.improve(0, 5)
    [times] = one.update_s()
    assert times == pytest.approx([1e-9 * candidate.parameters**1.1 for candidate in family])


def test_each_part_between_two_measured_sizes_has_a_power_of_its_own(machine, monkeypatch):
    def seconds(parameters):
        return 1e-8 * max(parameters, math.sqrt(300_000 * parameters))

    monkeypatch.setattr(speed, "measure", lambda config, *_: seconds(count_parameters(config.model, 70)))
    family = family_of()
    one = meter(family)
    for index in (5, 3):
        assert one.improve(0, index)
    [times] = one.update_s()
    for index in (1, 3, 5):
        assert times[index] == seconds(family[index].parameters)
    for index in (0, 4):  # a root, and in proportion
        assert times[index] == pytest.approx(seconds(family[index].parameters), rel=0.1)
    assert times[1] < times[2] < times[3]


def test_instead_of_a_size_with_long_updates_the_largest_other_is_measured(machine, monkeypatch):
    monkeypatch.setattr(speed, "measure", lambda config, *_: 4e-7 * count_parameters(config.model, 70))
    one = meter(family_of())
    assert one.improve(0, 5)
    assert one.improve(0, 5)
    assert [one.rounds(0, index) for index in range(6)] == [0, 1, 0, 0, 2, 0]
    assert not one.improve(0, 5)


def test_a_size_that_does_not_fit_into_memory_is_left_out_with_all_larger_ones(machine, monkeypatch):
    asked = []

    def measured(config, *_):
        asked.append(config.model.cell.hidden)
        return None if config.model.cell.hidden >= 256 else 1e-9 * count_parameters(config.model, 70)

    monkeypatch.setattr(speed, "measure", measured)
    family = family_of()
    one = meter(family)
    for index in (4, 3):
        assert one.improve(0, index)
        assert len(one.update_s()[0]) == index
        assert not one.improve(0, index)
    assert asked == [128, 384, 256]
    monkeypatch.setattr(speed, "measure", lambda config, *_: 1.0 if config.model.cell.hidden == 160 else None)
    assert [len(times) for times in meter(family_of(1), family_of(2)).update_s()] == [1, 0]


def test_the_faster_of_two_measurements_counts_and_is_kept(machine):
    one = meter(family_of())
    [alone] = one.update_s()
    for factor, expected in ((2.0, alone[1]), (0.5, alone[1])):
        machine(factor)
        assert one.improve(0, 1) == (factor == 2.0)
        assert one.update_s()[0][1] == expected
    again = meter(family_of())
    assert again.update_s()[0][1] == alone[1]
    assert not again.improve(0, 1)
    machine(2.0)
    other = meter(family_of(), vocabulary=300)
    [slow] = other.update_s()
    machine(1.0)
    assert other.improve(0, 1)
    assert other.update_s()[0][1] < slow[1]


def test_the_second_time_nothing_is_measured(machine):
    families = [family_of(0), family_of(1)]
    first = meter(*families)
    assert first.improve(1, 3)
    assert len(machine.measured) == 3
    assert meter(*families, vocabulary=100).update_s() == first.update_s()
    assert len(machine.measured) == 3
    meter(*families, vocabulary=300)
    assert len(machine.measured) == 5


def test_what_was_measured_beside_other_load_is_forgotten_once_the_machine_is_faster(machine):
    families = [family_of(0), family_of(1)]
    machine(2.0)
    slow = meter(*families).update_s()
    machine(1.0)
    again = meter(*families)
    assert again.renew(0, 1)
    assert not again.renew(0, 1)
    assert again.update_s() == [pytest.approx([seconds / 2 for seconds in times]) for times in slow]
    assert [again.rounds(0, 1), again.rounds(1, 1)] == [1, 0]
    measured = len(machine.measured)
    assert meter(*families).update_s() == again.update_s()  # the first family is in the cache, the other not
    assert len(machine.measured) == measured + 1


def test_a_size_from_the_cache_that_no_longer_fits_into_memory_is_left_out(machine, monkeypatch):
    meter(family_of())
    monkeypatch.setattr(speed, "measure", lambda *_: None)
    again = meter(family_of())
    assert again.renew(0, 1)
    assert len(again.update_s()[0]) == 1


def test_a_guess_gives_way_to_a_measurement(machine):
    families = [family_of(0), family_of(1)]
    machine(2.0)
    slow = meter(*families).update_s()
    machine(1.0)
    again = meter(*families)
    assert again.renew(0, 1)
    machine(1.5)
    assert again.improve(1, 1)
    assert again.update_s()[1][1] == pytest.approx(slow[1][1] * 0.75)


@pytest.mark.parametrize(("factor", "budget_s"), [(0.9, 60.0), (1.0, 60.0), (3.0, 60.0), (0.5, 0.0)])
def test_the_cache_holds_unless_the_machine_is_found_to_be_much_faster(machine, factor, budget_s):
    families = [family_of(0), family_of(1)]
    before = meter(*families).update_s()
    machine(factor)
    again = meter(*families, budget_s=budget_s)
    assert not again.renew(0, 1)
    assert again.update_s()[1] == before[1]
    assert len(machine.measured) == (3 if budget_s else 2)


def test_without_time_the_first_family_alone_is_measured(machine):
    one = meter(family_of(0), family_of(1), budget_s=0)
    first, second = one.update_s()
    assert not one.improve(0, 2)
    assert len(machine.measured) == 1
    assert len(first) == len(USUAL[0].hidden)
    assert second == []


@pytest.mark.parametrize(
    "content", ['{"not": "seconds"}', "[" * 100_000, "1e-300", "1", "nan", "\xff", "link", "changed"]
)
def test_a_damaged_cache_is_measured_again(machine, tmp_path, content):
    meter(family_of())
    (file,) = (tmp_path / "cache/speed").iterdir()
    assert file.suffix == ".json"  # as in older versions, so that their files are replaced
    written = file.read_text()
    if content == "link":
        file.rename(tmp_path / "moved")
        file.symlink_to(tmp_path / "moved")
    else:
        file.write_text(f"1{written}" if content == "changed" else content, encoding="latin-1")
    meter(family_of())
    assert len(machine.measured) == 2
    assert (file.read_text(), file.is_symlink()) == (written, False)
    meter(family_of())
    assert len(machine.measured) == 2


@pytest.mark.parametrize("factor", [1e-300, 1e9])
def test_a_speed_that_cannot_be_is_not_taken_from_the_cache(machine, factor):
    machine(factor)
    for measured in (1, 2):
        meter(family_of())
        assert len(machine.measured) == measured


def test_a_cache_that_cannot_be_written_costs_only_time(machine, tmp_path, capsys):
    (tmp_path / "cache").write_text("a file")
    [times] = meter(family_of()).update_s()
    assert len(times) == len(USUAL[0].hidden)
    assert "speed cannot be kept" in capsys.readouterr().err


@pytest.mark.parametrize("index", range(len(USUAL)))
def test_measure(index):
    start_s = time.perf_counter()
    seconds = speed.measure(family_of(index)[0].config, CPU, 64, 0.1)
    assert seconds is not None
    assert 0 < seconds < time.perf_counter() - start_s


def test_a_model_that_does_not_fit_is_not_measured(monkeypatch):
    monkeypatch.setattr("charlm.training.memory.available_bytes", lambda device: 1000)
    assert speed.measure(family_of()[0].config, CPU, 64, 0.1) is None
