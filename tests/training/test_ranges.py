"""The short form of scripts/stress ranges."""

import itertools

import pytest

from tests.stress.ranges import MIXES, config_with, extremes, is_refused, numbers, train_and_resume
from tests.text import words_text


@pytest.mark.usefixtures("no_kernels")
def test_a_number_is_refused_with_its_range_or_a_training_ends_well(tmp_path):
    text, mixes = tmp_path / "text.txt", itertools.cycle(MIXES)
    text.write_text(words_text(3000), encoding="utf-8")
    trained = set()
    for number in numbers():
        raws = [config_with(number, value, *next(mixes), text) for value in sorted(extremes(number), key=abs)]
        accepted = [raw for raw in raws if not is_refused(number, raw)]
        assert 0 < len(accepted) < len(raws), number.key
        # The largest integers take long; the long form has them too.
        if number.schema["type"] == "number" and number.key not in trained:
            train_and_resume(accepted[-1], tmp_path / number.key)
            trained.add(number.key)
    assert len(trained) > 25
