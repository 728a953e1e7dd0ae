"""What the choice rests on: the rule for models, texts and times, and the speed of the machine."""

import itertools

import pytest

from charlm.choice.families import USUAL, Request
from charlm.choice.rule import Candidate, best, is_promising, relative_nats
from charlm.choice.speed import update_s


def candidate(parameters=10**6, *, updates=1000, batch_size=16, train_chars=10**6, family=USUAL[0], hidden=None):
    request = Request("x", 1)
    settings = request.settings(family, hidden or family.hidden[0], batch_size, 64)
    return Candidate(family, settings, request.config(settings), parameters, train_chars=train_chars, updates=updates)


def nats(*parameters, **options):
    return relative_nats(candidate(*parameters, **options))


RHN = USUAL[1]


def test_a_surplus_of_parameters_and_repetitions_gain_little():
    def gain(train_chars):
        return nats(10**6, updates=5000, train_chars=train_chars) - nats(10**7, updates=5000, train_chars=train_chars)

    assert gain(10**8) > 0.05
    assert 0 <= gain(10**5) < 1e-4
    passes = [nats(updates=100 * n, train_chars=100 * 1024) for n in (1, 2, 4, 16, 64)]
    gains = [before - after for before, after in itertools.pairwise(passes)]
    assert all(gain > 0 for gain in gains)
    assert gains[-1] < gains[0] / 10


def test_of_equals_the_largest_of_those_that_the_rule_was_fitted_to():
    """Larger ones must promise more than what counts as equal."""

    def parameters(train_chars):
        sizes = (10**6, 2_200_000, 8 * 10**6, 10**8)
        return best([candidate(size, updates=5000, train_chars=train_chars) for size in sizes]).parameters

    assert (parameters(10**5), parameters(10**9)) == (2_200_000, 10**8)


def test_a_wide_model_needs_more_updates_and_no_model_is_far_larger_than_the_text():
    assert not is_promising(candidate(10**8, train_chars=10**6))
    for hidden, least in ((320, 2000), (640, 4000)):
        found = [is_promising(candidate(updates=updates, family=RHN, hidden=hidden)) for updates in (least - 1, least)]
        assert found == [False, True]


def test_what_is_not_measured_is_on_lines_between_what_is():
    """Below the smallest a tenth of its time is overhead; beyond the largest, time is in proportion."""
    measured = {60_000: 12e-3, 20_000: 4e-3, 100_000: 16e-3}
    found = [update_s(parameters, measured) for parameters in (10_000, 20_000, 30_000, 80_000, 200_000)]
    assert found == pytest.approx([2.2e-3, 4e-3, 6e-3, 14e-3, 32e-3])
    assert [update_s(n, {20_000: 4e-3}) for n in (10_000, 20_000, 40_000)] == pytest.approx([2.2e-3, 4e-3, 8e-3])
