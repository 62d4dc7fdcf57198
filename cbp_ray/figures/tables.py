"""The numbers behind a figure: one row per setting, and one row per setting and bin."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow

from cbp_ray.figures import statistics
from cbp_ray.figures.cases import Case, Cases
from cbp_ray.figures.names import NAMES

DIGITS = 4
COUNTS = ("replacements", "nonfinite_utilities")
"""Metrics that are no means over a bin's examples or units; the table of bins leaves them out."""


def settings_table(cases: Cases) -> list[dict[str, Any]]:
    """One row per setting: total, low or high point, late performance, late diagnostics, and whether it is the best of its
    kind."""
    best = {id(_best_of_kind(cases, case)) for case in cases}
    return [_row(case, cases) | {"best": id(case) in best} for case in cases]


def _best_of_kind(cases: Cases, case: Case) -> Case:
    kind: dict[str, Any] = {
        name: getattr(case, name)
        for name in ("algorithm", "activation", "optimizer", "examples", "utility", "width", "task_length")
    }
    if case.algorithm == "bp":
        kind["step_size"] = case.step_size
    return cases.best(**kind)


def _row(case: Case, cases: Cases) -> dict[str, Any]:
    return {
        **case.settings,
        "examples": case.examples,
        "runs": len(case.curves.seeds),
        **(_in_accuracy(case) if "accuracy" in case.curves.metrics else _in_error(case, cases)),
        "diverged_runs": case.diverged,
    }


def _in_accuracy(case: Case) -> dict[str, Any]:
    late, high = 1 - statistics.late(case.error), 1 - statistics.low_point(case.error)[0]
    magnitude = case.curves["output_weight_magnitude"]
    layers = range(1, len(case.config.network.hidden) + 1)
    return {
        "total_accuracy": 1 - case.mean_total,
        "total_accuracy_se": case.standard_error_of_total,
        "high_point": float(high.mean()),
        "late_accuracy": float(late.mean()),
        "late_accuracy_se": _standard_error(late),
        "fall": float(high.mean() - late.mean()),
        "late_weight_magnitude": float(statistics.late(magnitude).mean()),
        "weight_growth": float(statistics.late(magnitude).mean() / statistics.middle(magnitude).mean() - 1),
        **{f"late_dead_{layer}": float(statistics.late(case.curves[f"dead_{layer}"]).mean()) for layer in layers},
    }


def _in_error(case: Case, cases: Cases) -> dict[str, Any]:
    error, linear = statistics.finite(case.error), None
    if cases.has(algorithm="linear", examples=case.examples):
        linear = statistics.finite(cases.best(algorithm="linear", examples=case.examples).error)
    low, low_linear = statistics.low_point(error, linear)
    late = statistics.late(error)
    late_linear = 1.0 if linear is None else statistics.late(linear).mean()
    return {
        "total_error": case.mean_total,
        "total_error_se": case.standard_error_of_total,
        "low_point": float(low.mean()),
        "late_error": float(late.mean()),
        "late_error_se": _standard_error(late),
        "rise": float((late.mean() / late_linear) / (low.mean() / low_linear.mean()) - 1),
        "late_saturated": float(statistics.late(case.curves["saturated"]).mean()),
        "late_input_gradient": float(statistics.late(case.curves["input_gradient"]).mean()),
    }


def _standard_error(per_run: statistics.Array) -> float:
    return float(per_run.std(ddof=1) / math.sqrt(len(per_run))) if len(per_run) > 1 else math.nan


def bins_table(cases: Iterable[Case]) -> pyarrow.Table:
    """One row per setting and bin: mean over the runs and its standard error, for performance and diagnostics. All cases are
    of one problem and as many hidden layers."""
    columns: dict[str, list[Any]] = {}
    for case in cases:
        bins = len(case.curves.examples)
        about = {**case.settings, "run_length": case.examples, "runs": len(case.curves.seeds), "diverged_runs": case.diverged}
        rows: dict[str, Sequence[Any]] = {name: [value] * bins for name, value in about.items()}
        rows |= {"bin": range(bins), "examples": case.curves.examples.tolist()}
        for metric in (name for name in case.curves.metrics if name not in COUNTS):
            rows[f"{metric}_mean"] = case.curves.mean(metric).astype(np.float32).tolist()
            rows[f"{metric}_se"] = case.curves.standard_error(metric).astype(np.float32).tolist()
        for name, values in rows.items():
            columns.setdefault(name, []).extend(values)
    table = pyarrow.table(columns)
    narrow = [pyarrow.float32() if field.name.endswith(("_mean", "_se")) else field.type for field in table.schema]
    return table.cast(pyarrow.schema(zip(table.column_names, narrow, strict=True)))


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Comma-separated, numbers to six digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _plain(value, 6) for key, value in row.items()} for row in rows)
    return text.getvalue()


def to_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table for people: columns that say nothing are left out, numbers to four digits."""
    columns = [name for name in rows[0] if any(row[name] not in (None, False) and row[name] == row[name] for row in rows)]
    return markdown_table(
        [name.replace("_", " ").removesuffix(" se") + (" ±" if name.endswith("_se") else "") for name in columns],
        [[_for_people(row[name]) for name in columns] for row in rows],
    )


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells as a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _plain(value: Any, digits: int) -> Any:
    if value is None or value != value:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else value


def _for_people(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return NAMES.get(str(value), str(_plain(value, DIGITS))).replace("_", " ")
