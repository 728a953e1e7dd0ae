"""Every command that reads a checkpoint refuses a damaged one in one line."""

import json
import os
import pickle
import re

import pytest


def test_weights_that_overflow_are_told_and_no_json_holds_nan(cli, copied_run, text_file, tmp_path):
    """Their numbers are finite, their logits are not."""
    from charlm.checkpoint import read_checkpoint, save_checkpoint

    path = copied_run / "checkpoints" / "best.safetensors"
    checkpoint = read_checkpoint(path)
    for tensor in checkpoint.weights.values():
        tensor.fill_(3e38)
    save_checkpoint(checkpoint, path)
    error = "logits: found numbers that are not finite; use another checkpoint of the run, or another text"
    for words in (["next", path, "--json"], ["look", path, "--out", tmp_path / "page.html"]):
        assert cli(*words).err.splitlines()[-1] == f"error: {error}", words
    for words in (["eval", path], ["score", path, text_file], ["score", path, text_file, "--lines", "--above", "1"]):
        lines = cli(*words, "--json").out.splitlines()
        assert lines, words
        for line in lines:
            assert json.loads(line, parse_constant=pytest.fail)["bits_per_char"] is None


@pytest.mark.parametrize("command", ["sample", "next", "eval"])
def test_each_in_one_line(cli, trained_run, tmp_path, command):
    import torch
    from safetensors.torch import save_file

    from charlm.checkpoint import read_checkpoint, save_checkpoint

    good = (trained_run / "checkpoints" / "last.safetensors").read_bytes()
    marker = tmp_path / "run by the pickle"

    class Malice:
        def __reduce__(self):
            return os.mkdir, (str(marker),)

    save_file({"a": torch.zeros(1)}, tmp_path / "other")
    nan = read_checkpoint(trained_run / "checkpoints" / "last.safetensors")
    nan.weights["decoder.bias"][3] = float("nan")
    save_checkpoint(nan, tmp_path / "nan")
    bad = {
        "missing": (None, r"no such file or folder; allowed: a run's folder or a checkpoint in its checkpoints/"),
        "empty": (b"", r"damaged, or not a checkpoint \(.*\); use another one of the run"),
        "truncated": (good[: len(good) // 2], r"damaged, or not a checkpoint \(.*\); use another one of the run"),
        "altered": (good[:-1] + b"\x7f", "altered or damaged: its content hash does not match; use another one"),
        "pickle": (pickle.dumps(Malice()), r"damaged, or not a checkpoint \(.*\); use another one of the run"),
        "text": (b"to be or not to be", r"damaged, or not a checkpoint \(.*\); use another one of the run"),
        "other": (
            (tmp_path / "other").read_bytes(),
            "a safetensors file, but not a charlm checkpoint; allowed: a checkpoint that charlm wrote",
        ),
        "nan": (
            (tmp_path / "nan").read_bytes(),
            "weights/decoder.bias holds numbers that are not finite; use another one of the run",
        ),
        "newer": (
            good.replace(b'"version":"1"', b'"version":"2"'),
            "found format version 2; this charlm reads 1; update charlm",
        ),
    }
    for name, (content, text) in bad.items():
        path = tmp_path / f"{name}.safetensors"
        if content is not None:
            assert content != good
            path.write_bytes(content)
        assert re.fullmatch(re.escape(f"{path}: ") + text, cli(command, path).error), name
    assert not marker.exists()
    error = f"{tmp_path}: no checkpoint in {tmp_path}/checkpoints; allowed: the folder of a run, or a checkpoint"
    assert cli(command, tmp_path).error == error
