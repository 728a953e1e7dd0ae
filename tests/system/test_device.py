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
@pytest.mark.parametrize(
    ("name", "device"),
    [("auto", "cuda:0"), ("cpu", "cpu"), ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")],
)
def test_devices_by_name(name, device):
    assert str(resolve_device(name)) == device


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["cuda:2", "cuda:99999999999", "mps", "cuda:x", "cuda:-1"])
def test_names_of_no_device(name):
    listed = (
        "here: auto | cpu | cuda | cuda:0 | cuda:1" if name[5:].isdecimal() else ": auto | cpu | cuda | cuda:1 (the "
    )
    with pytest.raises(DeviceError) as caught:
        resolve_device(name)
    assert str(caught.value).startswith(f"device: found {name}; allowed{' ' * (listed[0] == 'h')}{listed}")


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
    def precision_settings():
        cudnn = torch.backends.cudnn
        newer = [place.fp32_precision for place in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
        return torch.get_float32_matmul_precision(), cudnn.allow_tf32, *newer, torch.initial_seed()

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    torch.set_float32_matmul_precision(usual)
    try:
        before = precision_settings()
        for precision in ("fp32", "tf32", "bf16"):
            with own_settings():
                prepare_device(torch.device("cuda", 1), precision)
                torch.manual_seed(3)
                assert torch.backends.cudnn.allow_tf32 == (precision != "fp32")
            assert precision_settings() == before
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
