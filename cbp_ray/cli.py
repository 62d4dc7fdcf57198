"""The command line: `cbp-ray`, also `python -m cbp_ray`.

Exit codes: 0 done; 1 a run or a claim failed; 2 bad input; 130 interrupted. Bad input gives exactly one line on stderr.
torch, Ray and Numba are imported inside the commands that need them, so that help and completion answer at once.
"""

import importlib
import importlib.util
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import click

from cbp_ray.cli_errors import Choice, Program, describe
from cbp_ray.errors import InputError
from cbp_ray.figures.registry import FIGURES

PROGRAM = "cbp-ray"
COMPLETION_VARIABLE = "_CBP_RAY_COMPLETE"

BENCHMARKS = {
    "gnt": "cbp_ray_benchmarks.gnt",
    "bit-flipping": "cbp_ray_benchmarks.bit_flipping",
    "mnist": "cbp_ray_benchmarks.mnist",
    "ant": "cbp_ray_benchmarks.ant",
    "sweep": "cbp_ray_benchmarks.sweep",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    try:
        result = cli.main(arguments, PROGRAM, COMPLETION_VARIABLE, standalone_mode=False)
    except click.Abort:
        click.echo(f"{PROGRAM}: interrupted", err=True)
        return 130
    except click.ClickException as error:
        click.echo(" ".join(describe(error).split()), err=True)
        return 2
    return result if isinstance(result, int) else 0


def _not_built(instead: str) -> InputError:
    """The answer of a command that is declared but has nothing behind it yet; goes when the last one is built."""
    return InputError(f"not built yet in this version ({version('cbp-ray')}); {instead}")


def _print_versions(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    versions = {"cbp-ray": version("cbp-ray"), "python": platform.python_version()}
    versions |= {name: version(name) for name in ("torch", "ray", "numba")}
    for name, number in versions.items():
        click.echo(f"{name} {number}")
    ctx.exit()


config_argument = click.argument("config", metavar="CONFIG.yaml", type=click.Path(exists=True, dir_okay=False, path_type=Path))
figure_argument = click.argument("figure", metavar="FIG", type=Choice([*FIGURES, "all"]))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs to read.")
storage_option = click.option(
    "--storage",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default="results",
    show_default=True,
    help="Where results are kept.",
)


@click.group(
    cls=Program,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
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
      cbp-ray figures              which figures there are, and which can be reproduced
      cbp-ray bench gnt            what generate-and-test adds to a training step
      cbp-ray COMMAND --help       what a command does, with examples
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@cli.command()
@config_argument
@click.option("--set", "overrides", metavar="A.B=C", multiple=True, help="Replace one setting; may be repeated.")
@click.option("--seeds", metavar="START:STOP", help="Seeds START to STOP-1 instead of those in the config.")
@storage_option
@click.option("--address", metavar="A", help="Ray cluster to run on; a local one is started without it.")
@json_option
def run(config: Path, overrides: tuple[str, ...], seeds: str | None, storage: Path, address: str | None, as_json: bool) -> None:
    """Run the sweep of a config file.

    Run it again, and it finishes what is missing and repeats nothing: a sweep may be interrupted at any time, and
    may be extended by more seeds.

    \b
    Examples:
      cbp-ray run sweep.yaml
      cbp-ray run sweep.yaml --set learner.step_size=0.003 --seeds 0:100
      cbp-ray run sweep.yaml --storage /data/cbp --address auto --json
    """
    raise _not_built("use cbp_ray.GenerateAndTest in a training loop of your own")


@cli.command()
@figure_argument
@click.option(
    "--scale",
    type=Choice(["paper", "laptop", "smoke"]),
    default="paper",
    show_default=True,
    help="The paper's runs; what a 2-core machine finishes; a few seconds.",
)
@storage_option
def reproduce(figure: str, scale: str, storage: Path) -> None:
    """Run the sweeps of a figure, draw it and check its claims.

    FIG is a key listed by `cbp-ray figures`, or `all`. Writes a PNG and a PDF and prints a table of the paper's
    claims; exits with 1 if one of them fails.

    \b
    Examples:
      cbp-ray reproduce fig6
      cbp-ray reproduce fig7 --scale laptop
      cbp-ray reproduce all --scale smoke --storage /tmp/try
    """
    raise _not_built("`cbp-ray figures` lists what each figure will show")


@cli.command()
@figure_argument
@storage_option
def plot(figure: str, storage: Path) -> None:
    """Draw a figure from stored results, without running anything.

    \b
    Examples:
      cbp-ray plot fig6
      cbp-ray plot all --storage /data/cbp
    """
    raise _not_built("there are no stored results to draw from")


@cli.command()
@click.argument("sweep", required=False)
@storage_option
@json_option
def status(sweep: str | None, storage: Path, as_json: bool) -> None:
    """Say what is done, running, failed and missing.

    Reports on one SWEEP, or on all that are in the storage.

    \b
    Examples:
      cbp-ray status
      cbp-ray status fig6 --storage /data/cbp
    """
    raise _not_built("there are no sweeps to report on")


@cli.command()
@json_option
def figures(as_json: bool) -> None:
    """List the figures of the paper and their claims.

    Says of each figure whether `cbp-ray reproduce` can run it in this version. --json has everything known of a
    figure, also what is compared and the settings swept.

    \b
    Examples:
      cbp-ray figures
      cbp-ray figures --json
    """
    if as_json:
        click.echo(json.dumps([asdict(figure) for figure in FIGURES.values()], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "problem", "what it shows, and the claim to check", "available", show_lines=True)
    for figure in FIGURES.values():
        contents = f"{figure.title}\n{figure.claim}"
        table.add_row(figure.key, figure.problem, contents, "yes" if figure.available else "no")
    Console().print(table)


@cli.command()
@config_argument
@click.option("--address", metavar="URL", required=True, help="Job server of the cluster, http://HOST:8265.")
@click.option("--wait", is_flag=True, help="Follow the job's log until it ends, and exit with its result.")
def submit(config: Path, address: str, wait: bool) -> None:
    """Run the sweep of a config file as a Ray job on a cluster.

    Does what `cbp-ray run` does, there instead of here, and prints the job's id.

    \b
    Examples:
      cbp-ray submit sweep.yaml --address http://head:8265
      cbp-ray submit sweep.yaml --address http://head:8265 --wait
    """
    raise _not_built("there are no sweeps to submit")


@cli.command()
@click.argument("dataset", type=Choice(["mnist"]))
@click.option(
    "--dir",
    "directory",
    metavar="D",
    type=click.Path(file_okay=False, path_type=Path),
    default="data",
    show_default=True,
    help="Where to put it.",
)
def data(dataset: str, directory: Path) -> None:
    """Bring a data set to this machine.

    Puts it in the layout of torchvision.datasets, and checks it.

    \b
    Examples:
      cbp-ray data mnist
      cbp-ray data mnist --dir /data/mnist
    """
    raise _not_built("use torchvision.datasets.MNIST with download=True")


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
    if importlib.util.find_spec(BENCHMARKS[name]) is None:
        built = [other for other, module in BENCHMARKS.items() if importlib.util.find_spec(module)]
        raise _not_built(f"benchmarks that are: {', '.join(built) or 'none'}")
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
