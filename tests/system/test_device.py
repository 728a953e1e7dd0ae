"""Devices by name."""

import pytest
import torch

from charlm.errors import DeviceError
from charlm.system import device as module
from charlm.system.device import check_fork, own_settings, precisions, prepare_device, resolve_device


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
        prepare_device(torch.device("cuda", 0), "tf32")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("usual", ["highest", "medium"])
def test_what_a_training_sets_ends_with_it(usual, monkeypatch):
    def found():
        cudnn = torch.backends.cudnn
        newer = [place.fp32_precision for place in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
        return torch.get_float32_matmul_precision(), cudnn.allow_tf32, *newer, torch.initial_seed()

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    torch.set_float32_matmul_precision(usual)
    try:
        before = found()
        for precision in ("fp32", "tf32", "bf16"):
            with own_settings():
                prepare_device(torch.device("cuda", 1), precision)
                torch.manual_seed(3)
                assert torch.backends.cudnn.allow_tf32 == (precision != "fp32")
            assert found() == before
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("two_gpus")
def test_a_process_forked_from_one_that_uses_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert str(resolve_device("cpu")) == "cpu"
    with pytest.raises(
        DeviceError, match=r"^device: found auto in a process that was forked from one that uses a GPU; "
    ):
        resolve_device("auto")

    def refuse(tensor):
        raise RuntimeError("Unable to handle autograd's threading. See https://pytorch.org")

    monkeypatch.setattr(torch.Tensor, "backward", refuse)
    check_fork()
    monkeypatch.setattr(module, "_forked", True)
    with pytest.raises(DeviceError, match=r"^train: Unable to handle autograd's threading; start processes with "):
        check_fork()
