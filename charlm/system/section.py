"""What the sections of a config share: strict checks, and the types of their options."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict
from pydantic_core import PydanticKnownError, core_schema

from charlm.system.number import LARGEST

Whole = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
"""Annotates an option that is an integer: 16.0 is one in JSON Schema, too."""
# Numbers that float32 holds, and the products of two: where 1 − p divides, p in float32 must not be 1.
Fraction = Annotated[float, Field(ge=0, le=1)]
MOST_PROBABLE = 0.9999999
Probability = Annotated[float, Field(ge=0, le=MOST_PROBABLE)]
Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(ge=1e-30, le=float(LARGEST))]
NonNegative = Annotated[float, Field(ge=0, le=float(LARGEST))]
Bias = Annotated[float, Field(ge=-100, le=100)]
"""The initial bias of a gate; with 100 a sigmoid in float32 is 1."""
Count = Annotated[int, Field(ge=1, le=LARGEST), Whole]
CountOrNever = Annotated[int, Field(ge=0, le=LARGEST), Whole]
Few = Annotated[int, Field(ge=1, le=100), Whole]
"""How many parts a model has, each of which takes time to build, however small it is."""
DEVICE = r"^(auto|cpu|cuda(:(0|[1-9]\d{0,2}))?)$"
"""The names of devices, as a regular expression."""
Device = Annotated[str, Field(pattern=DEVICE, examples=["auto", "cpu", "cuda", "cuda:1"])]
NonEmpty = Annotated[str, Field(min_length=1)]
Betas = Annotated[tuple[Probability, Probability], Strict(False)]


class Section(BaseModel):
    """A mapping in the YAML file: strict, frozen, without unknown keys. The text below an option is its help."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class Kinds:
    """Annotates an option whose value is a section of one of several kinds, each a class with its own options."""

    def __init__(self, tag: str, *classes: type[Section], other: dict[str, Any] | None = None) -> None:
        """tag: the option that names the kind, by its default in a class. The first is for sections without it.

        other: the JSON Schema of sections that are no class's.
        """
        self.tag, self.other = tag, other
        self.classes = {each.model_fields[tag].default: each for each in classes}
        self.default = next(iter(self.classes))
        self.shared = set.intersection(*({*each.model_fields} for each in classes))
        """The options that all kinds have."""

    def read(self, value: Any) -> Any:
        """The section as an object of the class of its kind; whatever is no mapping is left as it is."""
        if not isinstance(value, dict):
            return value
        kind = value.get(self.tag, self.default)
        if isinstance(kind, str) and kind in self.classes:
            return self.classes[kind].model_validate(value)
        raise PydanticKnownError("union_tag_not_found", {"discriminator": self.tag})

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        sections = {kind: handler.generate_schema(each) for kind, each in self.classes.items()}
        return core_schema.no_info_before_validator_function(
            self.read,
            handler(source),
            serialization=core_schema.simple_ser_schema("any"),  # with the options of its class, not of the base class
            json_schema_input_schema=core_schema.tagged_union_schema(sections, self.tag),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        union = handler(schema)
        for kind, reference in union["discriminator"]["mapping"].items():
            section = handler.resolve_ref_schema({"$ref": reference})
            section["properties"][self.tag]["const"] = kind
            if kind != self.default:  # so that a section without it is of one kind
                section["required"] = [self.tag]
        if self.other:
            union["oneOf"].append(self.other)
        return union
