"""The numbers behind a figure: one row per setting, and one row per setting and bin."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow

from cbp_ray.figures.figure import Figure
from cbp_ray.figures.results import Setting, Settings
from cbp_ray.problems.problem import COUNTS

KIND = ("algorithm", "activation", "optimizer", "examples", "utility", "width", "task_length")
"""Properties that settings share among which one is the best."""

OFTEN_THE_SAME = ("maturity_threshold",)
"""Columns that are left out if they tell nothing apart."""


def settings_table(figure: Figure, settings: Settings) -> list[dict[str, Any]]:
    """One row per setting: what it is, the figure's numbers, and whether it is the best of its kind."""
    best = {id(_best_of_kind(settings, setting)) for setting in settings}
    rows = [
        {
            **setting.told,
            "examples": setting.examples,
            "runs": len(setting.curves.seeds),
            **figure.numbers(setting, settings),
            "diverged_runs": setting.diverged,
            "best": id(setting) in best,
        }
        for setting in settings
    ]
    for name in OFTEN_THE_SAME:
        if len({row[name] for row in rows} - {None}) < 2:
            for row in rows:
                del row[name]
    return rows


def _best_of_kind(settings: Settings, setting: Setting) -> Setting:
    kind = {name: getattr(setting, name) for name in KIND}
    method = setting.config.algorithm
    # A network that learns by a method without settings of its own is shown at every step size.
    if method.hidden and not method.told:
        kind["step_size"] = setting.step_size
    return settings.best(**kind)


def bins_table(settings: Iterable[Setting]) -> pyarrow.Table:
    """One row per setting and bin: mean over the runs and its standard error, for performance and diagnostics.

    All settings are of one problem and have as many hidden layers. Counts are left out: they are no means over a bin.
    """
    columns: dict[str, list[Any]] = {}
    for setting in settings:
        curves, bins = setting.curves, len(setting.curves.examples)
        about = {**setting.told, "run_length": setting.examples, "runs": len(curves.seeds), "diverged_runs": setting.diverged}
        rows: dict[str, Sequence[Any]] = {name: [value] * bins for name, value in about.items()}
        rows |= {"bin": range(bins), "examples": curves.examples.tolist()}
        for metric in (name for name in curves.metrics if name not in COUNTS):
            rows[f"{metric}_mean"] = curves.mean(metric).astype(np.float32).tolist()
            rows[f"{metric}_se"] = curves.standard_error(metric).astype(np.float32).tolist()
        for name, values in rows.items():
            columns.setdefault(name, []).extend(values)
    table = pyarrow.table(columns)
    narrow = [pyarrow.float32() if field.name.endswith(("_mean", "_se")) else field.type for field in table.schema]
    return table.cast(pyarrow.schema(zip(table.column_names, narrow, strict=True)))


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as comma-separated text, numbers to six digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: rounded(value, 6) for key, value in row.items()} for row in rows)
    return text.getvalue()


def rounded(value: Any, digits: int) -> Any:
    """A number to some digits; nothing for None and for what is not a number; everything else as it is."""
    if value is None or value != value:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else value
