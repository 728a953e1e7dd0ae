"""Any input is used or refused in one clear line.

scripts/stress fuzz feeds the same targets 100,000 inputs each; here Hypothesis makes fifty.
"""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from charlm.config import Config, load_config, parse_config
from charlm.errors import ConfigError
from tests.stress.fuzz import NAMES, good_inputs, guarded
from tests.stress.test_horrors import LIMIT_S
from tests.text import ESC, RTL

bounded = settings(
    deadline=timedelta(seconds=LIMIT_S),
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A good input with bits flipped, cut off, or spliced with itself, with another one or with odd bytes."""
    data = draw(st.sampled_from(seeds))
    for kind in draw(st.lists(st.sampled_from(["flip", "cut", "splice"]), max_size=4)):
        at, to = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        other = draw(st.sampled_from([*seeds, *ODD]) | st.binary(max_size=8))
        middle = {"flip": bytes(byte ^ draw(st.integers(1, 255)) for byte in data[at : at + 1]), "cut": b""}
        data = data[:at] + middle.get(kind, other) + data[at + 1 if kind == "flip" else to :]
    return data


ODD = [ESC, RTL, "\0", "\ud800", "\u200f", "\x9b", "\r", "\u2028", "\ufeff", "[" * 2000, '{"a":' * 500, "9" * 500]
ODD = [bytes(text, "utf-8", "surrogatepass") for text in ODD]


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes(name, targets):
    call = guarded(getattr(targets, name))
    seeds = good_inputs(targets.checkpoint)[name]
    for seed in seeds:
        call(seed)

    @bounded
    @given(st.binary(max_size=200) | damaged(seeds))
    def feed(data: bytes) -> None:
        call(data)

    feed()


def sections(node: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The sections that a node of the schema admits."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    for branch in [*node.get("anyOf", []), *node.get("oneOf", [])]:
        yield from sections(branch, schema)
    if "properties" in node:
        yield node


SCHEMA = Config.model_json_schema()
ANY_TEXT = st.text(max_size=20)  # lone surrogates too
ODD_VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | ANY_TEXT
    | st.sampled_from(["lstm", "rhn", "adam", "cosine", "nan", 10**99, -(2**63), 2**64, 1e308, "builtin:x", ESC, RTL])
    | st.lists(st.floats(0, 1) | ANY_TEXT, max_size=4)
    | st.dictionaries(ANY_TEXT, st.integers(), max_size=2)
)


@st.composite
def near_configs(draw: st.DrawFn, node: Any = None, schema: Any = None) -> dict[str, Any]:
    """Keys of the schema with values that may be allowed, now and then an unknown one."""
    schema = schema or SCHEMA
    properties = draw(st.sampled_from(list(sections(node or schema, schema))))["properties"]
    config: dict[str, Any] = draw(st.dictionaries(ANY_TEXT, ODD_VALUES, max_size=1)) if draw(st.booleans()) else {}
    for key in draw(st.lists(st.sampled_from(sorted(properties)), max_size=4, unique=True)):
        child = properties[key]
        is_section = any(sections(child, schema)) and draw(st.booleans())
        allowed = [child[name] for name in ("const", "default") if name in child] + child.get("enum", [])
        plain = st.sampled_from(allowed) | ODD_VALUES if allowed else ODD_VALUES
        config[key] = draw(near_configs(child, schema)) if is_section else draw(plain)
    return config


@bounded
@given(near_configs())
def test_near_configs(targets, value):
    path = targets.folder / "near.yaml"
    path.write_text(json.dumps(value), encoding="utf-8")  # JSON is YAML
    overrides = [f"{key}={json.dumps(each)}" for key, each in value.items()]

    def outcome(read: Callable[[], Config]) -> Config | tuple[str, ...]:
        try:
            return read()
        except ConfigError as error:
            return error.faults

    in_file, direct = outcome(lambda: load_config(path)), outcome(lambda: parse_config(value, str(path)))
    set_alone = outcome(lambda: parse_config({}, "x", overrides))
    assert in_file == direct or not isinstance(in_file, Config)
    for each in (in_file, direct, set_alone):
        assert isinstance(each, Config) or all(each)
