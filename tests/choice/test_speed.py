"""The speed of this machine: measured, interpolated, kept."""

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


def test_two_sizes_are_measured_and_the_rest_follows_a_power_of_the_parameters(machine, monkeypatch):
    monkeypatch.setattr(speed, "measure", lambda config, *_: 1e-9 * count_parameters(config.model, 70) ** 1.1)
    family = family_of()
    [times] = speed.Speedometer(CPU, 70, budget_s=60).update_s([family])
    assert times == pytest.approx([1e-9 * candidate.parameters**1.1 for candidate in family])


def test_the_second_time_nothing_is_measured(machine):
    families = [family_of(0), family_of(1)]
    first = speed.Speedometer(CPU, 70, budget_s=60).update_s(families)
    assert len(machine.measured) == 4
    assert speed.Speedometer(CPU, 100, budget_s=60).update_s(families) == first
    assert len(machine.measured) == 4
    speed.Speedometer(CPU, 300, budget_s=60).update_s(families)
    assert len(machine.measured) == 8


def test_without_time_the_first_family_alone_is_measured(machine):
    first, second = speed.Speedometer(CPU, 70, budget_s=0).update_s([family_of(0), family_of(1)])
    assert len(machine.measured) == 1
    assert len(first) == len(USUAL[0].hidden)
    assert second == []


def test_a_damaged_cache_is_measured_again(machine, tmp_path):
    speed.Speedometer(CPU, 70, budget_s=60).update_s([family_of()])
    for file in (tmp_path / "cache/speed").iterdir():
        file.write_text('{"not": "seconds"}')
    speed.Speedometer(CPU, 70, budget_s=60).update_s([family_of()])
    assert len(machine.measured) == 4


def test_a_cache_that_cannot_be_written_costs_only_time(machine, tmp_path, capsys):
    (tmp_path / "cache").write_text("a file")
    [times] = speed.Speedometer(CPU, 70, budget_s=60).update_s([family_of()])
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
