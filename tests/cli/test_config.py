"""`charlm config`."""

import json

from charlm.config import Config, load_config


def test_what_has_no_effect_is_said(cli, tiny_config, tmp_path):
    line = "ignored  model.residual: found true, which has no effect with one layer; set model.layers above 1\n"
    words = ["--set", "model.residual=true", "--set", "train.max_steps=1"]
    result = cli("config", "show", tiny_config, *words)
    assert (result.code, result.err) == (0, line)
    assert line in cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run", *words).err


def test_show_can_be_read_back(cli, tiny_config, tmp_path):
    result = cli("config", "show", tiny_config, "--set", "optimizer={name: adam, lr: 1e-7}", "--set", "seed=9")
    assert (result.code, result.err) == (0, "")
    (tmp_path / "shown.yaml").write_text(result.out)
    config = load_config(tmp_path / "shown.yaml")
    assert config == load_config(tiny_config, ["optimizer={name: adam, lr: 1e-7}", "seed=9"])


def test_schema(cli):
    result = cli("config", "schema")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == Config.model_json_schema()
