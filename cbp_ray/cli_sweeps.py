"""The commands that run sweeps and look after them: run, status."""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cbp_ray.cli_errors import Choice
from cbp_ray.errors import InputError

if TYPE_CHECKING:
    from rich.table import Column, Table

    from cbp_ray.sweeps import Outcome, Sweep

LOG_WIDTH = 132
"""Of a table that goes to a file or a pipe."""

config_argument = click.argument("config", metavar="CONFIG.yaml", type=click.Path(exists=True, dir_okay=False, path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs to read.")
storage_option = click.option(
    "--storage",
    metavar="DIR",
    default="results",
    show_default=True,
    help="Where results are kept: a folder that all nodes share, or a URI such as s3://bucket/path.",
)
set_option = click.option("--set", "overrides", metavar="A.B=C", multiple=True, help="Replace one setting; may be repeated.")
seeds_option = click.option("--seeds", metavar="START:STOP", help="Seeds START to STOP-1 instead of those in the config.")
scale_option = click.option(
    "--scale",
    type=Choice(["paper", "laptop", "smoke"]),
    default="paper",
    show_default=True,
    help="Which size of the sweep, where the config offers several.",
)


def check_storage(storage: str, writes: bool = True) -> str:
    """Refuses a storage that cannot be one, before anything starts.

    Args:
      storage: as given.
      writes: whether the command is going to write to it.

    Returns:
      The storage as an absolute path or a URI.

    Raises:
      InputError: for a file, a URI that pyarrow does not know or can't reach, and, if the command writes, for a folder that
        is not writable or is gone after the job.
    """
    if writes and in_job():
        check_outlives_job(storage, "--storage")
    if "://" in storage:
        from pyarrow.fs import FileType

        from cbp_ray.results.storage import Folder

        try:
            folder = Folder(storage)
            if folder.filesystem.get_file_info(folder.path).type == FileType.File:
                raise ValueError("it is a file")
        except (ValueError, OSError) as error:
            reason = " ".join(str(error).split())[:100]
            raise InputError(
                f"--storage: must be a folder or a URI of pyarrow.fs, got {storage!r} ({reason}); correct it"
            ) from None
        return storage
    path = Path(storage).absolute()
    if writes:
        check_writable(path, "--storage")
    elif path.exists() and not path.is_dir():
        raise InputError(f"--storage: must be a folder, got the file {storage!r}; use another")
    return str(path)


def check_writable(path: Path, option: str) -> None:
    """Refuses a folder that is none, or that can be neither written nor made."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"{option}: must be a folder that can be written, got {str(path)!r}; use another")


def in_job() -> bool:
    """Whether this process is the entry point of a Ray job."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def check_outlives_job(place: str, option: str) -> None:
    """Refuses a relative path: in a job it lies in the unpacked working directory, which Ray removes."""
    if "://" not in place and not Path(place).is_absolute():
        raise InputError(f"{option}: must be an absolute path or a URI for a job, got {place!r}; use /shared/cbp, say")


def run_and_show(sweep: "Sweep", storage: str, address: str | None, as_json: bool = False) -> "Outcome":
    """Runs what a sweep still lacks and shows how it goes."""
    from cbp_ray.cli_progress import make_display
    from cbp_ray.sweeps.run import run_sweep

    if in_job():
        # Another node on the same machine unpacks the working directory anew, and ours is gone.
        os.chdir("/")
    display = make_display(as_json)
    try:
        return run_sweep(sweep, storage, address=address, progress=display)
    finally:
        display.close()


def print_table(table: "Table") -> None:
    """As wide as the terminal; wide in a file or a pipe."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, LOG_WIDTH)
    console.print(table)


@click.command()
@config_argument
@set_option
@seeds_option
@scale_option
@storage_option
@click.option("--address", metavar="A", help="Ray cluster to run on; a local one is started without it.")
@click.option("--dry-run", is_flag=True, help="Only print what would run, with an estimate of time and memory.")
@json_option
def run(
    config: Path,
    overrides: tuple[str, ...],
    seeds: str | None,
    scale: str,
    storage: str,
    address: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run the sweep of a config file.

    Run it again, and it finishes what is missing and repeats nothing: a sweep may be interrupted at any time, and
    may be extended by more seeds or more values. Ctrl-C stops it cleanly, a second one at once.

    \b
    Examples:
      cbp-ray run sweep.yaml
      cbp-ray run sweep.yaml --dry-run
      cbp-ray run sweep.yaml --set optimizer.step_size=0.003 --seeds 0:100
      cbp-ray run sweep.yaml --storage /data/cbp --address auto --json
    """
    sweep = load(config, overrides, seeds, scale)
    storage = check_storage(storage)
    if dry_run:
        _dry_run(sweep, storage, as_json)
        return 0
    outcome = run_and_show(sweep, storage, address, as_json)
    return 1 if outcome.failed else 0


def load(config: Path, overrides: tuple[str, ...], seeds: str | None, scale: str) -> "Sweep":
    """The sweep of a file, with its `tune` block checked too."""
    from cbp_ray.sweeps.definition import load_sweep

    sweep = load_sweep(config, overrides=overrides, seeds=seeds, scale=scale)
    if sweep.tune is not None:
        from cbp_ray.sweeps.search import check_search

        check_search(sweep)
    return sweep


def _dry_run(sweep: "Sweep", storage: str, as_json: bool) -> None:
    from cbp_ray.cli_progress import span
    from cbp_ray.results.keys import describe_seeds
    from cbp_ray.results.store import Store
    from cbp_ray.sweeps.plan import make_plan

    cores = max(1, int(len(os.sched_getaffinity(0)) / sweep.resources.cpu))
    plan = make_plan(sweep, Store(storage, sweep.name), cores)
    estimate: dict[str, Any] = {
        "sweep": sweep.name,
        "configurations": len(sweep.configurations),
        "seeds": len(sweep.seeds),
        "samples": sweep.tune.samples if sweep.tune is not None else None,
        "runs": plan.runs + plan.stored_runs,
        "stored_runs": plan.stored_runs,
        "trials": len(plan.trials),
        "core_seconds": round(plan.seconds, 1),
        "cores": cores,
        "wall_seconds": round(plan.wall_seconds(cores), 1),
        "memory_mb": round(plan.memory_bytes * min(cores, max(len(plan.trials), 1)) / 2**20),
    }
    if as_json:
        # Which settings a search draws, nobody knows yet.
        ids = [t.trial_id if sweep.tune is None else None for t in plan.trials]
        trials = [
            {"trial_id": name, "group": t.group, "seconds": round(t.seconds, 2)}
            for name, t in zip(ids, plan.trials, strict=True)
        ]
        click.echo(json.dumps(estimate | {"trial_list": trials}))
        return
    by_group: dict[str, list[int]] = {}
    for trial in plan.trials:
        counts = by_group.setdefault(trial.group, [0, 0])
        counts[0] += 1
        counts[1] += len(trial.block.seeds)
    drawn = f" x {sweep.tune.samples} samples" if sweep.tune is not None else ""
    click.echo(f"{sweep.name}: {estimate['configurations']} configurations{drawn} x {estimate['seeds']} seeds", nl=False)
    click.echo(f" ({describe_seeds(sweep.seeds)}) = {estimate['runs']} runs, engine {sweep.engine}")
    for group, (count, runs) in by_group.items():
        click.echo(f"  {group}: {count} trials, {runs} runs")
    click.echo(f"stored already: {plan.stored_runs} runs; to do: {plan.runs} runs in {len(plan.trials)} trials")
    at_most = "at most " if sweep.tune is not None and sweep.tune.scheduler.name != "none" else ""
    click.echo(
        f"estimate: {at_most}{span(plan.seconds)} of one core, {span(estimate['wall_seconds'])} on {cores} cores, "
        f"{estimate['memory_mb']} MB of memory"
    )


@click.command()
@click.argument("sweep", required=False)
@storage_option
@click.option("--failed", is_flag=True, help="Show the trials that failed, with their tracebacks.")
@click.option("--address", metavar="URL", help="List the jobs of this job server instead, http://HOST:8265.")
@json_option
def status(sweep: str | None, storage: str, failed: bool, address: str | None, as_json: bool) -> None:
    """Say what is done, running, failed and missing.

    Reports on one SWEEP, or on all that are in the storage, from any shell and at any time: while a sweep runs
    elsewhere, and after it died. With --address, lists the jobs of a cluster.

    \b
    Examples:
      cbp-ray status
      cbp-ray status bit_flipping --storage /data/cbp
      cbp-ray status bit_flipping --failed
      cbp-ray status --address http://head:8265
    """
    if address is not None:
        if sweep is not None or failed:
            given = "--failed" if failed else f"SWEEP {sweep!r}"
            raise InputError(f"--address: lists jobs, not sweeps, got it together with {given}; leave one of them out")
        _show_jobs(address, as_json)
        return
    from cbp_ray.cli_progress import span
    from cbp_ray.sweeps.failures import read_all
    from cbp_ray.sweeps.status import statuses, sweeps_in

    stores = sweeps_in(check_storage(storage, writes=False), sweep)
    if failed:
        found = [{"sweep": store.sweep, **failure} for store in stores for failure in read_all(store)]
        if as_json:
            click.echo(json.dumps(found))
            return
        for failure in found:
            click.echo(f"{failure['sweep']} {failure['group']} {failure['trial_id']} after {failure['attempts']} attempts")
            click.echo(failure["traceback"] + "\n")
        click.echo(f"{len(found)} trials failed")
        return
    rows = [row for store in stores for row in statuses(store)]
    if as_json:
        click.echo(json.dumps([asdict(row) | {"missing": row.missing} for row in rows]))
        return
    if not rows:
        click.echo(f"no sweeps in {storage}")
        return
    from rich.table import Column

    whole = [Column(name, no_wrap=True) for name in ("runs done", "failed", "last sign")]
    # Folded rather than cut where there is no room: their names are typed elsewhere.
    table = _table(Column("sweep", overflow="fold"), Column("file", overflow="fold"), "state", *whole)
    for row in rows:
        sign = f"{span(row.silent_seconds)} ago" if row.silent_seconds is not None else "none"
        state = row.state if row.remaining_seconds is None else f"{row.state}, {span(row.remaining_seconds)} left"
        table.add_row(row.sweep, row.source, state, f"{row.done}/{row.runs}", str(row.failed), sign)
    print_table(table)


def _show_jobs(address: str, as_json: bool) -> None:
    from rich.table import Column

    from cbp_ray.cli_progress import span
    from cbp_ray.sweeps import jobs

    found = jobs.listed(address)
    if as_json:
        click.echo(json.dumps(found))
        return
    if not found:
        click.echo(f"no jobs at {address}")
        return
    whole = [Column(name, no_wrap=True) for name in ("job", "state", "started")]
    table = _table(*whole, Column("command", overflow="fold"))
    for job in found:
        started = f"{span(time.time() - job['started'])} ago" if job["started"] else "not yet"
        table.add_row(job["job"], job["state"], started, job["command"])
    print_table(table)


def _table(*columns: "Column | str") -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(*columns, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
