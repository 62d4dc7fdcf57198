"""YAML as people mean it: `1e-4` is a number, `1:30` is not ninety, and no key stands twice."""

import json
import re
from typing import Any

import yaml

from cbp_ray.errors import InputError

_BASE: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class _Loader(_BASE):  # type: ignore[misc]
    """Reads the numbers of YAML 1.2, where PyYAML speaks 1.1."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way to say it
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in {_INTEGER, _FLOAT}]
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


# 010, which is eight to YAML 1.1, is a float here, and ten.
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"^[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"^[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+.0123456789"),
)


def parse(text: str, where: str) -> Any:
    """YAML text as plain data.

    Raises:
      InputError: with the line, if it is not YAML; it begins with `where`.
    """
    try:
        data = yaml.load(text, _Loader)
        json.dumps(data, default=str)  # fails on an anchor that contains itself
        return data
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(f"{where}{line}: must be YAML, got: {' '.join(str(problem).split())}; correct it") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # PyYAML fails so on a value that its explicit tag does not fit.
        raise InputError(f"{where}: must be YAML, got: {error}; correct it") from None
