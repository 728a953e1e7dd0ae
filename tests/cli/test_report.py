"""charlm report."""

import re
import shutil

from tests.browser import data_of


def test_a_page_of_runs(cli, trained_run, tmp_path):
    out = tmp_path / "page.html"
    shutil.copytree(trained_run, tmp_path / "runs/other")
    result = cli("report", trained_run, tmp_path / "runs", trained_run / "checkpoints/best.safetensors", "--out", out)
    assert (result.code, result.out) == (0, "")
    assert re.fullmatch(rf"page     {out}, [\d.]+ kB: open it in a browser\n", result.err)
    assert [run["name"] for run in data_of(out.read_text())["runs"]] == ["run", "other"]


def test_report_html_is_the_default(cli, trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("report", trained_run).code == 0
    assert (tmp_path / "report.html").is_file()


def test_runs_without_metrics_are_named(cli, trained_run, tmp_path):
    empty, out = tmp_path / "empty", tmp_path / "page.html"
    shutil.copytree(trained_run, empty)
    (empty / "metrics.jsonl").write_text("x\n")
    result = cli("report", empty, trained_run, "--out", out)
    assert result.code == 0
    assert (
        result.err.splitlines()[0] == f"note     {empty}: metrics.jsonl: 1 of 1 lines cannot be read and are left out."
    )
    assert len(data_of(out.read_text())["runs"]) == 2
    assert cli("report", empty, "--out", out).code == 0
