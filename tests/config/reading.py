"""How these tests read a config, and a validator of JSON Schema that knows the keywords of charlm's schema alone."""

import re
from pathlib import Path

import pytest

from charlm.config import Config, parse_config
from charlm.config.yaml import load_yaml
from charlm.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
SCHEMA = Config.model_json_schema()
KEYS = "data, model, train, optimizer, seed, device, precision, threads"
INTEGER = "an integer ≥ 0 and < 9223372036854775808"
DROPOUT = "a number ≥ 0 and < 1 or a section"
OPTIMIZERS = "adagrad | adam | adamw | muon | nadam | radam | rmsprop | sgd"


def parse(text: str, *overrides: str) -> Config:
    return parse_config(load_yaml(text, "f"), "f", overrides)


def faults(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refusal:
        parse(text, *overrides)
    assert str(refusal.value) == "\n".join(refusal.value.faults)
    return list(refusal.value.faults)


ANNOTATIONS = {"title", "examples", "description", "default", "discriminator", "$defs"}


TYPES = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}


def nodes(node):
    """Every schema within a schema."""
    yield node
    for key in ("properties", "$defs"):
        for child in node.get(key, {}).values():
            yield from nodes(child)
    for key in ("anyOf", "oneOf", "prefixItems"):
        for child in node.get(key, []):
            yield from nodes(child)


def accepts(value, node=SCHEMA) -> bool:
    """Whether a JSON Schema (draft 2020-12) admits a value."""
    if "$ref" in node:
        return accepts(value, SCHEMA["$defs"][node["$ref"].removeprefix("#/$defs/")])
    number = isinstance(value, int | float) and not isinstance(value, bool)
    for key, rule in node.items():
        match key:
            case "anyOf":
                valid = any(accepts(value, branch) for branch in rule)
            case "oneOf":
                valid = sum(accepts(value, branch) for branch in rule) == 1
            case "type" if rule in ("number", "integer"):
                valid = number and (rule == "number" or value == int(value))
            case "type":
                valid = isinstance(value, TYPES[rule])
            case "const":
                valid = value == rule
            case "enum":
                valid = value in rule
            case "minimum":
                valid = not number or value >= rule
            case "exclusiveMinimum":
                valid = not number or value > rule
            case "maximum":
                valid = not number or value <= rule
            case "exclusiveMaximum":
                valid = not number or value < rule
            case "minLength":
                valid = not isinstance(value, str) or len(value) >= rule
            case "pattern":
                valid = not isinstance(value, str) or re.search(rule, value) is not None
            case "minItems":
                valid = not isinstance(value, list) or len(value) >= rule
            case "maxItems":
                valid = not isinstance(value, list) or len(value) <= rule
            case "prefixItems":
                valid = not isinstance(value, list) or all(map(accepts, value, rule))
            case "required":
                valid = not isinstance(value, dict) or set(rule) <= set(value)
            case "properties":
                valid = not isinstance(value, dict) or all(accepts(value[k], rule[k]) for k in value if k in rule)
            case "additionalProperties":
                assert rule is False
                valid = not isinstance(value, dict) or set(value) <= set(node["properties"])
            case _:
                assert key in ANNOTATIONS, f"{key}: a keyword that this test does not know"
                valid = True
        if not valid:
            return False
    return True
