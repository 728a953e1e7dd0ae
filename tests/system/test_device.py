"""Devices by name, their precisions, and how many threads there are."""

import pytest
import torch

from charlm.errors import DeviceError
from charlm.system import device
from charlm.system.device import fp32_precision, own_settings, precisions, prepare_device, resolve_device, set_threads
from charlm.system.host import count_cores


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


@pytest.fixture
def usual_settings():
    """torch's defaults again after the test."""
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.usefixtures("two_gpus", "usual_settings")
def test_what_a_training_sets_ends_with_it(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    torch.set_float32_matmul_precision("high")
    before, seed = fp32_precision(), torch.initial_seed()
    with own_settings():
        torch.manual_seed(3)
        for precision, wanted in {"fp32": ("ieee", "ieee"), "tf32": ("tf32", "tf32"), "bf16": ("ieee", "tf32")}.items():
            prepare_device(torch.device("cuda", 1), precision)
            assert fp32_precision() == wanted
    assert (fp32_precision(), torch.initial_seed()) == (before, seed)


def test_as_many_cores_as_the_quotas_of_the_control_groups_allow(write, tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr("charlm.system.host._ROOT", tmp_path)
    assert count_cores() == 8
    write("proc/self/cgroup", "9:name=systemd:/job/b\n4:cpu,cpuacct:/job/a\n0::/job/a\n")
    for group, quota in {"job/a": "max 100000\n", "job": "200000 100000\n", ".": "400000 100000\n"}.items():
        write(f"sys/fs/cgroup/{group}/cpu.max", quota)
    assert count_cores() == 2


@pytest.mark.parametrize(("cores", "requested", "expected"), [(1, 0, 1), (1, 3, 3), (9, 0, 2)])
def test_a_training_takes_no_more_threads_than_cores_unless_told(cores, requested, expected, monkeypatch, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(device, "count_cores", lambda: cores)
    threads(2)
    set_threads(requested)
    assert torch.get_num_threads() == expected
