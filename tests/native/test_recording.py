"""Recorded functions give the bits of the functions themselves."""

import subprocess
import sys

import pytest
import torch

from charlm.cells import LSTM
from charlm.layers import RecurrentLayers
from charlm.layers.operators import check_ids
from charlm.native.recording import Recorded

pytestmark = pytest.mark.usefixtures("needs_kernels")


class Counted:
    """How often a function was called."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments):
        self.calls += 1
        return self.function(*arguments)


@pytest.fixture
def layers():
    torch.manual_seed(1)
    return RecurrentLayers(LSTM(hidden=24), 5, num_layers=2, dropout=0.3, zoneout=0.1)


def gradients_of(layers):
    """Drawn masks, products, views, sums in place and out of place, and the state of the last call."""

    def gradients(x_TBI, state):
        layers.zero_grad()
        y_TBH, last = layers(x_TBI, state)
        loss = (y_TBH.exp() + torch.rand(1)).mean(0).log().sum()
        loss.add_(last[1].square().sum()).backward()
        return loss.detach(), [tensor.detach() for tensor in last], [p.grad for p in layers.parameters()]

    return gradients


def test_repeats_have_the_bits_of_the_function(layers):
    function = gradients_of(layers)
    counted = Counted(function)
    recorded, weight = Recorded(counted), layers.get_parameter("weight_hh_l0")
    state = None
    for number in range(9):
        # In between a shorter window; and the weights change.
        x = torch.randn(7 if number == 5 else 8, 3, 5)
        random = torch.get_rng_state()
        loss, last, gradients = recorded("", x, state)
        drawn = torch.get_rng_state()
        torch.set_rng_state(random)
        ours = [loss, *last, *gradients]
        ours = [tensor.clone() for tensor in ours]
        expected = function(x, state)
        assert torch.equal(torch.get_rng_state(), drawn)
        for one, other in zip(ours, [expected[0], *expected[1], *expected[2]], strict=True):
            assert torch.equal(one, other)
        state = tuple(tensor.clone() for tensor in expected[1])
        with torch.no_grad():
            weight += 0.1
    assert not recorded.refusal
    # The first without a state, the first with one, the recorded one, and the shorter one.
    assert counted.calls == 4


def test_other_forms_and_threads_are_computed(layers, threads):
    counted = Counted(torch.square)
    recorded = Recorded(counted)
    x = torch.arange(3.0)
    for form in "aaa":
        recorded(form, x)
    assert counted.calls == 2
    assert recorded("b", x).tolist() == [0, 1, 4]
    assert counted.calls == 3
    threads(1 + torch.get_num_threads())
    recorded("a", x)
    assert counted.calls == 4


READERS = [lambda x: x * float(x[0]), lambda x: x[x > 1], lambda x: x if x.sum() > 0 else -x]


@pytest.mark.parametrize("function", READERS, ids=["number", "mask", "branch"])
def test_a_function_that_reads_values_is_not_recorded(function):
    recorded = Recorded(function)
    for number in range(5):
        x = torch.randn(4) + number
        assert torch.equal(recorded("", x), function(x))
    assert "other results than tensors" in recorded.refusal


def test_ids_are_checked_in_every_repeat():
    def total(ids):
        check_ids("ids", ids, 5)
        return ids.sum()

    recorded = Recorded(total)
    for _ in range(3):
        assert recorded("", torch.tensor([0, 4])) == 4
    with pytest.raises(ValueError, match="found 0 to 5; allowed: 0 to 4"):
        recorded("", torch.tensor([0, 5]))
    assert not recorded.refusal


def test_an_error_leaves_no_recording():
    function = Counted(lambda x: x.view(5))
    recorded = Recorded(function)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="invalid"):
            recorded("", torch.ones(4))
    assert function.calls == 3
    assert torch.equal(recorded("", torch.ones(5)), torch.ones(5))


def test_recording_imports_no_compiler():
    """torch._dynamo and sympy take more than a second, and 100 MB."""
    program = """
import sys, torch
from charlm.native.recording import Recorded

def function(x):
    weight = torch.ones(3, requires_grad=True)
    (torch.rand(3) * weight * x).sum().backward()
    return weight.grad

recorded = Recorded(function)
for _ in range(3):
    recorded("", torch.ones(3))
assert not recorded.refusal
sys.exit(bool({"torch._dynamo", "sympy"} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
