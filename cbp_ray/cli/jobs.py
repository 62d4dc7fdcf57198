"""The commands about Ray jobs: submit, logs, stop. What jobs there are, `status --address` says."""

from pathlib import Path

import click

from cbp_ray.cli.options import check_no_secret, check_outlives_job, limit_options, server_option, sweep_options
from cbp_ray.errors import InputError


@click.command()
@sweep_options
@server_option
@limit_options
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
    max_concurrent: int | None,
    time_limit: float | None,
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
    from cbp_ray.sweeps import jobs, load_sweep

    sweep = load_sweep(config, overrides=overrides, seeds=seeds, scale=scale)
    check_no_secret(storage, "--storage")
    check_outlives_job(storage, "--storage")
    inside = config.resolve()
    if not inside.is_relative_to(working_dir.resolve()):
        raise InputError(f"CONFIG.yaml: must lie in the working directory {working_dir}, got {config}; use --working-dir")
    arguments = [str(inside.relative_to(working_dir.resolve())), "--storage", storage, "--scale", scale]
    arguments += [part for override in overrides for part in ("--set", override)]
    arguments += ["--seeds", seeds] if seeds else []
    arguments += ["--max-concurrent", str(max_concurrent)] if max_concurrent else []
    arguments += ["--time-limit", f"{time_limit:g}s"] if time_limit else []
    job = jobs.submit(address, arguments, working_dir.resolve())
    click.echo(job)
    # On the error stream, so that a script gets the id alone.
    status = f"cbp-ray status {sweep.name} --storage {storage} --watch"
    for line in (f"cbp-ray logs {job} --address {address} --follow", status, f"cbp-ray stop {job} --address {address}"):
        click.echo(f"  {line}", err=True)
    return _follow(address, job) if wait else 0


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
        return _follow(address, job)
    click.echo(jobs.logs(address, job), nl=False)
    return 0


def _follow(address: str, job: str) -> int:
    from cbp_ray.sweeps import jobs

    return 0 if jobs.follow(address, job, lambda text: click.echo(text, nl=False)) else 1


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
