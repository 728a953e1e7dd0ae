"""The speed of this machine: measured, estimated, kept in the cache."""

import os
import time
from dataclasses import replace

import pytest

import charlm.choice.speed
from charlm.choice.families import USUAL, Request
from charlm.choice.rule import Candidate
from charlm.choice.speed import Speeds
from charlm.config import parse_config
from charlm.model import count_parameters
from charlm.training.machine import choose_machine


@pytest.fixture(scope="module")
def machine():
    return choose_machine(parse_config({"device": "cpu", "threads": 1, "precision": "fp32"}, "test"))


def family_of(index=0):
    family, request = USUAL[index], Request("x", 1)
    candidates = []
    for hidden in family.hidden:
        settings = request.settings(family, hidden, 16, 64)
        config = request.config(settings)
        candidates.append(Candidate(family, settings, config, count_parameters(config.model, 70)))
    return candidates


@pytest.fixture
def speeds_of(machine):
    """Speeds of families, of which what is asked for was measured."""

    def build(*families, places=(), vocabulary=70, budget_s=60.0):
        speeds = Speeds(families, machine, vocabulary, budget_s)
        for place in [(at, 1) for at in range(len(families))] + list(places):
            if place := speeds.to_measure(*place):
                speeds.measure(*place)
        return speeds

    return build


def test_what_is_not_measured_follows_a_power_of_the_parameters(speed, speeds_of):
    family = family_of()
    exact = [1e-3 + 1.6e-7 * count_parameters(candidate.config.model, 128) for candidate in family]
    one = speeds_of(family).estimates(0)
    assert one[1] == pytest.approx(exact[1])
    assert one[2:] == pytest.approx([one[1] * each.parameters / family[1].parameters for each in family[2:]])
    three = speeds_of(family, places=[(0, 5), (0, 3)]).estimates(0)
    assert [c.model.cell.hidden for c in speed.measured] == [128, 512, 256]
    assert three == pytest.approx(exact, rel=0.05)


def test_instead_of_one_with_long_updates_the_largest_other_is_measured(speed, speeds_of):
    speed.factor = 2.0
    speeds_of(family_of(), places=[(0, 5), (0, 5)])
    assert [config.model.cell.hidden for config in speed.measured] == [128, 384]


def test_what_does_not_fit_into_memory_is_left_out_with_all_larger_ones(speed, speeds_of):
    speed.largest = 200
    speeds = speeds_of(family_of(), family_of(1), family_of(2), places=[(0, 4), (0, 3), (0, 2), (1, 0)])
    assert [len(speeds.estimates(at)) for at in range(3)] == [3, 1, 0]


def test_the_second_time_nothing_is_measured_within_a_day(speed, speeds_of, cache, monkeypatch):
    families = [family_of(0), family_of(1)]
    first = speeds_of(*families)
    assert len(speed.measured) == 2
    again = speeds_of(*families, vocabulary=100)
    assert [again.estimates(at) for at in (0, 1)] == [first.estimates(at) for at in (0, 1)]
    assert len(speed.measured) == 2
    speeds_of(*families, vocabulary=300)
    assert len(speed.measured) == 4
    for file in (cache / "speed").iterdir():
        os.utime(file, times=(time.time() - 90_000,) * 2)
    speeds_of(*families)
    assert len(speed.measured) == 6


@pytest.mark.parametrize("content", ["[" * 1000, "1e-300", "1e9", "nan", "\xff", "0.1 and a checksum", "link"])
def test_a_damaged_cache_is_measured_again(speed, speeds_of, cache, content):
    speeds_of(family_of())
    (file,) = (cache / "speed").iterdir()
    written = file.read_text()
    if content == "link":
        file.symlink_to(file.rename(cache / "moved"))
    else:
        file.write_text(content, encoding="latin-1")
    for _ in range(2):
        speeds_of(family_of())
        assert len(speed.measured) == 2
        assert (file.read_text(), file.is_symlink()) == (written, False)


def test_a_cache_that_cannot_be_written_costs_only_time(speed, speeds_of, cache, capsys):
    cache.write_text("a file")
    assert len(speeds_of(family_of()).estimates(0)) == len(USUAL[0].hidden)
    assert "speed cannot be kept" in capsys.readouterr().err


def test_without_time_only_the_first_family_is_measured(speed, speeds_of):
    speeds = speeds_of(family_of(0), family_of(1), places=[(0, 2)], budget_s=0)
    assert len(speed.measured) == 1
    assert (len(speeds.estimates(0)), speeds.estimates(1)) == (len(USUAL[0].hidden), [])


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("index", range(len(USUAL)))
def test_measure(machine, index):
    config, start_s = family_of(index)[0].config, time.perf_counter()
    seconds = charlm.choice.speed.measure(config, machine, 64, 0.05)
    assert 0 < seconds < time.perf_counter() - start_s
    assert charlm.choice.speed.measure(config, replace(machine, free_bytes=1000), 64, 0.05) is None
