"""Fits the rule of charlm/choice/rule.py to measured trainings and prints its constants and residuals.

Of benchmarks/curves.json it uses trainings without dropout that read their text at most five times, so that they do not
overfit. First A, α, the useful parameters per character and the multiplier of each family, from trainings on the same
text with the same number of updates, also on the small texts of benchmarks/dropout.json. Then the multiplier of the
plain LSTM, with all of these held fixed. Then B and β, from what is left, with a constant c for each text. Last, how c
follows from the scores of simple models on the texts of benchmarks/other-texts.json, which charlm trained as it chose.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from charlm.choice.families import PLAIN, USUAL, Family
from charlm.choice.ngram import KNOWN_CHARS
from charlm.choice.rule import CHARS, EXPECTED_WITHIN, PARAMETERS, UPDATES, distinct_chars

FAMILIES = (*USUAL, PLAIN)
FILE = Path(__file__).with_name("curves.json")
SMALL = Path(__file__).with_name("dropout.json")
OTHERS = Path(__file__).with_name("other-texts.json")
LARGE_CHARS = 500_000
"""Characters from which on a text is large."""
BATCH, STEPS = 16, 64
EPOCHS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    without = "texts to check, not to fit: names up to the first hyphen"
    parser.add_argument("--without", nargs="*", default=[], metavar="TEXT", help=without)
    arguments = parser.parse_args()
    trained = [one for one in json.loads(FILE.read_text(encoding="utf-8")) if fits(one)]
    tell_texts_apart(trained)
    found = [one for one in trained if family_of(one["point"]["size"]) != name_of(PLAIN)]
    small = small_texts()
    fitted, fitted_small = ([one for one in part if kind_of(one) not in arguments.without] for part in (found, small))
    sizes = fit_sizes(fitted + fitted_small)
    print(f"A {math.exp(sizes[0]):.3f}, alpha {sizes[1]:.2f}, useful parameters per character {math.exp(sizes[2]):.2f}")
    multipliers = torch.cat([sizes[3:], fit_plain(sizes, trained)])
    for family, log, power in zip(FAMILIES[1:], multipliers[::2].tolist(), multipliers[1::2].tolist(), strict=True):
        print(f"multiplier of {name_of(family)}: {math.exp(log):.2f} · (updates / {UPDATES})^{power:.2f}")
    report("same text, same updates", found, residuals_of_sizes(sizes, found))
    report("the same on small texts", small, residuals_of_sizes(sizes, small))
    left = scores(found) - size_part(sizes, useful(sizes, found))
    chosen = torch.tensor([one in fitted for one in found])
    chars = fit_chars([one for one in found if one in fitted], left[chosen])
    print(f"B {chars[0].exp():.3f}, beta {chars[1]:.2f}")
    residuals = left - chars_part(chars, found)
    for text in dict.fromkeys(one["point"]["text"] for one in found):
        of_text = torch.tensor([one["point"]["text"] == text for one in found])
        residuals[of_text] -= residuals[of_text].mean().item()
    report("same text", found, residuals)
    report_expected(sizes, chars, json.loads(OTHERS.read_text(encoding="utf-8")))


def small_texts() -> list[dict[str, Any]]:
    """The better of two amounts of dropout for each model on small texts, after 1,000 updates."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for one in json.loads(SMALL.read_text(encoding="utf-8")):
        key = one["point"]["text"], one["point"]["size"]
        is_fit = one["facts"]["chars"] < LARGE_CHARS and one["point"]["updates"] == UPDATES
        if is_fit and (key not in best or one["best_nats"] < best[key]["best_nats"]):
            best[key] = one
    return list(best.values())


def tell_texts_apart(found: list[dict[str, Any]]) -> None:
    """Rename a text that has the name of another: machines have different C headers."""
    names: dict[tuple[str, float], str] = {}
    for one in found:
        text = one["point"]["text"]
        others = sum(name == text for name, _ in names)
        names.setdefault((text, one["facts"]["ngram_nats"]), f"{text}-{others + 1}" if others else text)
        one["point"]["text"] = names[text, one["facts"]["ngram_nats"]]


def fits(one: dict[str, Any]) -> bool:
    """Whether a training is one that the rule describes: of a family from which charlm chooses."""
    point = one["point"]
    own = [family for family in FAMILIES if name_of(family) == family_of(point["size"])]
    enough = own and point["updates"] >= min(own[0].least_updates, UPDATES) and one["facts"]["chars"] >= LARGE_CHARS
    return enough and not point["dropout"] and point["updates"] * BATCH * STEPS < EPOCHS * train_chars(one)


def name_of(family: Family) -> str:
    """How the names of its sizes in curves.py begin."""
    return f"{family.kind}-{'plain-' * (family is PLAIN)}{'2x' * (family.layers > 1)}"


def family_of(size: str) -> str:
    return size.rstrip("0123456789")


def scores(found: list[dict[str, Any]]) -> Tensor:
    return torch.tensor([one["best_nats"] for one in found], dtype=torch.float64)


def report(name: str, found: list[dict[str, Any]], residuals: Tensor) -> None:
    """Print the residuals in nats by text."""
    print(f"residuals, {name}: root mean square {residuals.square().mean().sqrt():.4f} nats")
    for text in dict.fromkeys(one["point"]["text"] for one in found):
        own = torch.tensor([one["point"]["text"] == text for one in found])
        part = residuals[own]
        print(f"  {text}: {len(part)} trainings, {part.square().mean().sqrt():.4f}, largest {part.abs().max():.4f}")


# A, α, useful parameters per character, multipliers


def size_part(values: Tensor, parameters: Tensor) -> Tensor:
    """A · (N / N₀)^−α of each training."""
    return values[0].exp() * (parameters / PARAMETERS) ** -values[1]


def useful(values: Tensor, found: list[dict[str, Any]]) -> Tensor:
    """N: S · (1 − e^(−n / S)), where n are the effective parameters, and S is in proportion to the train split."""
    most = values[2].exp() * torch.tensor([train_chars(one) for one in found], dtype=torch.float64)
    return most * -torch.expm1(-effective(values, found) / most)


def effective(values: Tensor, found: list[dict[str, Any]]) -> Tensor:
    """Parameters, times the multiplier of the family."""
    names = [name_of(family) for family in FAMILIES]
    own = [names.index(family_of(one["point"]["size"])) for one in found]
    # The multiplier of the first family is 1.
    logs, powers = (torch.cat([values.new_zeros(1), values[start::2]])[own] for start in (3, 4))
    late = torch.tensor([math.log(one["point"]["updates"] / UPDATES) for one in found], dtype=torch.float64)
    parameters = torch.tensor([one["parameters"] for one in found], dtype=torch.float64)
    return parameters * (logs + powers * late).exp()


def train_chars(one: dict[str, Any]) -> int:
    """Characters of the train split."""
    return int(0.9 * one["facts"]["chars"])


def residuals_of_sizes(values: Tensor, found: list[dict[str, Any]]) -> Tensor:
    """What differs from the mean over the trainings on the same text with the same number of updates."""
    left = scores(found) - size_part(values, useful(values, found))
    keys = [(one["point"]["text"], one["point"]["updates"]) for one in found]
    means = [left[torch.tensor([other == key for other in keys])].mean() for key in keys]
    return left - torch.stack(means)


def fit_sizes(found: list[dict[str, Any]]) -> Tensor:
    """ln A, α, ln of the useful parameters per character; ln of each other family's multiplier, and its power."""
    start = [-2.4, 0.5, 0.0, *[0.0, 0.0] * len(USUAL[1:])]
    return least_squares(start, lambda values: residuals_of_sizes(values, found), pull=1e-4)


def fit_plain(sizes: Tensor, trained: list[dict[str, Any]]) -> Tensor:
    """ln of the plain LSTM's multiplier, and its power, beside the fitted values of the others."""
    return least_squares([0.0, 0.0], lambda own: residuals_of_sizes(torch.cat([sizes, own]), trained), pull=1e-4)


# B, β


def chars_part(values: Tensor, found: list[dict[str, Any]]) -> Tensor:
    """B · (D / D₀)^−β of each training."""
    chars = [distinct_chars(one["point"]["updates"], BATCH * STEPS, train_chars(one)) for one in found]
    return values[0].exp() * (torch.tensor(chars, dtype=torch.float64) / CHARS) ** -values[1]


def fit_chars(found: list[dict[str, Any]], left: Tensor) -> Tensor:
    """ln B and β, from what sizes do not explain.

    β is pulled to that of Hoffmann et al. 2022 (arXiv:2203.15556). The texts differ so much in how fast they are
    learned that their trainings leave it nearly open.
    """
    texts = [one["point"]["text"] for one in found]

    def residuals(values: Tensor) -> Tensor:
        rest = left - chars_part(values, found)
        means = [rest[torch.tensor([other == text for other in texts])].mean() for text in texts]
        return rest - torch.stack(means)

    return least_squares([-1.0, 0.28], residuals, pull=0.1)


def least_squares(start: list[float], residuals: Callable[[Tensor], Tensor], pull: float) -> Tensor:
    """The values with the least sum of squared residuals, and of `pull` times the squared distances from the start."""
    first = torch.tensor(start, dtype=torch.float64)
    values = first.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([values], max_iter=5000, line_search_fn="strong_wolfe", tolerance_change=1e-14)

    def loss() -> Tensor:
        optimizer.zero_grad()
        result = residuals(values).square().sum() + pull * (values - first).square().sum()
        result.backward()
        return result

    optimizer.step(loss)
    return values.detach()


# What to expect


def report_expected(sizes: Tensor, chars: Tensor, found: list[dict[str, Any]]) -> None:
    """Print how far expected scores are off, each text by the fit to all texts but those of its kind."""
    print(f"power of Deflate's ratio {fit_deflate_power(sizes, chars, found):.2f}")
    errors: list[float] = []
    for kind in dict.fromkeys(map(kind_of, found)):
        own = [one for one in found if kind_of(one) == kind]
        power = fit_deflate_power(sizes, chars, [one for one in found if kind_of(one) != kind])
        expected = expectation(torch.tensor(power, dtype=torch.float64), sizes, chars, own)
        for one, nats in zip(own, expected.tolist(), strict=True):
            errors.append(nats - one["best_nats"])
            print(f"  {one['point']['text']}: {one['best_nats']:.3f}, expected {nats:.3f}")
    square = statistics.mean(error**2 for error in errors)
    within = statistics.mean(abs(error) <= EXPECTED_WITHIN for error in errors)
    print(f"expected scores: root mean square {math.sqrt(square):.3f} nats; {within:.0%} within {EXPECTED_WITHIN}")


def kind_of(one: dict[str, Any]) -> str:
    return one["point"]["text"].split("-")[0]


def fit_deflate_power(sizes: Tensor, chars: Tensor, found: list[dict[str, Any]]) -> float:
    """The power of Deflate's nats / unigram nats in c, from the logarithms of the scores."""
    logs = scores(found).log()
    return least_squares([0.5], lambda own: expectation(own[0], sizes, chars, found).log() - logs, pull=1e-4).item()


def expectation(power: Tensor, sizes: Tensor, chars: Tensor, found: list[dict[str, Any]]) -> Tensor:
    """`expected_nats` of charlm/choice/rule.py, with the constants of this fit."""
    ngram, unigram, deflate = (
        torch.tensor([one["facts"][f"{model}_nats"] for one in found], dtype=torch.float64)
        for model in ("ngram", "unigram", "deflate")
    )
    known = torch.tensor([min(train_chars(one), KNOWN_CHARS) for one in found], dtype=torch.float64)
    ngram_part = chars[0].exp() * (known / CHARS) ** -chars[1]
    c = ngram * (deflate / unigram).clamp(max=1.0) ** power / (1 + ngram_part)
    relative = size_part(sizes, useful(sizes, found)) + chars_part(chars, found)
    return c + (unigram - c) * -torch.expm1(-c * relative / (unigram - c))


if __name__ == "__main__":
    main()
