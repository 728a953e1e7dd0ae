"""What `precision: auto` takes, and that everything else follows."""

import json

import pytest
import torch

from charlm.config import load_config
from charlm.inference.trained import load
from charlm.native import precision
from charlm.training.start import resume_run, start_run
from tests.runs import rows

pytestmark = pytest.mark.usefixtures("needs_kernels")


@pytest.fixture(params=["", "AMX"], ids=["none", "AMX"])
def fast(request, monkeypatch):
    """The instructions of this CPU for bfloat16."""
    monkeypatch.setattr(precision, "bf16_instructions", lambda: request.param)
    return request.param


def test_auto_takes_what_this_cpu_computes_faster(config_of, tmp_path, fast, capsys):
    start_run(config_of(precision="auto"), tmp_path / "run")
    taken = "bf16" if fast else "fp32"
    assert f"auto     precision {taken}: " in capsys.readouterr().err
    assert load_config(tmp_path / "run/config.yaml").precision == taken
    assert load(tmp_path / "run").network.precision == taken


def test_resuming_and_use_are_in_the_precision_of_training(config_of, tmp_path, cli, fast, capsys):
    run, slow = tmp_path / "run", "slow     precision bf16"
    start_run(config_of(precision="bf16"), run)
    assert (slow in capsys.readouterr().err) == (not fast)
    resume_run(run, lambda _: config_of(precision="auto", train={"max_steps": 14}))
    assert "change   precision" not in capsys.readouterr().err
    assert load_config(run / "config.yaml").precision == "bf16"

    scored = cli("eval", run, "--json")
    assert (slow in scored.err) == (not fast)
    found = json.loads(scored.out)
    best = min(row["nats"] for row in rows(run) if row["split"] == "valid")
    assert (found["precision"], found["nats_per_char"]) == ("bf16", pytest.approx(best, abs=1e-12))

    trained = load(run)
    x_TB = torch.zeros(3, 2, dtype=torch.int64)
    in_bf16, _ = trained.network(x_TB)
    trained.network.precision = "fp32"
    assert not torch.equal(trained.network(x_TB)[0], in_bf16)
