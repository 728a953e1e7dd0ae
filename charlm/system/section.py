"""What the sections of a config share: strict checks, and the types of their options."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict

Fraction = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
CountOrNever = Annotated[int, Field(ge=0)]
DEVICE = r"^(auto|cpu|cuda(:(0|[1-9]\d{0,2}))?)$"
"""The names of devices, as a regular expression."""
Device = Annotated[str, Field(pattern=DEVICE, examples=["auto", "cpu", "cuda", "cuda:1"])]
NonEmpty = Annotated[str, Field(min_length=1)]
Betas = Annotated[tuple[Probability, Probability], Strict(False)]


class Section(BaseModel):
    """A mapping in the YAML file. Types are strict, unknown keys are refused, and nothing changes after reading.

    The text below an option is its help: it becomes the description in the JSON Schema (`charlm config schema`) and
    the meaning in the table of options (`charlm config options`).
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


def default_tag(tag: str, default: str) -> BeforeValidator:
    """Fill in the tag of a section that does not name its kind."""
    return BeforeValidator(lambda value: {tag: default, **value} if isinstance(value, dict) else value)
