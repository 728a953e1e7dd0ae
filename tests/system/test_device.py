"""Devices by name."""

import pytest
import torch

from charlm.errors import DeviceError
from charlm.system.device import fp32_precision, own_settings, precisions, prepare_device, resolve_device


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two GPUs, the first of which is old."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9 if device.index else 7, 0))


@pytest.mark.usefixtures("two_gpus")
def test_devices_by_name():
    names = ("auto", "cpu", "cuda", "cuda:0", "cuda:1")
    assert [str(resolve_device(name)) for name in names] == ["cuda:0", "cpu", "cuda:0", "cuda:0", "cuda:1"]
    for name in ("cuda:2", "cuda:99999999999", "mps", "cuda:x", "cuda:-1"):
        with pytest.raises(DeviceError):
            resolve_device(name)


def test_a_variable_with_a_wrong_value_is_refused(monkeypatch):
    monkeypatch.setenv("CHARLM_GRAPHS", "on")
    with pytest.raises(DeviceError):
        prepare_device(torch.device("cpu"), "fp32")


@pytest.mark.usefixtures("two_gpus")
def test_precisions():
    assert precisions(torch.device("cpu")) == ("fp32", "bf16")
    assert precisions(torch.device("cuda", 0)) == ("fp32",)
    assert precisions(torch.device("cuda", 1)) == ("fp32", "tf32", "bf16")
    with pytest.raises(DeviceError):
        prepare_device(torch.device("cuda", 0), "tf32")


CUDNN, PRODUCTS = torch.backends.cudnn, torch.backends.cuda.matmul


def precision_settings():
    """Those of torch, by name; "raises" for those that torch refuses to tell, as newer names were set alone."""
    readers = {
        "products": lambda: PRODUCTS.fp32_precision,
        "layers": lambda: CUDNN.rnn.fp32_precision,
        "on CPUs": lambda: torch.backends.mkldnn.matmul.fp32_precision,
        "older name": torch.get_float32_matmul_precision,
        "TF32 of products": lambda: PRODUCTS.allow_tf32,
        "TF32 of layers": lambda: CUDNN.allow_tf32,
    }
    settings = {}
    for name, read in readers.items():
        try:
            settings[name] = read()
        except RuntimeError:
            settings[name] = "raises"
    return settings


@pytest.fixture
def usual_settings():
    """torch's defaults again after the test."""
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    PRODUCTS.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"
    CUDNN.allow_tf32 = True


@pytest.mark.usefixtures("two_gpus", "usual_settings")
@pytest.mark.parametrize(
    ("caller_sets", "precision"),
    [
        (lambda: None, "bf16"),
        (lambda: torch.set_float32_matmul_precision("high"), "fp32"),
        (lambda: setattr(PRODUCTS, "fp32_precision", "tf32"), "tf32"),
    ],
    ids=["nothing", "older name", "newer name"],
)
def test_what_a_training_sets_ends_with_it(caller_sets, precision, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    caller_sets()
    before, seed = precision_settings(), torch.initial_seed()
    with own_settings():
        prepare_device(torch.device("cuda", 1), precision)
        torch.manual_seed(3)
        found = precision_settings()
        wanted = ("tf32" if precision == "tf32" else "ieee", "ieee" if precision == "fp32" else "tf32")
        assert fp32_precision() == (found["products"], found["layers"]) == wanted
        # Callers and torch itself may read the older names.
        assert (found["TF32 of products"], found["TF32 of layers"]) == (precision == "tf32", precision != "fp32")
    assert torch.initial_seed() == seed
    after = precision_settings()
    for name, value in before.items():
        assert value in (after[name], "raises"), name
