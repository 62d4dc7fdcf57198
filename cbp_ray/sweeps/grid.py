"""Grids: a list where the schema of `OnlineConfig` wants one value stands for several configurations."""

import itertools
import math
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.validation import ByName


def expand(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All combinations of the lists in `settings`, the last key varying fastest.

    Example:
      >>> [s["optimizer"]["step_size"] for s in expand({"optimizer": {"name": "sgd", "step_size": [0.1, 0.01]}})]
      [0.1, 0.01]
    """
    yield from _expand_mapping(settings, (OnlineConfig,))


def count_points(settings: Mapping[str, Any]) -> int:
    """How many combinations `expand` gives, without making them.

    Example:
      >>> count_points({"optimizer": {"name": ["sgd", "adam"], "step_size": [0.1, 0.01]}})
      4
    """
    return _count_mapping(settings, (OnlineConfig,))


def _expand_mapping(settings: Mapping[str, Any], models: tuple[type[BaseModel], ...]) -> Iterator[dict[str, Any]]:
    choices = [list(_expand_value(value, _annotations(models, name))) for name, value in settings.items()]
    for combination in itertools.product(*choices):
        yield dict(zip(settings, combination, strict=True))


def _count_mapping(settings: Mapping[str, Any], models: tuple[type[BaseModel], ...]) -> int:
    return math.prod(_count_value(value, _annotations(models, name)) for name, value in settings.items())


def _expand_value(value: Any, annotations: tuple[Any, ...]) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from _expand_mapping(value, _models(annotations))
    elif not _is_grid(value, annotations):
        yield value
    else:
        for each in value:
            # A list in a list is a value here: the schema wants a sequence, or the config's own check refuses it.
            yield from [each] if isinstance(each, list) else _expand_value(each, annotations)


def _count_value(value: Any, annotations: tuple[Any, ...]) -> int:
    if isinstance(value, Mapping):
        return _count_mapping(value, _models(annotations))
    if not _is_grid(value, annotations):
        return 1
    return sum(1 if isinstance(each, list) else _count_value(each, annotations) for each in value)


def _is_grid(value: Any, annotations: tuple[Any, ...]) -> bool:
    if not isinstance(value, list):
        return False
    return not any(_is_sequence(a) for a in annotations) or bool(value and all(isinstance(v, list) for v in value))


def _models(annotations: tuple[Any, ...]) -> tuple[type[BaseModel], ...]:
    parts = (part for annotation in annotations for part in _parts(annotation))
    return tuple(p for p in parts if isinstance(p, type) and issubclass(p, BaseModel))


def _annotations(models: tuple[type[BaseModel], ...], name: str) -> tuple[Any, ...]:
    found: list[Any] = []
    for field in (model.model_fields[name] for model in models if name in model.model_fields):
        tables = [mark.table() for mark in field.metadata if isinstance(mark, ByName)]
        found += [*(model for table in tables for model in table.values()), field.annotation]
    return tuple(found)


def _parts(annotation: Any) -> Iterator[Any]:
    """An annotation without `Annotated`, and the members of a union one by one."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _parts(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _parts(member)
    else:
        yield annotation


def _is_sequence(annotation: Any) -> bool:
    return any(get_origin(part) in (tuple, list) or part in (tuple, list) for part in _parts(annotation))
