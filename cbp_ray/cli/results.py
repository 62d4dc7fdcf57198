"""The command `results`: the configurations of a sweep in a table, the best of them as a sweep file."""

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import click

from cbp_ray.atomic_files import write_whole
from cbp_ray.cli.display import LOG_WIDTH, print_table, table_of
from cbp_ray.cli.options import check_file, check_storage, json_option, scale_option, storage_option
from cbp_ray.cli.watch import spark
from cbp_ray.errors import InputError

if TYPE_CHECKING:
    from cbp_ray.results.tables import Entry, Results

Row = dict[str, Any]
CURVE_WIDTH = 10
MANY = 1000
"""Configurations from which on a bar shows how many are read."""
ABOUT = ("key", "engine", "state", "search", "metric", "seeds", "seeds_wanted", "diverged", "at_examples", "value")
"""Columns that are neither settings nor diagnostics, beside those of `NUMBERS`."""
SMALL_IS_GOOD = "error"
"""The one performance metric of which less is better."""
NUMBERS = ("performance", "performance_low", "performance_high", "late", "late_low", "late_high")


@click.command()
@click.argument("sweep", metavar="SWEEP|CONFIG.yaml")
@click.option("--sort", "field", metavar="FIELD", help="Order by this column, -FIELD downwards; the best first without it.")
@click.option("--top", metavar="N", type=click.IntRange(min=1), help="Only the first N rows.")
@click.option("--csv", "csv_file", metavar="F", type=click.Path(dir_okay=False, path_type=Path), help="Write all columns to F.")
@click.option(
    "--best",
    "best_file",
    metavar="F",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the best configuration to F, as a file for `cbp-ray run`.",
)
@scale_option
@storage_option
@json_option
def results(
    sweep: str,
    field: str | None,
    top: int | None,
    csv_file: Path | None,
    best_file: Path | None,
    scale: str,
    storage: str,
    as_json: bool,
) -> None:
    """Show what came out of a sweep, as far as it is done.

    SWEEP is the name of a sweep in the storage, or a sweep file. A row per configuration: the settings that differ,
    how many of its seeds are stored, the performance over the whole run and late in it, each with a 95% confidence
    interval over the seeds, and diagnostics late in the run, as many as fit; --csv and --json have all. For a search,
    a row per trial: finished, stopped by the scheduler and where, or failed. The best comes as a config to run again.

    \b
    Examples:
      cbp-ray results first
      cbp-ray results sweep.yaml --sort late --top 5
      cbp-ray results first --sort replacement_rate --csv first.csv
      cbp-ray results first --best best.yaml
      cbp-ray results first --storage s3://bucket/cbp --json
    """
    for file, option in ((csv_file, "--csv"), (best_file, "--best")):
        if file is not None:
            check_file(file, option)
    found = _find(sweep, scale, check_storage(storage, writes=False))
    stored = sum(bool(entry.seeds) for entry in found.entries.values())
    with click.progressbar(length=stored, label="reading", file=sys.stderr, hidden=stored < MANY) as bar:
        found.on_read = lambda: bar.update(1)
        _ = found.summaries
    shown = [table for table in (_configurations(found), _trials(found)) if table.rows]
    if not shown:
        raise InputError(f"SWEEP: must have configurations, got none in {sweep!r}; run it first")
    for table in shown:
        table.sort(field)
    best, text = _best(found, field), None
    if best is not None:
        text = _best_text(best)
    if csv_file is not None:
        write_whole(csv_file, "\n".join(_csv(table.rows[:top]) for table in shown).encode())
    if best_file is not None:
        if text is None:
            raise InputError(f"--best: must have a complete configuration to write, got none in {sweep!r}; run it first")
        write_whole(best_file, text.encode())
    if as_json:
        answer: dict[str, Any] = {"sweep": found.sweep}
        answer |= {table.name: [{k: _plain(v) for k, v in row.items()} for row in table.rows[:top]] for table in shown}
        if best is not None:
            answer["best"] = {"key": best.key, "group": best.group, "config": best.config.model_dump(mode="json"), "yaml": text}
        return click.echo(json.dumps(answer))
    for table in shown:
        table.print(top)
    from cbp_ray.results import warnings
    from cbp_ray.sweeps.running import running_on

    warned = [each for key, each in warnings.read_all(found.store).items() if key in found.entries]
    for message in sorted({f"{each['group']}: {each['message']}" for each in warned}):
        click.echo(f"warning: {message}")
    if (host := running_on(found.store)) is not None:
        click.echo(f"The sweep runs on {host}: this is what is stored so far.")
    if best is not None and text is not None:
        said = f"in {best_file}" if best_file is not None else "as a sweep file"
        click.echo(f"The best {said}, to run again or with more seeds:\n")
        if best_file is None:
            click.echo(text, nl=False)


def _find(sweep: str, scale: str, storage: str) -> "Results":
    from cbp_ray.results.tables import Results, load

    if not sweep.endswith((".yaml", ".yml")):
        return load(storage, sweep)
    if not Path(sweep).is_file():
        raise InputError(f"SWEEP: must be a sweep file that exists or the name of a sweep, got {sweep!r}; correct it")
    from cbp_ray.results.store import Store
    from cbp_ray.sweeps.resolved import record_of
    from cbp_ray.sweeps.sweep import load_sweep

    asked = load_sweep(sweep, scale=scale)
    return Results(Store(storage, asked.name), [record_of(asked)])


@dataclass
class Listing:
    """Rows of a table with the columns that a terminal shows."""

    name: str
    """What the rows are: `configurations` or `trials`."""
    rows: list[Row]
    """All columns of each row."""
    columns: list[tuple[str, Callable[[Row], str]]]
    """Columns that are always shown: what each is called, and how it is written."""
    more: list[tuple[str, Callable[[Row], str]]]
    """Columns that are shown if they fit."""
    order: Callable[[Row], Any]
    """What the rows are ordered by unless somebody says otherwise: the best first."""

    def sort(self, field: str | None) -> None:
        """Orders the rows by a column, whose name may leave out its section: `replacement_rate`."""
        self.rows.sort(key=self.order)
        if field is None:
            return
        name = _column(field.removeprefix("-"), self.rows)
        known = [row for row in self.rows if _known(row.get(name))]
        rest = [row for row in self.rows if not _known(row.get(name))]
        downwards = field.startswith("-") or (name in NUMBERS and not _small_is_good(self.rows))
        self.rows = sorted(known, key=lambda row: row[name], reverse=downwards) + rest

    def print(self, top: int | None) -> None:
        """Prints as many columns as fit, and says what is left out."""
        from rich.console import Console
        from rich.table import Column

        console, rows = Console(), self.rows[:top]
        width = console.width if console.is_terminal else max(console.width, LOG_WIDTH)

        def room(name: str, write: Callable[[Row], str]) -> int:
            return max(len(name), *(len(write(row)) for row in rows)) + 2

        taken, shown = sum(room(*column) for column in self.columns), list(self.columns)
        for column in self.more:
            if (taken := taken + room(*column)) > width:
                break
            shown.append(column)
        table = table_of(*(Column(name, overflow="fold") for name, _ in shown))
        for row in rows:
            table.add_row(*(write(row).replace("[", r"\[") for _, write in shown))
        print_table(table)
        left_out = [name for name, _ in self.more[len(shown) - len(self.columns) :]]
        if len(rows) < len(self.rows):
            click.echo(f"{len(rows)} of {len(self.rows)} {self.name}")
        if left_out:
            click.echo(f"no room for {', '.join(left_out)}: see --csv or --json")


def _configurations(found: "Results") -> Listing:
    searched = {key for key, entry in found.entries.items() if entry.record.get("kind") == "search"}
    rows = [row for row in found.configurations.to_pylist() if row["key"] not in searched]
    settings = _differing(rows)
    metric = next((row["metric"] for row in rows if row.get("metric")), "performance")
    used = {"group", *ABOUT, *NUMBERS, *(name for row in rows for name in row if _is_setting(name))}
    diagnostics = [name for name in (rows[0] if rows else {}) if name not in used]
    columns: list[tuple[str, Callable[[Row], str]]] = [("group", lambda row: row["group"])]
    columns += [(_short(name, settings), lambda row, name=name: _write(row[name])) for name in settings]  # type: ignore[misc]
    columns += [
        ("seeds", _seeds),
        (metric, lambda row: _interval(row, "performance")),
        ("late", lambda row: _interval(row, "late")),
    ]
    curves = {key: small_curve(summary.curve) for key, summary in found.summaries.items()}
    more: list[tuple[str, Callable[[Row], str]]] = [("curve", lambda row: curves.get(row["key"], ""))]
    more += [(name, lambda row, name=name: _write(row[name])) for name in diagnostics]  # type: ignore[misc]
    return Listing("configurations", rows, columns, more, _rank)


def _trials(found: "Results") -> Listing:
    rows = found.trials.to_pylist()
    settings = _differing(rows)
    metric = rows[0]["metric"] if rows else "value"
    curves = {}
    for row in rows:
        entry = found.entries[row["key"]]
        if (read := found.read(entry)) is not None:
            curves[row["key"]] = small_curve(read.mean(entry.config.problem.performance))
    lengths = {key: entry.config.examples for key, entry in found.entries.items()}
    sign = {entry.key: -1 if entry.record.get("mode") == "max" else 1 for entry in found.entries.values()}
    order = {"finished": 0, "stopped": 1, "unfinished": 2, "failed": 3}

    def state(row: Row) -> str:
        return f"stopped at {row['at_examples'] / lengths[row['key']]:.0%}" if row["state"] == "stopped" else row["state"]

    columns: list[tuple[str, Callable[[Row], str]]] = [("group", lambda row: row["group"])]
    columns += [(_short(name, settings), lambda row, name=name: _write(row[name])) for name in settings]  # type: ignore[misc]
    columns += [("seeds", lambda row: str(row["seeds"])), ("state", state), (metric, lambda row: _write(row["value"]))]
    more: list[tuple[str, Callable[[Row], str]]] = [
        ("examples", lambda row: _write(row["at_examples"])),
        ("curve", lambda row: curves.get(row["key"], "")),
    ]

    def rank(row: Row) -> tuple[int, float]:
        return order[row["state"]], sign[row["key"]] * row["value"] if _known(row["value"]) else math.inf

    return Listing("trials", rows, columns, more, rank)


def _best(found: "Results", field: str | None) -> "Entry | None":
    """The best complete configuration: of a search by its value, else by performance, or late performance if asked for."""
    if not _configurations(found).rows:
        trials = _trials(found)
        trials.sort(None)
        first = trials.rows[0]
        return found.entries[first["key"]] if first["state"] == "finished" and _known(first["value"]) else None
    by = "late" if field is not None and field.removeprefix("-") == "late" else "performance"
    rows = [row for row in found.configurations.to_pylist() if row["state"] == "complete" and _known(row.get(by))]
    return found.entries[min(rows, key=lambda row: _rank(row, by))["key"]] if rows else None


def _best_text(best: "Entry") -> str:
    from cbp_ray.sweeps.resolved import sweep_text

    record = best.record | {"seeds": list(best.wanted), "engine": best.engine}
    return sweep_text(record, [{"group": best.group, "config": best.config.model_dump(mode="json")}])


def _rank(row: Row, by: str = "performance") -> float:
    value = row.get(by)
    if not _known(value):
        return math.inf
    return float(value) if row["metric"] == SMALL_IS_GOOD else -float(value)


def _small_is_good(rows: Sequence[Row]) -> bool:
    return any(row.get("metric") == SMALL_IS_GOOD for row in rows)


def _known(value: Any) -> TypeGuard[Any]:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _is_setting(name: str) -> bool:
    return "." in name or name in ("examples", "bin_size", "dtype")


def _differing(rows: Sequence[Row]) -> list[str]:
    """Settings that do not have the same value in all rows that have them."""
    names = dict.fromkeys(name for row in rows for name in row if _is_setting(name))
    differ = [name for name in names if len({repr(row[name]) for row in rows if row[name] is not None}) > 1]
    # The name of the method says what the group says, unless groups are about something else.
    groups = {(row["group"], row.get("algorithm.name")) for row in rows}
    return [name for name in differ if name != "algorithm.name" or len(groups) > len({group for group, _ in groups})]


def _short(name: str, names: Sequence[str]) -> str:
    """The last part of a setting's name, if that is enough to tell it from others."""
    leaf = name.rpartition(".")[2]
    return leaf if leaf != "name" and sum(other.rpartition(".")[2] == leaf for other in names) == 1 else name


def _column(field: str, rows: Sequence[Row]) -> str:
    names = list(rows[0])
    for row in rows:
        names += [name for name in row if name not in names]
    matching = [name for name in names if name == field] or [name for name in names if name.rpartition(".")[2] == field]
    metrics = {row.get("metric") for row in rows}
    if field in metrics and "performance" in names and not matching:
        return "performance"
    if field in metrics and "value" in names:
        return "value"
    if len(matching) == 1:
        return matching[0]
    from cbp_ray.validation import suggest

    if matching:
        raise InputError(f"--sort: must name one column, got {field!r}, which may be {' or '.join(matching)}; use one of them")
    raise InputError(f"--sort: must be a column, got {field!r}; {suggest(field, names)}")


def _seeds(row: Row) -> str:
    text = f"{row['seeds']}/{row['seeds_wanted']}"
    diverged = row.get("diverged")  # there is no such column before a run is stored
    notes = [row["state"]] * (row["state"] == "failed") + [f"{diverged} diverged"] * bool(diverged)
    return f"{text} ({', '.join(notes)})" if notes else text


def _interval(row: Row, name: str) -> str:
    """The mean with half the width of its interval, as many digits as that allows: `0.512 ± 0.013`."""
    value, low = row.get(name), row.get(f"{name}_low")
    if not _known(value):
        return "" if value is None else "nan"
    if not _known(low):
        return _write(value)
    half = float(value) - float(low)
    digits = 1 - math.floor(math.log10(half)) if half > 0 and math.isfinite(half) else 4
    return f"{value:.{max(0, min(digits, 9))}f} ± {half:.{max(0, min(digits, 9))}f}"


def _write(value: Any) -> str:
    """A value of a cell: numbers with four digits, small ones as `1e-4`."""
    if value is None:
        return ""
    if isinstance(value, float):
        mantissa, mark, exponent = (f"{value:.3e}" if 0 < abs(value) < 1e-2 else f"{value:.4g}").partition("e")
        return f"{float(mantissa):g}e{int(exponent)}" if mark else mantissa
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000 else str(value)


def small_curve(values: Any, width: int = CURVE_WIDTH) -> str:
    """A curve in one line of text, a character for the mean of some bins each: `▁▂▄▆█`."""
    count, width = len(values), min(width, len(values))
    parts = [values[count * k // width : count * (k + 1) // width] for k in range(width)]
    known = [[float(value) for value in part if math.isfinite(value)] for part in parts]
    return spark([sum(part) / len(part) if part else None for part in known])


def _plain(value: Any) -> Any:
    """JSON has no word for numbers that are none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
