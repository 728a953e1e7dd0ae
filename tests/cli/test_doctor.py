"""charlm doctor: a short report that never fails."""

import json
import re
import sys

import pytest
import torch

import charlm
from charlm.cells import CELLS


@pytest.fixture
def report(cli):
    def report(*words) -> dict[str, str]:
        result = cli("doctor", *words)
        assert result.code == 0
        assert len(result.out.splitlines()) <= 16
        return dict(re.split("  +", line, maxsplit=1) for line in result.out.splitlines())

    return report


@pytest.mark.usefixtures("needs_kernels")
def test_report(cli, report, cache):
    rows, kinds = report(), ", ".join(CELLS)
    assert list(rows) == [
        "versions", "packages", "system", "cpu", "device", "precision", "threads", kinds, "kernels", "compiler",
        "cache", "free",
    ]  # fmt: skip
    assert rows["versions"].startswith(f"charlm {charlm.__version__}, Python 3.")
    assert re.search(r"numpy \d+\.\d", rows["packages"])
    assert rows[kinds] == "fused CPU kernel"
    assert rows["kernels"] == "compiled; none came with charlm"
    assert re.fullmatch(rf"{re.escape(str(cache))}: kernels \S+ [kM]?B, corpora 0 B", rows["cache"])
    assert re.fullmatch(r"memory \S+ .B, disk \S+ .B in /.*", rows["free"])
    assert not any("unknown" in text for text in rows.values())
    value = json.loads(cli("doctor", "--json").out)
    assert list(value["backends"]) == list(CELLS)
    assert (value["versions"]["charlm"], value["cpu"]) == (charlm.__version__, rows["cpu"])


@pytest.mark.usefixtures("no_kernels")
def test_what_is_missing_and_what_to_do(report, monkeypatch, tmp_path, cache):
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    error = r"no-such-compiler -O1 cannot be run \(.*\); install g\+\+ or clang\+\+, or fix or unset CXX"
    assert re.fullmatch(error, report()["compiler"])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX")
    (cache / "corpora").mkdir(parents=True)
    (cache / "corpora").chmod(0o777)
    rows = report()
    assert rows["compiler"] == "none: no C++ compiler; install g++ or clang++ for speed"
    assert rows["lstm"] == "fused torch layer (oneDNN); no fused CPU kernel: switched off by CHARLM_KERNELS"
    assert rows["cache"].endswith("corpora 0 B not used, because others may write to it (chmod go-w changes that)")
    monkeypatch.setenv("CHARLM_CACHE", "/proc/nowhere")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    fault = "cannot be written; name another folder in CHARLM_CACHE"
    assert report()["cache"] == f"/proc/nowhere: kernels 0 B, corpora 0 B; {fault}"
    monkeypatch.setitem(sys.modules, "torch", None)
    rows = report()
    assert "PyTorch cannot be imported (" in rows["versions"]
    assert rows["device"].startswith("unknown: ")
    assert rows["cpu"]


def test_gpus(report, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert report("--device", "cuda")["device"].startswith("none: device: found cuda, but this PyTorch (built ")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert "(CUDA 12.8) sees no GPU; for one, check its driver (nvidia-smi)" in report()["device"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**11, 15 * 10**10))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9 if device.index else 7, 5))
    rows = report("--device", "cuda:1")
    assert rows["device"] == "cuda:1 (H200), 100 GB of 150 GB free"
    assert rows["precision"] == "auto takes bf16; faster on this GPU"
    assert report()["precision"] == "auto takes fp32; this GPU lacks bf16"
    fault = "none: device: found cuda:2; allowed here: auto | cpu | cuda | cuda:0 | cuda:1"
    assert report("--device", "cuda:2")["device"] == fault


@pytest.mark.parametrize("columns", [80, 1])
def test_on_a_terminal_no_word_is_cut(cli, monkeypatch, columns):
    def words():  # without what is free, which changes
        return cli("doctor").out.rpartition("free")[0].split()

    before = words()
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda _: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert words() == before
    if columns == 80:
        assert max(len(line) for line in cli("doctor").out.splitlines() if "/" not in line) <= columns
