"""What settings are made of: a frozen model that refuses unknown names, kinds of numbers, and errors as one line."""

import contextlib
import difflib
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from cbp_ray.errors import InputError

SEEDS = 2**64
"""Seeds are one half of a Philox key and must be smaller than this."""

LARGEST = 3.4e38
"""Largest number that float32 holds."""
MOST = 10**15
"""Largest number of anything that is counted: beyond it, floating-point numbers no longer tell neighbours apart."""


def _no_boolean(value: Any) -> Any:
    # Pydantic takes True for 1.
    if isinstance(value, bool):
        raise ValueError("must be a number, not a truth value")
    return value


def _number_as_integer(value: Any) -> Any:
    """For `1e6`, which YAML reads as text: whole numbers in any notation become integers, the rest is left to Pydantic."""
    value = _no_boolean(value)
    if isinstance(value, str) and not value.strip().lstrip("+-").isdigit():
        with contextlib.suppress(ValueError):
            number = float(value)
            return int(number) if number.is_integer() else value
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_boolean)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_boolean)]
Rate = Annotated[float, Field(ge=0, le=1), BeforeValidator(_no_boolean)]
DecayRate = Annotated[float, Field(ge=0, lt=1), BeforeValidator(_no_boolean)]
Count = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(_number_as_integer)]
Width = Annotated[int, Field(ge=1, le=10**6), BeforeValidator(_number_as_integer)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS), BeforeValidator(_number_as_integer)]
CountFromZero = Annotated[int, Field(ge=0, le=MOST), BeforeValidator(_number_as_integer)]
Maturity = Annotated[int, Field(ge=0, lt=2**24), BeforeValidator(_number_as_integer)]


class Model(BaseModel):
    """Settings of one thing: frozen, without unknown names, each field explained by the text below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


M = TypeVar("M", bound=BaseModel)


def make(model: type[M], settings: Any, where: str = "") -> M:
    """A model from plain data, a mapping from YAML say; an instance passes through.

    Raises:
      InputError: one line with field, rule, value and fix, which begins with `where`.
    """
    if isinstance(settings, model):
        return settings
    if not isinstance(settings, Mapping):
        known = ", ".join(model.model_fields)
        raise InputError(f"{where or 'settings'}: must be a mapping, got {settings!r}; known are {known}")
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise InputError(one_line(error, model, where)) from None


def one_line(error: ValidationError, model: type[BaseModel], where: str = "") -> str:
    """The first problem as `field: rule, got value; fix`."""
    # A misspelt name also shows as a missing one; the spelling is the better hint.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    field = ".".join([*([where] if where else []), *(str(part) for part in first["loc"])]) or "config"
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Inner):
        return one_line(cause.error, cause.model, field)
    if isinstance(cause, SectionError):
        return f"{field}{cause}" if where or first["loc"] else str(cause).removeprefix(".")
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        owner = _model_at(first["loc"][:-1], model)
        return f"{field}: unknown setting, got {value!r}; {suggest(str(first['loc'][-1]), owner.model_fields)}"
    if kind == "missing":
        return f"{field}: must be set, got nothing; add it"
    rule = first["msg"].removeprefix("Value error, ")
    return f"{field}: {rule[0].lower()}{rule[1:]}, got {_short(value)}; change it"


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, BaseModel) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _model_at(location: Iterable[int | str], model: type[BaseModel]) -> type[BaseModel]:
    """The model of the section at `location`, seen from `model`."""
    for name in location:
        annotation: Any = model.model_fields[str(name)].annotation if str(name) in model.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model


class Inner(ValueError):
    """The error of a model inside of a model, with the class whose fields it speaks of."""

    def __init__(self, error: ValidationError, model: type[BaseModel]) -> None:
        super().__init__(str(error))
        self.error, self.model = error, model


class SectionError(ValueError):
    """Something wrong with a section as a whole; the text continues the section's name: `.low: must be below high, got …`."""


@dataclass(frozen=True)
class ByName:
    """Marks a field whose model is chosen by the `name` in its settings, from a table that may grow.

    Example: `algorithm: Annotated[SerializeAsAny[Method], ByName(methods)]`.
    """

    table: Callable[[], Mapping[str, type[Model]]]
    """Gives the models by name."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.choose, handler(source))

    def choose(self, settings: Any) -> Any:
        """The model that the settings name, made of them; an instance passes through."""
        if not isinstance(settings, Mapping):
            return settings
        known = self.table()
        name = settings.get("name")
        if name is None:
            raise SectionError(f": must have a name, got {dict(settings)!r}; choose one of {', '.join(known)}")
        if not isinstance(name, str) or name not in known:
            raise SectionError(f".name: must be one of {', '.join(known)}, got {name!r}; {suggest(str(name), known)}")
        try:
            return known[name].model_validate(settings)
        except ValidationError as error:
            raise Inner(error, known[name]) from None


def suggest(word: str, known: Iterable[str]) -> str:
    """The fix for a misspelt word: the nearest known one, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def not_negative(name: str, value: Any) -> float:
    """`value` as a finite number of at least 0.

    Raises:
      InputError: if it is none.
    """
    return _finite(name, value, "a number, 0 or more", lambda number: number >= 0)


def positive(name: str, value: Any) -> float:
    """`value` as a finite number above 0.

    Raises:
      InputError: if it is none.
    """
    return _finite(name, value, "a number above 0", lambda number: number > 0)


def in_unit_interval(name: str, value: Any, *, closed: bool = False) -> float:
    """`value` as a number in [0, 1), or in [0, 1] if that is `closed`.

    Raises:
      InputError: if it is none.
    """
    limits = f"a number in [0, 1{']' if closed else ')'}"
    return _finite(name, value, limits, lambda number: 0 <= number <= 1 if closed else 0 <= number < 1)


def as_number(value: Any) -> float:
    """A number of Python's, NumPy's or torch's as a float; not-a-number for everything else, truth values included."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf  # or the other one: too large in any case


def listed(value: Any) -> list[Any]:
    """What is in something that can be gone through; nothing if it can't. NumPy and torch have arrays that say they can."""
    try:
        return list(value)
    except TypeError:
        return []


def truth_value(name: str, value: Any) -> bool:
    """`value`, which must be True or False.

    Raises:
      InputError: if it is neither.
    """
    if not isinstance(value, bool):
        raise InputError(f"{name}: must be True or False, got {value!r}; use one of them")
    return value


def _finite(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> float:
    number = as_number(value)
    if not abs(number) <= LARGEST or not holds(number):
        raise InputError(f"{name}: must be {rule}, got {value!r}; use another")
    return number


def whole_number(name: str, value: Any, least: int = 0, below: int | None = None) -> int:
    """`value` as a Python integer in [least, below).

    Raises:
      InputError: if it is out of range or no integer; 1.0, True and "1" are none.
    """
    limits = f"at least {least}" if below is None else f"in [{least}, {below if below != SEEDS else '2**64'})"
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (below is not None and number >= below):
        raise InputError(f"{name}: must be a whole number {limits}, got {value!r}; use another")
    return number
