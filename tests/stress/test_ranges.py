"""The extremes of every number that a config may hold, found by walking the schema."""

import itertools
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from charlm.cells import CELLS
from charlm.config import Config, parse_config
from charlm.config.faults import json_schema
from charlm.config.optimizers import OPTIMIZERS
from charlm.errors import ConfigError, DataError, DeviceError, DivergenceError
from charlm.training.start import resume_run, start_run
from tests.text import words_text

Path_ = tuple[str | int, ...]


class Number(NamedTuple):
    """An option whose value is a number."""

    path: Path_
    schema: dict[str, Any]
    kinds: tuple[tuple[Path_, str], ...]
    """The options that name the kinds of sections which have it, and these kinds."""

    @property
    def key(self) -> str:
        return ".".join(part for part in self.path if isinstance(part, str))


def numbers(schema: dict[str, Any], path: Path_ = (), kinds: tuple[tuple[Path_, str], ...] = ()) -> Iterator[Number]:
    """Every number of a schema, of each kind of a section."""
    if "discriminator" in schema:
        tag = schema["discriminator"]["propertyName"]
        for kind, section in schema["discriminator"]["mapping"].items():
            yield from numbers(section, path, (*kinds, ((*path, tag), kind)))
        return
    for branch in schema.get("anyOf", []):
        yield from numbers(branch, path, kinds)
    for key, child in (*enumerate(schema.get("prefixItems", [])), *schema.get("properties", {}).items()):
        yield from numbers(child, (*path, key), kinds)
    if schema.get("type") in ("integer", "number"):
        yield Number(path, schema, kinds)


def extremes(number: Number) -> list[float]:
    """What may go wrong in any number, and its bounds."""
    bounds = [number.schema[key] for key in ("minimum", "maximum", "exclusiveMaximum") if key in number.schema]
    if number.schema["type"] == "integer":
        return [*map(int, bounds), 0, -1, 2**63 - 1, 2**64, 10**400]
    return [*bounds, 0.0, 5e-324, 1e-46, 1 - 2**-53, 3.5e38, 1.7e308, -1e-30, -1.7e308, math.nan, math.inf, -math.inf]


def config_with(number: Number, value: float, cell: str, optimizer: str, text: Path) -> dict[str, Any]:
    """A tiny config with this value."""
    raw: dict[str, Any] = {
        "data": {"source": str(text), "split": [0.8, 0.1, 0.1]},
        "model": {"cell": {"kind": cell, "hidden": 4}, "embedding": 4},
        "train": {"batch_size": 2, "bptt": 8, "max_steps": 2, "sample_length": 5},
        "optimizer": {"name": optimizer, "betas": [0.9, 0.99]},
        "device": "cpu",
        "threads": 1,
        "precision": "fp32",
    }
    raw["train"] |= dict.fromkeys(("log_every", "eval_every", "save_every", "sample_every"), 2)
    if number.path == ("train", "max_steps"):
        raw["train"]["max_epochs"] = 0.01
    for path, kind in number.kinds:
        set_option(raw, path, kind)
    if raw["optimizer"]["name"] not in ("adam", "adamw", "muon"):
        del raw["optimizer"]["betas"]
    set_option(raw, number.path, value)
    if number.path[:2] == ("data", "split") and 0 <= value <= 1:
        first, second = {0, 1, 2} - {number.path[2]}
        raw["data"]["split"][first], raw["data"]["split"][second] = 1 - value, 0.0
    return raw


def set_option(raw: Any, path: Path_, value: Any) -> None:
    *above, key = path
    for each in above:
        raw = raw.setdefault(each, {}) if isinstance(raw, dict) else raw[each]
    raw[key] = value


def is_accepted(number: Number, raw: dict[str, Any]) -> bool:
    """Whether the config is; AssertionError unless each fault names the option, what was found and the range."""
    try:
        parse_config(raw, "test")
    except ConfigError as error:
        for line in error.faults:
            assert re.match(rf"test: {number.key}(\.\d)?: found .*; allowed: .*\d", line)
        return False
    return True


@pytest.mark.usefixtures("no_kernels")
def test_a_number_is_refused_with_its_range_or_a_training_ends_well(tmp_path: Path) -> None:
    text, mixes = tmp_path / "text.txt", itertools.cycle(itertools.product(["lstm", *CELLS], OPTIMIZERS.classes))
    text.write_text(words_text(3000), encoding="utf-8")
    trained = set()
    for number in numbers(json_schema(Config)):
        raws = [config_with(number, value, *next(mixes), text) for value in sorted(extremes(number), key=abs)]
        accepted = [raw for raw in raws if is_accepted(number, raw)]
        assert 0 < len(accepted) < len(raws), number.key
        # The largest integers would take long.
        if number.schema["type"] == "number" and number.key not in trained:
            trained.add(number.key)
            with suppress(DataError, DeviceError, DivergenceError):
                start_run(parse_config(accepted[-1], "test"), tmp_path / number.key)
                resume_run(tmp_path / number.key, longer)
    assert len(trained) > 25


def longer(saved: Config) -> Config:
    return parse_config(saved.model_dump(mode="json"), "resume", ["train.max_steps=4"])
