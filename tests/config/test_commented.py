"""Commented YAML: the same config, with what a person needs to read."""

import pytest

from charlm.config import load_config, parse_config
from charlm.config.commented import commented_yaml
from charlm.config.shipped import shipped_configs


@pytest.mark.parametrize("name", shipped_configs())
def test_it_reads_back_as_the_same_config(tmp_path, name):
    config = load_config(shipped_configs()[name])
    file = tmp_path / "written.yaml"
    file.write_text(commented_yaml(config, "a heading", {}))
    assert load_config(file) == config


def test_defaults_are_left_out_and_comments_stand_beside_their_options():
    config = parse_config({"model": {"cell": {"kind": "lstm", "hidden": 64}}, "train": {"max_epochs": 3}}, "test")
    comments = {"model.cell": "small", "model.layers": "", "train.max_epochs": "enough"}
    assert commented_yaml(config, "two\nlines", comments) == (
        "# two\n"
        "# lines\n"
        "model:\n"
        "  cell: {kind: lstm, hidden: 64}    # small\n"
        "  layers: 1\n"
        "train:\n"
        "  max_epochs: 3.0                   # enough\n"
    )


def test_names_of_files_cannot_break_out_of_their_place(tmp_path):
    config = parse_config({"data": {"source": 'a\nseed: 5 # "b": {c}\u2028'}}, "test")
    file = tmp_path / "written.yaml"
    file.write_text(commented_yaml(config, f"for {config.data.source}", {"data.source": f"is {config.data.source}"}))
    assert load_config(file) == config
