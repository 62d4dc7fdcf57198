"""Sweep files: read, with what they include, at one scale, with overrides, into one plain document.

The document has the keys of the file but for `include`, `scales` and `base`, and `groups` gives for every group the list of
its settings, each with `base` under it. A file without `groups` is one grid: its base, under the name `NO_GROUP`.
"""

import difflib
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cbp_ray.errors import InputError
from cbp_ray.validation import suggest

Document = dict[str, Any]

KEYS = ("sweep", "seeds", "engine", "base", "groups", "resources", "scales", "tune", "loggers")
SCALES = ("paper", "laptop", "smoke")
NO_GROUP = ""
MOST_BYTES = 4 * 2**20
"""Largest sweep file. A resolved file of 10,000 configurations has about half of it."""
MOST_FILES = 100
"""Most files that a sweep file includes, one that is included twice counted twice."""
MOST_DEPTH = 64
"""Deepest nest of lists and mappings. libyaml builds nests by recursion, and a very deep one would end the process."""
MOST_VALUES = 4_000_000
"""Most values of a file in which every alias is a copy of what it names. A few lines of aliases can ask for billions."""
MOST_MERGED = 1000
"""Most keys that a mapping may have with all that `<<` merges into it, and most mappings that one `<<` may name."""
_BASE: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


def read_sweep_file(
    path: Path, overrides: Sequence[str] = (), seeds: str | Iterable[int] | None = None, scale: str = "paper"
) -> Document:
    """The document of a sweep file.

    Args:
      path: the YAML file.
      overrides: `a.b=c` each, as after `--set`. A path that begins with a key of the file is set there, any other in the
        settings of every group.
      seeds: seeds that replace those of the file.
      scale: the overlay of `scales` to apply; `paper` needs none.

    Raises:
      InputError: one line with file, field, rule, value and fix.
    """
    document = _read(path)
    try:
        document = _scaled(document, scale)
        common: Document = {}
        for override in overrides:
            keys, value = _override(override)
            if keys[0] in KEYS:
                document = merge(document, _nest(keys, value))
            else:
                common = merge(common, _nest(keys, value))
        if seeds is not None:
            document["seeds"] = seeds if isinstance(seeds, str) else list(seeds)
        _check_keys(document, KEYS)
        document["groups"] = _groups(document.pop("base", None), document.get("groups"), common)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    return document


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Document:
    """`above` over `below`, mapping by mapping. A section with another `name` replaces the section: its settings are others."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        renamed = both and "name" in old and "name" in value and old["name"] != value["name"]  # type: ignore[operator,index]
        result[key] = merge(old, value) if both and not renamed else value  # type: ignore[arg-type]
    return result


def _read(path: Path, including: tuple[Path, ...] = (), files: list[Path] | None = None) -> Document:
    """A file over those that it includes. `files` are all that were read so far."""
    files = [] if files is None else files
    try:
        path = path.resolve()
        if path in including:
            chain = " -> ".join(p.name for p in (*including, path))
            raise InputError(f"{path.name}: include: must not come back to itself, got {chain}; remove one")
        if len(files) > MOST_FILES:
            raise InputError(f"{including[-1].name}: include: must be at most {MOST_FILES} files in all, got more; use fewer")
        files.append(path)
        text = _text(path)
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links that lead to one another
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or str(error)
        by = f" (included by {including[-1].name})" if including else ""
        raise InputError(f"{path.name}: must be a readable file, got {reason} for {path}{by}; correct the path") from None
    document = _parse(text, path.name)
    if not isinstance(document, dict):
        # Not its content: the file may be another than its author thinks, and hold secrets.
        found = "an empty file" if document is None else f"a {type(document).__name__}"
        raise InputError(f"{path.name}: must be a mapping with sweep, seeds and base, got {found}; see tune_configs/")
    if including:
        _check_included(document, path, including[-1])
    included = document.pop("include", [])
    included = [included] if isinstance(included, str) else included
    if not isinstance(included, list) or not all(isinstance(name, str) for name in included):
        raise InputError(f"{path.name}: include: must be a list of file names, got {included!r}; correct it")
    merged: Document = {}
    for name in included:
        merged = merge(merged, _read(path.parent / name, (*including, path), files))
    return merge(merged, document)


def _check_included(document: Document, path: Path, by: Path) -> None:
    """Refuses an included file that is YAML and no sweep file: it may be another than its author thinks, and hold secrets.

    A key is quoted only where it is nearly one of ours, and values are not.
    """
    known = (*KEYS, "include")
    for key in document:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            found = f"{key}; did you mean {close[0]!r}?" if close else "another; correct the path"
            raise InputError(f"{path.name} (included by {by.name}): must only have settings of sweep files, got {found}")


def _text(path: Path) -> str:
    """The text of a sweep file. Devices and pipes, which may never end, are not read."""

    def opener(name: str, flags: int) -> int:
        # What has nothing to read, as some files of the kernel, then says so instead of waiting for ever.
        return os.open(name, flags | os.O_NONBLOCK)

    with open(path, "rb", buffering=0, opener=opener) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("no file")
        content = b""
        while len(content) <= MOST_BYTES:
            part = file.read(MOST_BYTES + 1 - len(content))
            if part is None:
                raise ValueError("no file that ends")
            if not part:
                break
            content += part
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES // 2**20} MiB")
    return content.decode("utf-8")


def _scaled(document: Document, scale: str) -> Document:
    """The document with the overlay of that name over it."""
    scales = document.get("scales") or {}
    if not isinstance(scales, Mapping):
        raise InputError(f"scales: must be a mapping from names to overlays, got {scales!r}; write smoke: {{seeds: '0:4'}}")
    _check_keys(scales, SCALES, "scales.")
    for name, overlay in scales.items():
        if overlay is not None and not isinstance(overlay, Mapping):
            raise InputError(f"scales.{name}: must be a mapping, got {overlay!r}; write {{seeds: '0:4'}}, say")
        _check_keys(overlay or {}, KEYS, f"scales.{name}.")
    if scale not in SCALES:
        raise InputError(f"scale: must be one of {', '.join(SCALES)}, got {scale!r}; {suggest(scale, SCALES)}")
    if scale not in scales and scale != "paper":
        raise InputError(f"scale: must be one that the file has, got {scale!r}; it has {', '.join(['paper', *scales])}")
    return merge({key: value for key, value in document.items() if key != "scales"}, scales.get(scale) or {})


def _override(override: str) -> tuple[list[str], Any]:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise InputError(f"--set: must be A.B=C, got {override!r}; write --set optimizer.step_size=0.003, say")
    return keys, _parse(text, f"--set {path}")


def _nest(keys: Sequence[str], value: Any) -> Document:
    for key in reversed(keys[1:]):
        value = {key: value}
    return {keys[0]: value}


def _groups(base: Any, groups: Any, common: Document) -> dict[str, list[Document]]:
    """The settings of every group, over `base` and under `common`."""
    if base is not None and not isinstance(base, Mapping):
        raise InputError(f"base: must be a mapping of settings, got {base!r}; write optimizer: {{…}} below it")
    base = base or {}
    if groups is None:
        return {NO_GROUP: [merge(base, common)]}
    if not isinstance(groups, Mapping) or not groups:
        raise InputError(f"groups: must be a mapping from names to settings, got {groups!r}; write groups: {{bp: {{…}}}}")
    found = {}
    for group, own in groups.items():
        sections = own if isinstance(own, list) and own else [own or {}]
        if not all(isinstance(section, Mapping) for section in sections):
            raise InputError(f"groups.{group}: must be a mapping of settings, got {own!r}; write algorithm: {{name: bp}}")
        found[group] = [merge(merge(base, section), common) for section in sections]
    return found


def _check_keys(mapping: Mapping[Any, Any], known: Sequence[str], where: str = "") -> None:
    for key in mapping:
        if key not in known:
            raise InputError(f"{where}{key}: unknown setting, got {mapping[key]!r}; {suggest(str(key), known)}")


class _Loader(_BASE):  # type: ignore[misc]
    """Reads the numbers of YAML 1.2, where PyYAML speaks 1.1."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way to say it
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in {_INTEGER, _FLOAT}]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merges what `<<` names. Merges of merges grow like powers, and are refused in time."""
        merged = [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]
        if len(merged) > 1 or any(isinstance(each, yaml.SequenceNode) and len(each.value) > MOST_MERGED for each in merged):
            raise yaml.constructor.ConstructorError(None, None, "too many merges (<<)", node.start_mark)
        super().flatten_mapping(node)
        if merged and len(node.value) > MOST_MERGED:
            raise yaml.constructor.ConstructorError(None, None, f"more than {MOST_MERGED} merged keys", node.start_mark)

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


# 010, which is eight to YAML 1.1, is a float here, and ten.
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"^[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"^[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+.0123456789"),
)


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MOST_DEPTH:
            raise ValueError(f"more than {MOST_DEPTH} lists and mappings in one another")


def _check_aliases(data: Any) -> None:
    """Refuses an anchor that contains itself, and aliases that stand for more values than anybody means."""
    sizes: dict[int, int] = {}

    def size(value: Any) -> int:
        if not isinstance(value, list | dict):
            return 1
        if id(value) not in sizes:
            sizes[id(value)] = 0
            sizes[id(value)] = 1 + sum(map(size, value.values() if isinstance(value, dict) else value))
        elif not sizes[id(value)]:
            raise ValueError("an anchor that contains itself")
        return sizes[id(value)]

    if size(data) > MOST_VALUES:
        raise ValueError(f"aliases that stand for more than {MOST_VALUES:,} values")


def _parse(text: str, where: str) -> Any:
    """YAML text as plain data, as people mean it: `1e-4` is a number, `1:30` is not ninety, and no key stands twice."""
    try:
        _check_depth(text)
        data = yaml.load(text, _Loader)
        _check_aliases(data)
        return data
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(f"{where}{line}: must be YAML, got: {' '.join(str(problem).split())}; correct it") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # PyYAML fails so on a value that its explicit tag does not fit.
        raise InputError(f"{where}: must be YAML, got: {error}; correct it") from None
