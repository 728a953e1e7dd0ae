"""charlm doctor: a short report that never fails."""

import json
import re

import pytest

import charlm
from charlm.cells import CELLS
from charlm.layers import select_backend

FACTS = ["charlm", "packages", "system", "cpu", "memory", "disk", "compiler", "cache", "variables", "device"]


@pytest.fixture
def report(cli):
    return lambda *words: json.loads(cli("doctor", *words, "--json").out)


@pytest.mark.usefixtures("no_kernels")
def test_facts_compile_nothing(report, cache, monkeypatch):
    monkeypatch.setattr("charlm.native.loading.load", lambda *_: pytest.fail("loads kernels"))
    rows = report()
    assert list(rows) == FACTS
    assert rows["charlm"].startswith(f"{charlm.__version__}, Python 3.")
    assert re.search(r"torch \d+\.\d.*, numpy \d+\.\d", rows["packages"])
    assert rows["cache"] == str(cache)
    assert not any("unknown" in text for text in rows.values())


@pytest.mark.usefixtures("needs_kernels")
def test_facts_are_printed_before_what_computes_each_kind(cli, report, capsys, monkeypatch):
    printed = []

    def compiling(kind, device):
        printed.append([line.split()[0] for line in capsys.readouterr().out.splitlines()])
        return select_backend(kind, device)

    rows = report("--kernels")
    assert list(rows) == [*FACTS, "precision", *CELLS, "kernels"]
    assert rows["kernels"] == "compiled"
    assert {rows[kind] for kind in CELLS} == {"fused CPU kernel"}
    monkeypatch.setattr("charlm.layers.select_backend", compiling)
    assert cli("doctor", "--kernels").code == 0
    assert printed == [[*FACTS, "precision"], *([kind] for kind in [*CELLS][:-1])]


@pytest.mark.usefixtures("no_kernels")
def test_what_is_missing_or_not_safe(report, cache, monkeypatch):
    (cache / "corpora").mkdir(parents=True)
    (cache / "corpora").chmod(0o777)
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    rows = report("--kernels")
    assert f"{cache}/corpora: the cache is not safe: others may write to it" in rows["cache"]
    assert rows["compiler"] == "unknown: no-such-compiler: not found; install g++ or clang++, or fix or unset CXX"
    assert "no fused CPU kernel: switched off by CHARLM_KERNELS" in rows["lstm"]
