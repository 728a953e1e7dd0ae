"""A validator of JSON Schema that knows the keywords of charlm's schema and no others."""

import re

from charlm.config import (
    Config,
)

SCHEMA = Config.model_json_schema()


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
