"""What configurations are called in TensorBoard: their group, and within it what tells them from each other."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cbp_ray.experiments.config import OnlineConfig

LONGEST_NAME = 180
"""Length of the name of a run's folder; file systems allow 255 bytes."""
SECTIONS = {"algorithm": 0, "network": 1, "optimizer": 2}

Settings = dict[str, str | float | bool]


class RunNames:
    """Names the configurations of one sweep.

    Args:
      known: group and settings of all configurations that its files list.
      searched: paths of settings that a search draws, which differ as well.

    Example:
      >>> rates = [{"algorithm.name": "cbp", "algorithm.replacement_rate": rate, "examples": 60.0} for rate in (0.1, 0.01)]
      >>> names = RunNames([("cppo", rates[0]), ("cppo", rates[1]), ("ppo", {"algorithm.name": "bp", "examples": 60.0})])
      >>> names.of("cppo", rates[0]), names.of("ppo", {"algorithm.name": "bp", "examples": 60.0})
      ('cppo,replacement_rate=0.1', 'ppo')
    """

    def __init__(self, known: Iterable[tuple[str, Settings]], searched: Iterable[str] = ()) -> None:
        groups: dict[str, list[Settings]] = defaultdict(list)
        for group, settings in known:
            groups[group].append(settings)
        self._searched = set(searched)
        self._differing = {group: set(varying(each)) for group, each in groups.items()}

    def of(self, group: str, settings: Settings) -> str:
        """The name: the group alone if it has one configuration, otherwise also what differs within it."""
        differing = self._differing.get(group, set()) | self._searched
        leaves = Counter(name.rpartition(".")[2] for name in settings)
        parts = []
        # What experiments differ in comes first: TensorBoard cuts long names short.
        for name in sorted(settings, key=lambda name: SECTIONS.get(name.partition(".")[0], len(SECTIONS))):
            if name in differing:
                section, _, leaf = name.rpartition(".")
                value = show(settings[name])
                short = value if leaf == "name" else f"{leaf if leaves[leaf] == 1 else f'{section}.{leaf}'}={value}"
                parts.append(short)
        return safe(",".join([group, *parts]))[:LONGEST_NAME]


def varying(all_settings: Sequence[Settings]) -> Settings:
    """The settings in which some differ, each with one of its values."""
    names = {name: value for settings in reversed(all_settings) for name, value in reversed(settings.items())}
    ordered = dict(reversed(names.items()))
    return {name: value for name, value in ordered.items() if len({repr(s.get(name)) for s in all_settings}) > 1}


def flat_settings(config: OnlineConfig | Mapping[str, Any]) -> Settings:
    """`{"algorithm.replacement_rate": 1e-4, …}`, from a config or from what it dumps."""
    flat: Settings = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                visit(f"{prefix}.{name}" if prefix else name, inner)
        else:
            number = isinstance(value, int) and not isinstance(value, bool)
            flat[prefix] = float(value) if number else value if isinstance(value, str | float | bool) else json.dumps(value)

    visit("", config.model_dump(mode="json") if isinstance(config, OnlineConfig) else config)
    return flat


def show(value: str | float | bool) -> str:
    """Exact: two rates that a search has drawn may differ in the last digit. Lists as `5x10`."""
    if isinstance(value, float):
        short = f"{value:g}"
        return str(int(value)) if value.is_integer() else short if float(short) == value else repr(value)
    return str(value).strip("[]").replace(", ", "x")


def safe(text: str) -> str:
    """The text with `_` in place of what no name of a folder should have."""
    return re.sub(r"[^A-Za-z0-9=,._+-]", "_", text) or "_"
