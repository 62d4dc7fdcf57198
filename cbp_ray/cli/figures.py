"""The commands about the paper's figures: `reproduce`, `plot`, `figures`."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cbp_ray.cli import options
from cbp_ray.cli.display import span
from cbp_ray.cli.errors import Choice
from cbp_ray.cli.options import address_option, json_option, scale_option, storage_option
from cbp_ray.cli.rivals import RIVALS, plot_rivals, reproduce_rivals
from cbp_ray.cli.sweeps import run_and_show
from cbp_ray.cli.verdicts import conclude, say_failed
from cbp_ray.errors import InputError
from cbp_ray.figures.figure import Figure
from cbp_ray.figures.registry import FIGURES, GROUPS, chosen

if TYPE_CHECKING:
    from cbp_ray.figures.reproduce import Product
    from cbp_ray.sweeps import Sweep

LONG_SECONDS = 86_400
"""CPU time above which the smaller scale is pointed out."""


class FigureOrFile(Choice):
    """A figure of the paper, or a sweep file of one's own."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if str(value).endswith((".yaml", ".yml")):
            if not Path(value).is_file():
                self.fail(f"must be a figure or a sweep file that exists, got {str(value)!r}", param, ctx)
            return str(value)
        return super().convert(value, param, ctx)


output_option = click.option(
    "--output", metavar="FOLDER", help="Where figures, tables and claims go, in a folder per scale; DIR/figures without it."
)


decide_option = click.option(
    "--decide",
    metavar="N",
    type=click.IntRange(min=1),
    help="Look again at comparisons that are undecided, with N runs of the settings that they read (seeds 0 to N - 1).",
)


@click.command()
@click.argument("figure", metavar="FIG", type=Choice([*FIGURES, *GROUPS, *RIVALS]))
@scale_option
@storage_option
@output_option
@address_option
@decide_option
def reproduce(figure: str, scale: str, storage: str, output: str | None, address: str | None, decide: int | None) -> int:
    """Run the sweeps of a figure, draw it and check its claims.

    FIG is a key listed by `cbp-ray figures`, the name of a problem, `all`, `plain-norm` (figures 6 and 19 with an
    OnlineNorm without scale and bias), `slippery-ant-long` (one long run each of PPO and Continual PPO), or `rivals`:
    every method with a grid of its own, the best of each on fresh seeds, and claims of other papers, on three streams
    (`rivals-bit-flipping`, `rivals-permuted-mnist` and `rivals-upgd` are one each). Writes PNG, PDF, tables and the
    verdict on each claim to DIR/figures/SCALE, or to FOLDER/SCALE; exits with 1 if a claim fails.
    Runs that are stored already are not repeated: interrupt it at any time, and start it again.

    \b
    Examples:
      cbp-ray reproduce fig6
      cbp-ray reproduce bit-flipping
      cbp-ray reproduce permuted-mnist --scale laptop
      cbp-ray reproduce all --scale smoke --storage /tmp/try
      cbp-ray reproduce bit-flipping --decide 1000
      cbp-ray reproduce rivals-bit-flipping
      cbp-ray reproduce fig6 --storage s3://bucket/cbp --output figures
    """
    if figure in RIVALS:
        if decide is not None:
            raise InputError(f"--decide: is for figures of the paper, got it with {figure!r}; leave it out")
        return reproduce_rivals(figure, scale, storage, output, address)
    figures = chosen(figure)
    from cbp_ray.figures.provenance import Reproduction
    from cbp_ray.figures.reproduce import load_figure
    from cbp_ray.sweeps.sweep import join

    begun = time.monotonic()
    storage = options.check_storage(storage)
    directory = options.directory_of(storage, output, scale)
    options.check_writable(directory, "--output")
    sweeps = [load_figure(f, scale) for f in figures]
    if scale == "paper":
        _say_if_long(figures)
    outcomes = [run_and_show(sweep, storage, address) for sweep in join(sweeps, figure)]
    if any(outcome.failed for outcome in outcomes):
        return say_failed(storage)
    if decide is not None:
        from cbp_ray.figures.decisions import further_sweeps
        from cbp_ray.figures.reproduce import read_settings

        further = further_sweeps(figures, sweeps, [read_settings(sweep, storage) for sweep in sweeps], decide)
        for sweep in join([sweep for sweep in further if sweep is not None], f"{figure}-decide"):
            click.echo(f"undecided: {decide:,} runs of {len(sweep.configurations)} settings", err=True)
            outcomes.append(run_and_show(sweep, storage, address))
        if any(outcome.failed for outcome in outcomes):
            return say_failed(storage)
    products = _produce(figures, sweeps, storage, directory, decide)
    findings = [finding for product in products for finding in product.findings]
    command = f"cbp-ray reproduce {figure}" + ("" if scale == "paper" else f" --scale {scale}")
    command += "" if decide is None else f" --decide {decide}"
    Reproduction.of(command, [f.key for f in figures], scale, outcomes, begun).append_to(directory)
    return conclude(findings, figure, directory)


@click.command()
@click.argument("figure", metavar="FIG|CONFIG.yaml", type=FigureOrFile([*FIGURES, *GROUPS, *RIVALS]))
@scale_option
@storage_option
@output_option
@decide_option
@click.option(
    "--docs",
    metavar="DOCS",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write results.md, figures and numbers to this folder.",
)
def plot(figure: str, scale: str, storage: str, output: str | None, decide: int | None, docs: Path | None) -> int:
    """Draw a figure, or any sweep, from stored results, without running anything.

    For a figure of the paper, or rivals, writes the same files as `cbp-ray reproduce`, and exits with 1 if a claim fails. For a
    sweep file, draws a learning curve of each configuration, and writes the numbers beside it; of a sweep that is not
    complete, what is stored and what runs so far.

    \b
    Examples:
      cbp-ray plot fig6
      cbp-ray plot bit-flipping --docs docs
      cbp-ray plot all --storage /data/cbp
      cbp-ray plot sweep.yaml
    """
    if figure in RIVALS:
        if decide is not None:
            raise InputError(f"--decide: is for figures of the paper, got it with {figure!r}; leave it out")
        return plot_rivals(figure, scale, storage, output, docs)
    if figure not in FIGURES and figure not in GROUPS:
        if docs is not None:
            raise InputError(f"--docs: is for figures of the paper, got it with {figure!r}; use --output")
        if decide is not None:
            raise InputError(f"--decide: is for figures of the paper, got it with {figure!r}; leave it out")
        return _plot_sweep(Path(figure), scale, storage, output)
    figures = chosen(figure)
    from cbp_ray.figures.reproduce import load_figure

    storage = options.check_storage(storage, writes=False)
    directory = options.directory_of(storage, output, scale)
    sweeps = [load_figure(f, scale) for f in figures]
    products = _produce(figures, sweeps, storage, directory, decide)
    if docs is not None:
        from cbp_ray.figures.documentation import write_documentation

        problems = dict.fromkeys(f.problem for f in figures)
        for problem in problems:
            # The page of results has a part for one name, or one per problem for all figures together.
            own = [k for k, f in enumerate(figures) if f.problem == problem]
            name = problem if len(problems) > 1 else figure
            write_documentation(name, [products[k] for k in own], [sweeps[k] for k in own], storage, directory, docs)
    return conclude([finding for product in products for finding in product.findings], figure, directory)


def _plot_sweep(config: Path, scale: str, storage: str, output: str | None) -> int:
    from cbp_ray.figures.sweep_curves import draw_sweep, read_sweep, say_missing, sweep_table
    from cbp_ray.results import Store
    from cbp_ray.sweeps import load_sweep

    storage = options.check_storage(storage, writes=False)
    directory = options.directory_of(storage, output, scale)
    sweep = load_sweep(config, scale=scale)
    drawn = read_sweep(sweep, Store(storage, sweep.name))
    options.check_writable(directory, "--output")
    path = directory / sweep.source
    draw_sweep(sweep, drawn, path)
    path.with_name(f"{path.name}.csv").write_text(sweep_table(drawn), encoding="utf-8")
    if missing := say_missing(sweep, drawn):
        click.echo(missing)
    click.echo(f"{path}.png, .pdf and .csv")
    return 0


@click.command()
@scale_option
@json_option
def figures(scale: str, as_json: bool) -> None:
    """List the figures of the paper, their claims and what they cost.

    Says of each figure how many runs it takes and about how long they last on one core. Runs that figures share are
    counted for each. --json has everything known of a figure, also what is compared and the settings swept.

    \b
    Examples:
      cbp-ray figures
      cbp-ray figures --scale laptop
      cbp-ray figures --json
    """
    from cbp_ray.figures.reproduce import estimate

    costs = {f.key: estimate([f], scale) for f in FIGURES.values()}
    if as_json:
        listed = [{**f.as_dict(), "cost": asdict(costs[f.key])} for f in FIGURES.values()]
        return click.echo(json.dumps(listed, indent=2))
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "problem", "what it shows, and the claim to check", "runs", "CPU time", show_lines=True)
    for figure in FIGURES.values():
        cost, told = costs[figure.key], f"{figure.title}\n{figure.claim}"
        table.add_row(figure.key, figure.problem, told, f"{cost.runs:,}", span(cost.core_seconds))
    Console().print(table)
    together = estimate(list(FIGURES.values()), scale)
    click.echo(f"Together, shared runs once: {together.runs:,} runs, {span(together.core_seconds)} of CPU time.")


def _say_if_long(figures: Sequence[Figure]) -> None:
    from cbp_ray.figures.reproduce import estimate

    paper = estimate(figures, "paper").core_seconds
    if paper > LONG_SECONDS:
        times = f"{span(paper)} of CPU time at the paper's scale, {span(estimate(figures, 'laptop').core_seconds)}"
        click.echo(f"All runs take about {times} with --scale laptop.", err=True)


def _produce(
    figures: Sequence[Figure], sweeps: "Sequence[Sweep]", storage: str, directory: Path, decide: int | None
) -> "list[Product]":
    from cbp_ray.figures.reproduce import check, produce, read_settings, show_in_tensorboard

    # All are read before any is written: what is missing is found out at once.
    settings = [read_settings(sweep, storage) for sweep in sweeps]
    findings = [check(figure, found) for figure, found in zip(figures, settings, strict=True)]
    if decide is not None:
        from cbp_ray.figures.decisions import decided

        findings = decided(figures, sweeps, settings, findings, storage, decide)
    options.check_writable(directory, "--output")
    whole = zip(figures, settings, findings, strict=True)
    products = [produce(figure, found, directory, judged) for figure, found, judged in whole]
    for product, sweep in zip(products, sweeps, strict=True):
        show_in_tensorboard(product, sweep, storage)
    return products
