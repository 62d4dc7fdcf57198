"""`cbp-ray reproduce rivals` and `cbp-ray plot rivals`: the comparison of methods, on one stream or on all."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cbp_ray.cli import options
from cbp_ray.cli.sweeps import run_and_show
from cbp_ray.cli.verdicts import conclude, say_failed
from cbp_ray.figures.rivals.streams import STREAMS, Stream

if TYPE_CHECKING:
    from cbp_ray.figures.claims import Finding
    from cbp_ray.figures.rivals.comparison import Chosen
    from cbp_ray.sweeps import Sweep

RIVALS = {"rivals": list(STREAMS.values()), **{f"rivals-{key}": [stream] for key, stream in STREAMS.items()}}
"""What may be asked for, and the streams of each."""


def reproduce_rivals(name: str, scale: str, storage: str, output: str | None, address: str | None) -> int:
    """Runs both stages of every stream, draws and judges. Returns the exit code."""
    from cbp_ray.figures.provenance import Reproduction
    from cbp_ray.figures.rivals.comparison import choose, load_stream

    storage = options.check_storage(storage)
    directory = options.directory_of(storage, output, scale)
    options.check_writable(directory, "--output")
    findings: list[Finding] = []
    for stream in RIVALS[name]:
        begun = time.monotonic()
        sweep = load_stream(stream, scale)
        outcomes = [run_and_show(sweep, storage, address)]
        if not outcomes[0].failed:
            chosen = choose(stream, sweep, storage)
            for stage in _second_stages(stream, sweep, chosen):
                words = f"{len(stage.configurations)} settings of {len(sweep.configurations)}"
                click.echo(f"{stream.title}: {words} are chosen; now on fresh seeds", err=True)
                outcomes.append(run_and_show(stage, storage, address))
        if any(outcome.failed for outcome in outcomes):
            return say_failed(storage)
        command = f"cbp-ray reproduce {name}" + ("" if scale == "paper" else f" --scale {scale}")
        Reproduction.of(command, [stream.name], scale, outcomes, begun).append_to(directory)
        findings += _write(stream, sweep, chosen, storage, directory, None)
    return conclude(findings, name, directory)


def plot_rivals(name: str, scale: str, storage: str, output: str | None, docs: Path | None) -> int:
    """Draws and judges from what is stored. Returns the exit code."""
    from cbp_ray.figures.rivals.comparison import choose, load_stream

    storage = options.check_storage(storage, writes=False)
    directory = options.directory_of(storage, output, scale)
    findings: list[Finding] = []
    for stream in RIVALS[name]:
        sweep = load_stream(stream, scale)
        chosen = choose(stream, sweep, storage)
        options.check_writable(directory, "--output")
        findings += _write(stream, sweep, chosen, storage, directory, docs)
    return conclude(findings, name, directory)


def _second_stages(stream: Stream, sweep: "Sweep", chosen: "Sequence[Chosen]") -> "Iterator[Sweep]":
    from cbp_ray.figures.rivals.comparison import second_stage

    for examples in stream.stage(sweep.scale).lengths:
        yield second_stage(stream, sweep, chosen, examples)


def _write(
    stream: Stream,
    sweep: "Sweep",
    chosen: "Sequence[Chosen]",
    storage: str,
    directory: Path,
    docs: Path | None,
) -> "tuple[Finding, ...]":
    from cbp_ray.figures.rivals.comparison import Report
    from cbp_ray.figures.rivals.page import write_documentation, write_reports

    reports = [Report(stream, chosen, stage, storage) for stage in _second_stages(stream, sweep, chosen)]
    written = write_reports(reports, directory)
    click.echo("\n".join(map(str, written.paths)))
    if docs is not None:
        click.echo(str(write_documentation(stream, written, docs)))
    return written.findings
