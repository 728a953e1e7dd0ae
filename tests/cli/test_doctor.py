"""charlm doctor: a short report that never fails."""

import json
import re
import sys

import pytest

import charlm
from charlm.cells import CELLS


def rows(cli, *words) -> dict[str, str]:
    result = cli("doctor", *words)
    assert result.code == 0
    assert len(result.out.splitlines()) <= 15
    return dict(re.split("  +", line, maxsplit=1) for line in result.out.splitlines())


@pytest.mark.usefixtures("needs_kernels")
def test_report(cli, cache):
    found = rows(cli)
    kinds = ", ".join(CELLS)
    assert list(found) == [
        "versions", "packages", "system", "cpu", "device", "precision", "threads", kinds, "compiler", "cache", "free",
    ]  # fmt: skip
    assert found["versions"].startswith(f"charlm {charlm.__version__}, Python 3.")
    assert re.search(r"numpy \d+\.\d", found["packages"])
    assert found[kinds] == "fused CPU kernel"
    assert re.fullmatch(rf"{re.escape(str(cache))}: kernels \S+ [kM]?B, corpora 0 B", found["cache"])
    assert re.fullmatch(r"memory \S+ .B, disk \S+ .B in /.*", found["free"])
    assert not any("unknown" in text for text in found.values())
    value = json.loads(cli("doctor", "--json").out)
    assert list(value["backends"]) == list(CELLS)
    assert (value["versions"]["charlm"], value["cpu"]) == (charlm.__version__, found["cpu"])


@pytest.mark.usefixtures("no_kernels")
def test_without_a_compiler(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = rows(cli)
    assert found["compiler"] == "none: no C++ compiler; install g++ or clang++ for speed"
    assert found["lstm"] == "fused torch layer (oneDNN); no fused CPU kernel: switched off by this test"


def test_with_a_compiler_that_is_none(cli, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    error = r"no-such-compiler -O1 cannot be run \(.*\); install g\+\+ or clang\+\+, or fix or unset CXX"
    assert re.fullmatch(error, rows(cli)["compiler"])


def test_with_a_cache_that_others_may_write_or_nobody(cli, cache, monkeypatch):
    (cache / "corpora").mkdir(parents=True)
    (cache / "corpora").chmod(0o777)
    expected = r": kernels \S+ [kM]?B, corpora 0 B not used, because others may write to it \(chmod go-w changes that\)"
    assert re.fullmatch(re.escape(str(cache)) + expected, rows(cli)["cache"])
    monkeypatch.setenv("CHARLM_CACHE", "/proc/nowhere")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    expected = "/proc/nowhere: kernels 0 B, corpora 0 B; cannot be written; name another folder in CHARLM_CACHE"
    assert rows(cli)["cache"] == expected


def test_without_torch(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found = rows(cli)
    assert "PyTorch cannot be imported (" in found["versions"]
    assert found["device"].startswith("unknown: ")
    assert found["cpu"]


def test_device_asked_for_by_name(cli, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert rows(cli, "--device", "cuda")["device"].startswith("none: device: found cuda, but this PyTorch (built ")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert "(CUDA 12.8) sees no GPU; for one, check its driver (nvidia-smi)" in rows(cli)["device"]


def test_a_gpu_has_its_memory(monkeypatch):
    import torch

    from charlm.cli.doctor import _device, _precision

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**11, 15 * 10**10))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9 if device.index else 7, 5))
    assert _device("cuda:1") == "cuda:1 (H200), 100 GB of 150 GB free"
    assert _device("cuda:2") == "none: device: found cuda:2; allowed here: auto | cpu | cuda | cuda:0 | cuda:1"
    assert _precision("auto") == "auto takes fp32; this GPU lacks bf16"
    assert _precision("cuda:1") == "auto takes bf16; faster on this GPU"


@pytest.mark.parametrize("columns", [80, 40, 1])
def test_on_a_terminal_no_word_is_cut(cli, monkeypatch, columns):
    def words():  # without what is free, which changes
        return cli("doctor").out.rpartition("free")[0].split()

    before = words()
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda _: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert words() == before
    if columns == 80:
        assert max(len(line) for line in cli("doctor").out.splitlines() if "/" not in line) <= columns
