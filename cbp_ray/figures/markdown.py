"""Findings and tables as text: claims as JSON, claims and numbers as Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cbp_ray.activations import ACTIVATIONS
from cbp_ray.figures.claims import CellFinding, Finding, Verdict
from cbp_ray.figures.tables import rounded

WORDS = {Verdict.HOLDS: "hold", Verdict.FAILS: "fail", Verdict.UNDECIDED: "are undecided"}
"""Verdicts in a sentence about several claims."""
MARKS = {Verdict.HOLDS: "holds", Verdict.FAILS: "**fails**", Verdict.UNDECIDED: "undecided"}
"""Verdicts in a table."""


def claims_json(findings: Iterable[Finding]) -> str:
    """Everything that is known of the findings."""
    return json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False) + "\n"


def claims_markdown(findings: Sequence[Finding]) -> str:
    """A table of the claims, then every comparison of each."""
    text = claims_table(findings)
    for finding in findings:
        title = f"{finding.key}: {finding.verdict}"
        text += f"\n### {title}\n\n> {finding.quote}\n\n{finding.definition}\n\n{cells_table(finding)}"
    return text


def claims_table(findings: Iterable[Finding]) -> str:
    """A table with one line per claim."""
    rows = [[f.key, f.quote, MARKS[f.verdict], decisive_text(f)] for f in findings]
    return _table(["claim", "the paper", "verdict", "decisive comparison"], rows)


def cells_table(finding: Finding) -> str:
    """A table with one line per comparison of a claim."""
    rows = [[cell.name, _number(cell.estimate), _interval(cell), _verdict(cell)] for cell in finding.cells]
    header = ["comparison", "value", f"{finding.level:.2%} interval", "verdict"]
    if len({cell.runs for cell in finding.cells}) > 1:
        header.append("runs")
        rows = [[*row, f"{cell.runs:,}"] for row, cell in zip(rows, finding.cells, strict=True)]
    return _table(header, rows)


def _verdict(cell: CellFinding) -> str:
    needed = "" if cell.needed is None else f"; about {float(f'{cell.needed:.2g}'):,.0f} runs would tell"
    return MARKS[cell.verdict] + needed


def numbers_table(rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """Rows of `tables.settings_table` for people: columns that say nothing are left out, numbers have four digits.

    Args:
      rows: the rows.
      labels: what each method is called in print.
    """
    columns = [name for name in rows[0] if any(row[name] not in (None, False) and row[name] == row[name] for row in rows)]
    return _table(
        [name.replace("_", " ").removesuffix(" se") + (" ±" if name.endswith("_se") else "") for name in columns],
        [[_value(name, row[name], labels) for name in columns] for row in rows],
    )


def decisive_text(finding: Finding) -> str:
    """The comparison on which the verdict hangs."""
    cell = finding.decisive
    against = sum(cell.verdict is not Verdict.HOLDS for cell in finding.cells)
    count = f" ({against} of {len(finding.cells)} do not hold)" if against else f" (the closest of {len(finding.cells)})"
    return f"{cell.name}: {_number(cell.estimate)} {_interval(cell)}{count if len(finding.cells) > 1 else ''}"


def _interval(cell: CellFinding) -> str:
    return f"[{_number(cell.low)}, {_number(cell.high)}]"


def _number(value: float) -> str:
    return f"{value:+.3f}"


def _value(column: str, value: Any, labels: Mapping[str, str]) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if column == "algorithm":
        return labels[value]
    if column == "activation" and value is not None:
        return ACTIVATIONS[value].label
    return str(rounded(value, 4)).replace("_", " ")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
