"""Sweep files as plain data: YAML that reads `1e-4` as a number, includes, scales and overrides.

Everything here works on nested dicts; what the keys mean is decided in `definition`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cbp_ray.errors import InputError

Document = dict[str, Any]

_BASE: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """YAML 1.2 numbers, and no key twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way to say it
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a list or mapping as a key", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        # Eight for some readers of YAML, ten for others.
        if re.match(r"[-+]?0[0-9_]", node.value):
            raise yaml.constructor.ConstructorError(None, None, f"{node.value}, which begins with 0", node.start_mark)
        number: int = super().construct_yaml_int(node)
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
# YAML 1.1, which PyYAML speaks, reads 1e-4 as a string and 1:30 as ninety; 1.2 does neither.
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+.0123456789"),
)


def parse(text: str, where: str) -> Any:
    """YAML text as plain data.

    Raises:
      InputError: with the line, if it is not YAML.
    """
    try:
        document = yaml.load(text, _Loader)
        _check_ends(document, set(), set())
        return document
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(f"{where}{line}: must be YAML, got: {' '.join(str(problem).split())}; correct it") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # Not only of what is written here: PyYAML fails so on a value that its explicit tag does not fit.
        raise InputError(f"{where}: must be YAML, got: {error}; correct it") from None


def _check_ends(node: Any, above: set[int], ended: set[int]) -> None:
    """Refuses an anchor that holds itself, which nobody could walk through."""
    if not isinstance(node, dict | list) or id(node) in ended:
        return
    if id(node) in above:
        raise ValueError("an anchor that contains itself")
    above.add(id(node))
    for child in node.values() if isinstance(node, dict) else node:
        _check_ends(child, above, ended)
    above.remove(id(node))
    ended.add(id(node))


def read(path: Path, including: tuple[Path, ...] = ()) -> Document:
    """A sweep file with what it includes.

    Raises:
      InputError: naming the file.
    """
    path = path.resolve()
    if path in including:
        chain = " -> ".join(p.name for p in (*including, path))
        raise InputError(f"{path.name}: include: must not come back to itself, got {chain}; remove one")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        by = f" (included by {including[-1].name})" if including else ""
        raise InputError(f"{path.name}: must be a readable file, got {reason} for {path}{by}; correct the path") from None
    document = parse(text, path.name)
    if not isinstance(document, dict):
        found = "an empty file" if document is None else repr(document)[:60]
        raise InputError(f"{path.name}: must be a mapping with sweep, seeds, base and groups, got {found}; see tune_configs/")
    included = document.pop("include", [])
    if isinstance(included, str):
        included = [included]
    if not isinstance(included, list) or not all(isinstance(name, str) for name in included):
        raise InputError(f"{path.name}: include: must be a list of file names, got {included!r}; correct it")
    merged: Document = {}
    for name in included:
        merged = merge(merged, read(path.parent / name, (*including, path)))
    return merge(merged, document)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Document:
    """`above` over `below`, mapping by mapping. A section with another `name` replaces the section: its settings are others."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _renamed(old, value):
            result[key] = merge(old, value)
        else:
            result[key] = value
    return result


def _renamed(below: Mapping[str, Any], above: Mapping[str, Any]) -> bool:
    return "name" in below and "name" in above and below["name"] != above["name"]


def apply_overrides(document: Document, overrides: Sequence[str], sweep_keys: Sequence[str]) -> tuple[Document, Document]:
    """`a.b=c` for each: a path that begins with a key of the file is set there, any other is for the config of every group.

    Returns:
      The document, and the settings for every group.

    Raises:
      InputError: if one is not of that form.
    """
    common: Document = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise InputError(f"--set: must be A.B=C, got {override!r}; write --set optimizer.step_size=0.003, say")
        value = parse(text, f"--set {path}")
        if keys[0] in sweep_keys:
            document = merge(document, _nest(keys, value))
        else:
            common = merge(common, _nest(keys, value))
    return document, common


def _nest(keys: Sequence[str], value: Any) -> Document:
    for key in reversed(keys):
        value = {key: value}
    assert isinstance(value, dict)
    return value
