"""The commands that run sweeps and look after them: run, status, submit, logs, stop."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cbp_ray.cli_errors import Choice
from cbp_ray.errors import InputError

if TYPE_CHECKING:
    from cbp_ray.sweeps.definition import Sweep

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
server_option = click.option("--address", metavar="URL", required=True, help="Job server of the cluster, http://HOST:8265.")


def check_storage(storage: str) -> str:
    """Refuses a storage that cannot be one, before anything starts.

    Raises:
      InputError: for a file, or a URI that pyarrow does not know.
    """
    if "://" in storage:
        from cbp_ray.results.storage import Folder

        try:
            Folder(storage)
        except (ValueError, OSError) as error:
            reason = " ".join(str(error).split())[:100]
            raise InputError(
                f"--storage: must be a folder or a URI of pyarrow.fs, got {storage!r} ({reason}); correct it"
            ) from None
        return storage
    path = Path(storage)
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"--storage: must be a folder that can be written, got {storage!r}; use another")
    return storage


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
    sweep = _load(config, overrides, seeds, scale)
    check_storage(storage)
    if dry_run:
        _dry_run(sweep, storage, as_json)
        return 0
    from cbp_ray.cli_progress import make_display
    from cbp_ray.sweeps.cluster import ClusterLost
    from cbp_ray.sweeps.run import run_sweep

    storage = storage if "://" in storage else os.path.abspath(storage)
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        # In a Ray job. Another node on the same machine unpacks the working directory anew, and ours is gone.
        os.chdir("/")
    display = make_display(as_json)
    try:
        outcome = run_sweep(sweep, storage, address=address, progress=display)
    except ClusterLost as error:
        display.close()
        click.echo(f"cbp-ray run: {error}", err=True)
        return 1
    finally:
        display.close()
    return 1 if outcome.failed else 0


def _load(config: Path, overrides: tuple[str, ...], seeds: str | None, scale: str) -> "Sweep":
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
@json_option
def status(sweep: str | None, storage: str, failed: bool, as_json: bool) -> None:
    """Say what is done, running, failed and missing.

    Reports on one SWEEP, or on all that are in the storage, from any shell and at any time: while a sweep runs
    elsewhere, and after it died.

    \b
    Examples:
      cbp-ray status
      cbp-ray status bit_flipping --storage /data/cbp
      cbp-ray status bit_flipping --failed
    """
    from cbp_ray.cli_progress import span
    from cbp_ray.sweeps.failures import read_all
    from cbp_ray.sweeps.status import statuses, sweeps_in

    stores = sweeps_in(storage, sweep)
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
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table("sweep", "file", "state", "configs", "runs done", "failed trials", "last sign of life", box=SIMPLE_HEAD)
    for row in rows:
        sign = f"{span(row.silent_seconds)} ago" if row.silent_seconds is not None else "none"
        state = row.state if row.remaining_seconds is None else f"{row.state}, {span(row.remaining_seconds)} left"
        table.add_row(row.sweep, row.source, state, str(row.configurations), f"{row.done} of {row.runs}", str(row.failed), sign)
    Console().print(table)


@click.command()
@config_argument
@set_option
@seeds_option
@scale_option
@storage_option
@server_option
@click.option("--wait", is_flag=True, help="Follow the job's log until it ends, and exit with its result.")
@click.option(
    "--working-dir",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Sent to the cluster; must hold the config, and the code if it is not installed there.",
)
def submit(
    config: Path,
    overrides: tuple[str, ...],
    seeds: str | None,
    scale: str,
    storage: str,
    address: str,
    wait: bool,
    working_dir: Path,
) -> int:
    """Run the sweep of a config file as a Ray job on a cluster.

    Does what `cbp-ray run` does, there instead of here, and prints the job's id. The config is checked here first.
    Submitted again, it goes on where it stopped. The storage must be one that the cluster's nodes share.

    \b
    Examples:
      cbp-ray submit sweep.yaml --address http://head:8265 --storage /shared/cbp
      cbp-ray submit sweep.yaml --address http://head:8265 --storage s3://bucket/cbp --wait
    """
    from cbp_ray.sweeps import jobs

    _load(config, overrides, seeds, scale)
    if "://" not in storage and not Path(storage).is_absolute():
        raise InputError(f"--storage: must be an absolute path or a URI for a job, got {storage!r}; use /shared/cbp, say")
    inside = config.resolve()
    if not inside.is_relative_to(working_dir.resolve()):
        raise InputError(f"CONFIG.yaml: must lie in the working directory {working_dir}, got {config}; use --working-dir")
    arguments = [str(inside.relative_to(working_dir.resolve())), "--storage", storage, "--scale", scale]
    arguments += [part for override in overrides for part in ("--set", override)]
    arguments += ["--seeds", seeds] if seeds else []
    job = jobs.submit(address, arguments, working_dir.resolve())
    click.echo(job)
    if not wait:
        return 0
    return 0 if jobs.follow(address, job, lambda text: click.echo(text, nl=False)) else 1


@click.command()
@click.argument("job")
@server_option
@click.option("--follow", is_flag=True, help="Go on until the job ends, and exit with its result.")
def logs(job: str, address: str, follow: bool) -> int:
    """Show what a job has printed.

    \b
    Examples:
      cbp-ray logs raysubmit_b8Zw1xS7NqD1 --address http://head:8265
      cbp-ray logs raysubmit_b8Zw1xS7NqD1 --address http://head:8265 --follow
    """
    from cbp_ray.sweeps import jobs

    if follow:
        return 0 if jobs.follow(address, job, lambda text: click.echo(text, nl=False)) else 1
    click.echo(jobs.logs(address, job), nl=False)
    return 0


@click.command()
@click.argument("job")
@server_option
def stop(job: str, address: str) -> None:
    """Stop a job.

    What it has finished stays; submitted again, it goes on where it stopped.

    \b
    Examples:
      cbp-ray stop raysubmit_b8Zw1xS7NqD1 --address http://head:8265
    """
    from cbp_ray.sweeps import jobs

    click.echo("stopped" if jobs.stop(address, job) else "was not running")
