"""What the comparison leaves behind: tables, drawings, verdicts, and one page with all of them."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cbp_ray.figures import markdown, statistics, tables
from cbp_ray.figures.claims import LEVEL, Claim, Finding, evaluate
from cbp_ray.figures.documentation import replace_part
from cbp_ray.figures.provenance import told
from cbp_ray.figures.rivals.claims import claims_of
from cbp_ray.figures.rivals.comparison import EDGE, Place, Report
from cbp_ray.figures.rivals.drawings import draw_curves, draw_totals
from cbp_ray.figures.rivals.streams import Stream

COLUMNS = "| competitor | best setting | {} (95%) | late | rise | rank (95%) | better than BP | cost |\n" + "|---" * 8 + "|"
MOST = 100.0
"""A larger rise is one of runs that diverged."""


@dataclass(frozen=True)
class Written:
    """The files of a stream, and its verdicts."""

    paths: tuple[Path, ...]
    findings: tuple[Finding, ...]
    text: str
    """The page without its title, with pictures in the same folder."""


def write_reports(reports: Sequence[Report], directory: Path) -> Written:
    """Draws and judges one stream, given a report for each length of its runs.

    Writes `rivals_<stream>.md` and `_claims.json`, and `rivals_<stream>_<examples>.csv`, `_totals` and `_curves` as .png and
    .pdf for each length. Claims are judged by the first.
    """
    directory.mkdir(parents=True, exist_ok=True)
    stream, first = reports[0].stream, reports[0]
    findings = tuple(finding for claim in claims_of(stream) if (finding := _judge(claim, first)) is not None)
    grid, seeds = next(iter(first.chosen.values())).swept[0].curves.seeds, next(iter(first.found.values())).curves.seeds
    parts = [
        f"{stream.what} Settings are chosen on seeds {grid[0]} to {grid[-1]}, and reported on {seeds[0]} to {seeds[-1]}.\n",
        told(directory, [stream.name]) + "\n",
    ]
    paths = []
    for report in reports:
        kinds = {str(kind): report.places(kind) for kind in report.kinds}
        name = f"{stream.name}_{report.examples}"
        draw_totals(kinds, directory / f"{name}_totals")
        draw_curves(kinds, directory / f"{name}_curves")
        table = directory / f"{name}.csv"
        table.write_text(tables.to_csv([place.row for places in kinds.values() for place in places]), encoding="utf-8")
        paths += [table, *(directory / f"{name}_{what}.{kind}" for what in ("totals", "curves") for kind in ("png", "pdf"))]
        parts += _report(report, kinds, name)
    parts += ["### Claims of other papers\n", markdown.claims_markdown(list(findings))]
    text = "\n".join(parts)
    page, claims = directory / f"{stream.name}.md", directory / f"{stream.name}_claims.json"
    page.write_text(f"## {stream.title}\n\n{text}", encoding="utf-8")
    claims.write_text(markdown.claims_json(list(findings)), encoding="utf-8")
    return Written((page, claims, *paths), findings, text)


def write_documentation(stream: Stream, written: Written, docs: Path) -> Path:
    """Puts what was written of a stream into `rivals.md`, `figures/` and `data/` of a folder of documentation."""
    for path in written.paths:
        folder = {".png": docs / "figures", ".csv": docs / "data", ".json": docs / "data"}.get(path.suffix)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / path.name)
    page = docs / "rivals.md"
    text = written.text.replace("](rivals_", "](figures/rivals_")
    replace_part(page, stream.name, f"## {stream.title}\n\n{text}", title="# Rivals\n")
    return page


def _judge(claim: Claim, report: Report) -> Finding | None:
    """The verdict on a claim; None if its competitors are not there."""
    return evaluate(claim, report) if list(claim.cells(report)) else None


def _report(report: Report, kinds: dict[str, list[Place]], name: str) -> list[str]:
    """The part of a page about runs of one length."""
    first = next(iter(kinds.values()))[0]
    label = "squared error" if first.performance == "error" else "accuracy"
    adjusted = " (both divided by the linear tracker's)" if report.stream.adjusts else ""
    parts = [
        f"### Runs of {report.examples:,} examples\n",
        f"{report.settings.runs} runs of each competitor at the best of its grid, on the same data. {label.capitalize()} per "
        f"example over the whole run, with 95% intervals from resampled runs; the same at the end; how far the error "
        f"rises above its low point{adjusted}; rank; the share of its settings that are better than Backprop's best; and time "
        f"per example against Backprop. {EDGE} marks a value at the end of its grid: beyond it there may be a better one.\n",
        f"![{label} of all competitors]({name}_totals.png)\n",
        f"![Learning curves of the best]({name}_curves.png)\n",
    ]
    if len(kinds) > 1:
        parts += [
            "**All kinds.** Total error of each competitor over the least of its kind, and the geometric mean of these ratios: "
            "whoever takes one method for all of them loses least with the first.\n",
            _across(report) + "\n",
        ]
    for kind, places in kinds.items():
        table = "\n".join([COLUMNS.format(label), *(_line(place) for place in places)])
        parts += [f"**{kind}.** {_sentence(report, places)}\n", f"{table}\n"]
    return parts


def _across(report: Report) -> str:
    """The table of competitors in all kinds."""
    titles = ["competitor", *map(str, report.kinds), "mean"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for group, ratios, mean in report.across_kinds():
        values = " | ".join(f"{ratio:.2f}" if ratio < MOST else "diverged" for ratio in (*ratios, mean))
        lines.append(f"| {group} | {values} |")
    return "\n".join(lines)


def _line(place: Place) -> str:
    rank = "–" if place.rank is None else f"{place.rank[0]} ({place.rank[1]}–{place.rank[2]})"
    mean, *ends, late = (value if place.performance == "error" else 1 - value for value in (*place.total, place.late))
    low, high = sorted(ends)
    # A run that diverges counts as an error of a million.
    rise = f"{place.rise:+.1%}" if place.rise < MOST else f"diverged in {place.row['diverged']} runs"
    return (
        f"| {place.chosen.group} | {place.row['setting']} | {mean:.4g} ({low:.4g}–{high:.4g}) | {late:.4g} "
        f"| {rise} | {rank} | {place.share:.0%} | {place.cost:.2f} |"
    )


def _sentence(report: Report, places: Sequence[Place]) -> str:
    """Who wins, and who can't be told from the winner: the interval of the ratio of both, run by run, includes 1."""
    ranked = [place for place in places if place.rank is not None]
    first = ranked[0].chosen
    least, level = report.total_of(first.kind, first.group), []
    for place in ranked[1:]:
        ratio = report.total_of(first.kind, place.chosen.group) / least - 1
        if statistics.interval(ratio, LEVEL, report.settings.runs)[0] <= 0:
            level.append(place.chosen.group)
    rest = f"; it can't be told from {', '.join(level)}" if level else "; all others have more"
    return f"{first.group} has the least error{rest}."
