"""What commands about figures say at their end: which trials failed, and which claims hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cbp_ray.cli.display import print_table
from cbp_ray.figures.registry import GROUPS

if TYPE_CHECKING:
    from cbp_ray.figures.claims import Finding


def say_failed(storage: str) -> int:
    """Says where to look. Returns the exit code."""
    click.echo(f"trials failed, see: cbp-ray status --failed --storage {storage}", err=True)
    return 1


def conclude(findings: "Sequence[Finding]", name: str, directory: Path) -> int:
    """Writes and prints all claims together. Returns the exit code."""
    from rich.table import Table

    from cbp_ray.figures.claims import LEAST_RUNS, Verdict
    from cbp_ray.figures.markdown import WORDS, claims_json, claims_markdown, decisive_text

    if name in GROUPS:
        (directory / f"{name}_claims.json").write_text(claims_json(findings), encoding="utf-8")
        (directory / f"{name}_claims.md").write_text(f"# Claims: {name}\n\n{claims_markdown(findings)}", encoding="utf-8")
    if not findings:
        click.echo(f"Figures and tables are in {directory}")
        return 0
    colours = {Verdict.HOLDS: "green", Verdict.FAILS: "bold red", Verdict.UNDECIDED: "yellow"}
    table = Table("claim", "the paper says", "verdict", "decisive comparison [interval]", show_lines=True)
    for finding in findings:
        verdict = f"[{colours[finding.verdict]}]{finding.verdict}[/]"
        table.add_row(finding.key, finding.quote, verdict, decisive_text(finding).replace("[", r"\["))
    print_table(table)
    counts = {verdict: sum(finding.verdict is verdict for finding in findings) for verdict in Verdict}
    words = ", ".join(f"{count} {WORDS[verdict]}" for verdict, count in counts.items() if count)
    click.echo(f"Of {len(findings)} claims, {words}.")
    if any(finding.runs < LEAST_RUNS for finding in findings):
        click.echo(f"Nothing is decided with fewer than {LEAST_RUNS} runs per setting.")
    click.echo(f"Figures, tables and claims are in {directory}")
    return 1 if counts[Verdict.FAILS] else 0
