"""Damages to the JSON of a cell, as a checkpoint holds it."""

import json
from random import Random
from typing import Any

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 64, 65, 1024, 1025, 2**20, 2**20 + 1, 2**63, 10**40, 0.5, -0.0, 1e-300, 1e308,
    float("inf"), float("nan"), "", "H", "I", "h", "x", "add", "where", "greater", "product", "vector", "part", "state",
    "constant", "input", "normalize", "stop", "exp", "softplus", "__class__", "a b", "é", "\0",
    [], [0], [1, 2], {}, {"H": 1},
]  # fmt: skip


def damaged(text: str, random: Random) -> str:
    """The JSON with up to three values changed, removed, doubled or swapped, or with a character changed."""
    if random.random() < 0.05:
        at = random.randrange(len(text))
        return text[:at] + random.choice('0123456789"[]{},:-. H') + text[at + random.randrange(2) :]
    value = json.loads(text)
    for _ in range(random.randint(1, 3)):
        places = list(_places(value))
        container, key = random.choice(places)
        how = random.random()
        if how < 0.3:
            container[key] = random.choice(ODD)
        elif how < 0.6 and type(container[key]) is int:
            container[key] += random.choice((-3, -2, -1, 1, 2, 3))
        elif how < 0.8:
            other, other_key = random.choice(places)
            container[key] = json.loads(json.dumps(other[other_key]))
        elif how < 0.9 and isinstance(container, list):
            container.insert(key, json.loads(json.dumps(container[key])))
        else:
            del container[key]
        if not value:
            break
    return json.dumps(value)


def _places(value: Any) -> Any:
    """Every value inside of another one, as (container, key)."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], list | dict):
            yield from _places(value[key])
