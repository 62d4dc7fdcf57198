"""The commands that run sweeps and look after them: run, status."""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cbp_ray.cli.display import make_display, print_table, span, table_of
from cbp_ray.cli.options import (
    address_option,
    check_storage,
    in_job,
    json_option,
    limit_options,
    limited_time,
    storage_option,
    sweep_options,
)
from cbp_ray.cli.watch import status_table, status_warnings, watch_sweeps
from cbp_ray.errors import InputError

if TYPE_CHECKING:
    from cbp_ray.sweeps import Sweep, Totals

YEAR_SECONDS = 365 * 86400.0


def run_and_show(
    sweep: "Sweep", storage: str, address: str | None, as_json: bool = False, max_concurrent: int | None = None
) -> "Totals":
    """Runs what a sweep still lacks and shows how it goes."""
    from cbp_ray.sweeps.cluster import terminated_as_interrupted
    from cbp_ray.sweeps.run import run_sweep

    if in_job():
        # Another node on the same machine unpacks the working directory again, and ours is gone.
        os.chdir("/")
    display = make_display(as_json)
    try:
        with terminated_as_interrupted():
            return run_sweep(sweep, storage, address=address, progress=display, max_concurrent=max_concurrent)
    finally:
        display.close()


@click.command()
@sweep_options
@address_option
@limit_options
@click.option("--dry-run", is_flag=True, help="Only print what would run, with an estimate of time and memory.")
@json_option
def run(
    config: Path,
    overrides: tuple[str, ...],
    seeds: str | None,
    scale: str,
    storage: str,
    address: str | None,
    max_concurrent: int | None,
    time_limit: float | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run the sweep of a config file.

    The file has a name, seeds, and settings in which a list of values is a grid. `groups` gives several grids over a
    common `base`; without it the base is the grid, and each configuration is in a group named for its method.

    Run it again, and it finishes what is missing and repeats nothing: a sweep may be interrupted at any time, and
    may be extended by more seeds or more values. Ctrl-C stops it cleanly, a second one at once; --time-limit does
    what Ctrl-C does, with the same exit code, 130.

    \b
    Examples:
      cbp-ray run sweep.yaml
      cbp-ray run sweep.yaml --dry-run
      cbp-ray run sweep.yaml --set optimizer.step_size=0.003 --seeds 0:100
      cbp-ray run sweep.yaml --seeds 1,2,5:9 --max-concurrent 4 --time-limit 2h
      cbp-ray run sweep.yaml --storage /data/cbp --address auto --json
    """
    from cbp_ray.sweeps import load_sweep

    sweep = load_sweep(config, overrides=overrides, seeds=seeds, scale=scale)
    storage = check_storage(storage)
    if dry_run:
        _dry_run(sweep, storage, as_json, max_concurrent)
        return 0
    with limited_time(time_limit):
        return 1 if run_and_show(sweep, storage, address, as_json, max_concurrent).failed else 0


def _dry_run(sweep: "Sweep", storage: str, as_json: bool, max_concurrent: int | None) -> None:
    from cbp_ray.results.keys import describe_seeds
    from cbp_ray.results.store import Store
    from cbp_ray.sweeps.plan import find_missing, make_plan

    at_once = max(1, int(len(os.sched_getaffinity(0)) / (sweep.resources.cpu + sweep.helpers)))
    at_once = min(at_once, max_concurrent or at_once)
    per_trial, there = sweep.resources.cpu + sweep.helpers, len(os.sched_getaffinity(0))
    cores = at_once * per_trial
    plan = make_plan(find_missing(sweep, Store(storage, sweep.name)), at_once)
    estimate: dict[str, Any] = {
        "sweep": sweep.name,
        "configurations": len(sweep.configurations),
        "seeds": len(sweep.seeds),
        "samples": sweep.tune.samples if sweep.tune is not None else None,
        "runs": plan.runs + plan.stored_runs,
        "stored_runs": plan.stored_runs,
        "trials": len(plan.trials),
        "core_seconds": round(plan.core_seconds, 1),
        "cores": round(cores, 3),
        "wall_seconds": round(plan.wall_seconds(at_once), 1),
        "memory_mb": round(plan.memory_bytes * min(at_once, max(len(plan.trials), 1)) / 2**20),
    }
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    estimate["warnings"] = [
        *([f"a trial reserves {per_trial:g} cores, this machine has {there}"] if per_trial > there else []),
        *([f"more memory than this machine has, {memory:.0f} MB"] if estimate["memory_mb"] > memory else []),
        *(["more than a year"] if estimate["wall_seconds"] > YEAR_SECONDS else []),
    ]
    if as_json:
        # Which settings a search draws is not known yet.
        known = sweep.tune is None
        trials = [
            {"trial_id": t.block.trial_id if known else None, "group": t.group, "seconds": round(t.seconds, 2)}
            for t in plan.trials
        ]
        return click.echo(json.dumps(estimate | {"trial_list": trials}))
    drawn = f" x {sweep.tune.samples} samples" if sweep.tune is not None else ""
    click.echo(f"{sweep.name}: {estimate['configurations']} configurations{drawn} x {estimate['seeds']} seeds", nl=False)
    click.echo(f" ({describe_seeds(sweep.seeds)}) = {estimate['runs']} runs, engine {sweep.engine}")
    for group in dict.fromkeys(trial.group for trial in plan.trials):
        runs = [len(trial.block.seeds) for trial in plan.trials if trial.group == group]
        click.echo(f"  {group}: {len(runs)} trials, {sum(runs)} runs")
    click.echo(f"stored already: {plan.stored_runs} runs; to do: {plan.runs} runs in {len(plan.trials)} trials")
    at_most = "at most " if sweep.tune is not None and sweep.tune.scheduler.name != "none" else ""
    click.echo(
        f"estimate: {at_most}{span(plan.core_seconds)} of one core, {span(estimate['wall_seconds'])} on {cores:g} cores, "
        f"{estimate['memory_mb']} MB of memory"
    )
    for warning in estimate["warnings"]:
        click.echo(f"warning: {warning}; look at network.hidden, examples and seeds")


@click.command()
@click.argument("sweep", required=False)
@storage_option
@click.option("--failed", is_flag=True, help="Show the trials that failed, with their tracebacks.")
@click.option("--watch", is_flag=True, help="Also show what runs, with its latest value and a small curve, and go on.")
@click.option("--address", metavar="URL", help="List the jobs of this job server instead, http://HOST:8265.")
@json_option
def status(sweep: str | None, storage: str, failed: bool, watch: bool, address: str | None, as_json: bool) -> None:
    """Say what is done, running, failed and missing.

    Reports on one SWEEP, or on all that are in the storage, from any shell and at any time: while a sweep runs
    elsewhere, and after it died. With --watch, shows every few seconds how it goes, until nothing runs any more. With
    --address, lists the jobs of a cluster.

    \b
    Examples:
      cbp-ray status
      cbp-ray status bit_flipping --storage /data/cbp
      cbp-ray status bit_flipping --watch
      cbp-ray status bit_flipping --failed
      cbp-ray status --address http://head:8265
    """
    if address is not None:
        if sweep is not None or failed or watch:
            given = "--failed" if failed else "--watch" if watch else f"SWEEP {sweep!r}"
            raise InputError(f"--address: lists jobs, not sweeps, got it together with {given}; leave one of them out")
        return _show_jobs(address, as_json)
    from cbp_ray.sweeps.failures import read_all
    from cbp_ray.sweeps.status import statuses, sweeps_in

    stores = sweeps_in(check_storage(storage, writes=False), sweep)
    if failed:
        found = [{"sweep": store.sweep, **failure} for store in stores for failure in read_all(store)]
        if as_json:
            return click.echo(json.dumps(found))
        for failure in found:
            click.echo(f"{failure['sweep']} {failure['group']} {failure['trial_id']} after {failure['attempts']} attempts")
            click.echo(failure["traceback"] + "\n")
        return click.echo(f"{len(found)} trials failed")
    if watch:
        if failed or as_json:
            raise InputError(
                f"--watch: is for people, got it together with {'--failed' if failed else '--json'}; leave one out"
            )
        return watch_sweeps(stores)
    rows = [row for store in stores for row in statuses(store)]
    if as_json:
        return click.echo(json.dumps([asdict(row) | {"missing": row.missing} for row in rows]))
    if not rows:
        return click.echo(f"no sweeps in {storage}")
    print_table(status_table(rows))
    for line in status_warnings(rows):
        click.echo(line)


def _show_jobs(address: str, as_json: bool) -> None:
    from rich.table import Column

    from cbp_ray.sweeps import jobs

    found = jobs.listed(address)
    if as_json:
        return click.echo(json.dumps(found))
    if not found:
        return click.echo(f"no jobs at {address}")
    whole = [Column(name, no_wrap=True) for name in ("job", "state", "started")]
    table = table_of(*whole, Column("command", overflow="fold"))
    for job in found:
        started = f"{span(time.time() - job['started'])} ago" if job["started"] else "not yet"
        table.add_row(job["job"], job["state"], started, job["command"])
    print_table(table)
