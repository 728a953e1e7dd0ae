"""Devices by name."""

import pytest
import torch

from charlm.errors import DeviceError
from charlm.system.device import check_precision, precisions, resolve_device


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two GPUs, the first of which is old."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9 if device.index else 7, 0))


@pytest.mark.usefixtures("two_gpus")
def test_names():
    found = [str(resolve_device(name)) for name in ("auto", "cpu", "cuda", "cuda:0", "cuda:1")]
    assert found == ["cuda:0", "cpu", "cuda:0", "cuda:0", "cuda:1"]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["cuda:2", "cuda:256", "cuda:99999999999"])
def test_a_gpu_that_is_not_there(name):
    with pytest.raises(DeviceError) as caught:
        resolve_device(name)
    assert str(caught.value) == f"device: found {name}; allowed here: auto | cpu | cuda | cuda:0 | cuda:1"


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["mps", "meta", "cuda:x", "cuda:-1", "gpu"])
def test_a_name_that_is_none(name):
    with pytest.raises(DeviceError, match=f"^device: found {name}; allowed: auto | cpu | cuda | cuda:1 "):
        resolve_device(name)


@pytest.mark.usefixtures("two_gpus")
def test_precisions():
    assert precisions(torch.device("cpu")) == ("fp32", "bf16")
    assert precisions(torch.device("cuda", 0)) == ("fp32",)
    assert precisions(torch.device("cuda", 1)) == ("fp32", "tf32", "bf16")
    with pytest.raises(DeviceError, match=r"^precision: found tf32, which cuda:0 \(card\) lacks; allowed here: fp32$"):
        check_precision(torch.device("cuda", 0), "tf32")
