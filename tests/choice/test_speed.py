"""The speed of this machine: measured, estimated, kept in the cache."""

import os
import time
from dataclasses import replace

import pytest

import charlm.choice.speed
from charlm.choice.families import USUAL, Request
from charlm.choice.rule import Candidate
from charlm.choice.speed import estimates, update_seconds
from charlm.config import parse_config
from charlm.model import count_parameters
from charlm.training.machine import choose_machine


@pytest.fixture(scope="module")
def machine():
    return choose_machine(parse_config({"device": "cpu", "threads": 1, "precision": "fp32"}, "test"))


def config_of(family, hidden):
    request = Request("x", 1)
    return request.config(request.settings(family, hidden, 16, 64))


@pytest.fixture
def seconds(speed, machine):
    return lambda vocabulary=70: update_seconds(config_of(USUAL[0], 128), machine, vocabulary, 1.0)


def test_what_is_not_measured_follows_a_power_of_the_parameters():
    def measured(*indices):
        return estimates([replace(each, measured_s=exact[n] if n in indices else None) for n, each in family])

    configs = [config_of(USUAL[0], hidden) for hidden in USUAL[0].hidden]
    candidates = [Candidate(USUAL[0], {}, config, count_parameters(config.model, 70)) for config in configs]
    family = list(enumerate(candidates))
    exact = [1e-3 + 1.6e-7 * each.parameters for each in candidates]
    assert measured() == []
    one = measured(1)
    assert one[1:] == pytest.approx([exact[1] * each.parameters / candidates[1].parameters for each in candidates[1:]])
    assert measured(1, 3, 5) == pytest.approx(exact, rel=0.05)


def test_the_second_time_nothing_is_measured_within_a_day(speed, seconds, cache):
    assert seconds() == seconds(100)  # texts whose vocabularies are nearly as large share it
    assert len(speed.measured) == 1
    seconds(300)
    assert len(speed.measured) == 2
    for file in (cache / "speed").iterdir():
        os.utime(file, times=(time.time() - 90_000,) * 2)
    seconds()
    assert len(speed.measured) == 3


@pytest.mark.parametrize("content", ["[" * 1000, "1e-300", "1e9", "nan", "\xff", "0.1 and a checksum", "link"])
def test_a_damaged_cache_is_measured_again(speed, seconds, cache, content):
    seconds()
    (file,) = (cache / "speed").iterdir()
    written = file.read_text()
    if content == "link":
        file.symlink_to(file.rename(cache / "moved"))
    else:
        file.write_text(content, encoding="latin-1")
    for _ in range(2):
        seconds()
        assert len(speed.measured) == 2
        assert (file.read_text(), file.is_symlink()) == (written, False)


def test_a_cache_that_cannot_be_written_costs_only_time(seconds, cache, capsys):
    cache.write_text("a file")
    assert seconds() > 0
    assert "speed cannot be kept" in capsys.readouterr().err


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("family", USUAL)
def test_measure(machine, family):
    config, start_s = config_of(family, family.hidden[0]), time.perf_counter()
    seconds = charlm.choice.speed.measure(config, machine, 64, 0.05)
    assert 0 < seconds < time.perf_counter() - start_s
    assert charlm.choice.speed.measure(config, replace(machine, free_bytes=1000), 64, 0.05) is None
