"""Findings on paper: claims as JSON and Markdown, and the page of results."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cbp_ray.figures.claims import CellFinding, Finding, Verdict
from cbp_ray.figures.registry import Figure
from cbp_ray.figures.tables import markdown_table, to_markdown

WORDS = {Verdict.HOLDS: "hold", Verdict.FAILS: "fail", Verdict.UNDECIDED: "are undecided"}
MARKS = {Verdict.HOLDS: "holds", Verdict.FAILS: "**fails**", Verdict.UNDECIDED: "undecided"}


def claims_json(findings: Iterable[Finding]) -> str:
    """All there is to know of the findings."""
    return json.dumps([finding.as_dict() for finding in findings], indent=2, ensure_ascii=False) + "\n"


def claims_markdown(findings: Sequence[Finding]) -> str:
    """A table of the claims, then every comparison of each."""
    text = summary_table(findings)
    for finding in findings:
        text += f"\n### {finding.key}: {finding.verdict}\n\n> {finding.quote}\n\n{finding.definition}\n\n"
        text += cells_table(finding)
    return text


def summary_table(findings: Iterable[Finding]) -> str:
    """One line per claim."""
    rows = [[f.key, f.quote, MARKS[f.verdict], decisive_text(f)] for f in findings]
    return markdown_table(["claim", "the paper", "verdict", "decisive comparison"], rows)


def decisive_text(finding: Finding) -> str:
    """The comparison on which the verdict hangs."""
    cell = finding.decisive
    against = sum(cell.verdict is not Verdict.HOLDS for cell in finding.cells)
    count = f" ({against} of {len(finding.cells)} do not hold)" if against else f" (the closest of {len(finding.cells)})"
    return f"{cell.name}: {_number(cell.estimate)} {interval_text(cell)}{count if len(finding.cells) > 1 else ''}"


def interval_text(cell: CellFinding) -> str:
    """In brackets."""
    return f"[{_number(cell.low)}, {_number(cell.high)}]"


def _number(value: float) -> str:
    return f"{value:+.3f}"


@dataclass(frozen=True)
class Section:
    """What the page of results says of one figure."""

    figure: Figure
    findings: list[Finding]
    rows: list[dict[str, Any]]
    """Of `tables.settings_table`."""
    about: str
    """How it was made."""


def results_part(introduction: str, sections: Sequence[Section]) -> str:
    """Part of the page of results: all claims first, then figure by figure."""
    findings = [finding for section in sections for finding in section.findings]
    text = f"{introduction.strip()}\n\n### Claims\n\n{_counts(findings)}\n\n{summary_table(findings)}"
    for section in sections:
        text += _section(section)
    return text


def verdicts_part(findings: Sequence[Finding]) -> str:
    """The claims for a page that has no room for numbers."""
    rows = [[f.key, f.quote, MARKS[f.verdict]] for f in findings]
    return f"{_counts(findings)}\n\n{markdown_table(['claim', 'the paper', 'our runs'], rows)}"


def _counts(findings: Sequence[Finding]) -> str:
    counts = {verdict: sum(f.verdict is verdict for f in findings) for verdict in Verdict}
    return f"Of {len(findings)} claims, " + ", ".join(f"{counts[verdict]} {WORDS[verdict]}" for verdict in Verdict) + "."


def _section(section: Section) -> str:
    figure = section.figure
    number = figure.key.removeprefix("fig")
    text = f"\n### Figure {number}: {figure.title}\n\n![Figure {number}](figures/{figure.key}.png)\n\n"
    text += f"{figure.what}. {section.about}\n"
    best = [row for row in section.rows if row["best"]]
    # What is the same in all rows stands in the text above.
    told = [name for name in best[0] if len({str(row[name]) for row in best}) > 1]
    numbers = to_markdown([{name: row[name] for name in told} for row in best])
    text += _folded(f"Numbers of the best settings (<code>data/{figure.key}.csv</code> has all settings)", numbers)
    for finding in section.findings:
        text += f'\n**{finding.key}: {finding.verdict}.** "{finding.quote}" {finding.definition}\n'
        text += _folded(f"{decisive_text(finding)}", cells_table(finding))
    return text


def cells_table(finding: Finding) -> str:
    """Every comparison of a claim."""
    rows = [[cell.name, _number(cell.estimate), interval_text(cell), MARKS[cell.verdict]] for cell in finding.cells]
    return markdown_table(["comparison", "value", f"{finding.level:.2%} interval", "verdict"], rows)


def _folded(summary: str, text: str) -> str:
    return f"\n<details><summary>{summary}</summary>\n\n{text}\n</details>\n"
