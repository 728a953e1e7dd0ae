"""charlm doctor: a short report that never fails."""

import json
import re

import pytest
import torch

from charlm.cells import CELLS

FACTS = ["charlm", "packages", "system", "cpu", "memory", "disk", "compiler", "cache", "variables", "device"]


@pytest.fixture
def report(cli):
    return lambda *words: json.loads(cli("doctor", *words, "--json").out)


@pytest.mark.usefixtures("no_kernels")
def test_facts(report, cache):
    rows = report()
    assert list(rows) == FACTS
    assert re.search(r"torch \d+\.\d.*, numpy \d+\.\d", rows["packages"])
    assert rows["cache"] == str(cache)
    assert not any("unknown" in text for text in rows.values())


@pytest.mark.usefixtures("needs_kernels")
def test_what_computes_each_kind(report):
    rows = report("--kernels")
    assert list(rows) == [*FACTS, "precision", *CELLS, "kernels"]
    assert rows["kernels"] == "compiled"
    assert {rows[kind] for kind in CELLS} == {"fused CPU kernel"}


@pytest.mark.usefixtures("no_kernels")
def test_what_is_missing_or_not_safe(report, cache, monkeypatch):
    (cache / "corpora").mkdir(parents=True)
    (cache / "corpora").chmod(0o777)
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    rows = report("--kernels")
    assert f"{cache}/corpora: the cache is not safe: others may write to it" in rows["cache"]
    assert rows["compiler"] == "unknown: no-such-compiler: not found; install g++ or clang++, or fix or unset CXX"
    assert "no fused CPU kernel: switched off by CHARLM_KERNELS" in rows["lstm"]


def test_what_computes_records_where_another_layer_is_faster(report, monkeypatch):
    """On a GPU, whose kernels prove themselves."""
    card = torch.device("cuda", 0)
    monkeypatch.setattr("charlm.system.device.resolve_device", lambda name: card)
    monkeypatch.setattr("charlm.system.device.prepare_device", lambda *of: None)
    monkeypatch.setattr("charlm.native.precision.choose_precision", lambda *of: ("fp32", ""))
    monkeypatch.setattr("charlm.layers.selection.fault_on_device", lambda *of: "y differs")
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, device: module)
    rows = report("--kernels")
    reference = "reference loop; no loop in CUDA graphs and no loop of single kernels: y differs"
    assert rows["rhn"] == f"{reference}; in models of records: {reference}"
    records = reference.replace("reference loop", "fused torch layer (cuDNN)", 1)
    assert rows["lstm"] == f"fused torch layer (cuDNN); in models of records: {records}"
