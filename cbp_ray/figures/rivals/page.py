"""What the comparison leaves behind: tables, drawings, verdicts, and one page with all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cbp_ray.figures import markdown, statistics, tables
from cbp_ray.figures.claims import LEVEL, Claim, Finding, evaluate
from cbp_ray.figures.rivals.claims import CLAIMS
from cbp_ray.figures.rivals.comparison import Place, Report
from cbp_ray.figures.rivals.drawings import draw_curves, draw_totals
from cbp_ray.sweeps.provenance import commit

HEAD = (
    "| competitor | best setting | squared error (95%) | late | rise | rank (95%) | better than BP | cost |\n"
    + "|---" * 8
    + "|"
)


@dataclass(frozen=True)
class Written:
    """The files of a stream, and its verdicts."""

    paths: tuple[Path, ...]
    findings: tuple[Finding, ...]


def write_report(stream: str, report: Report, directory: Path, command: str) -> Written:
    """Draws and judges, and writes `rivals_<stream>.md`, `.csv`, `_claims.json`, `_totals` and `_curves` as .png and .pdf."""
    directory.mkdir(parents=True, exist_ok=True)
    kinds = {str(kind): report.places(kind) for kind in report.kinds}
    name = f"rivals_{stream}"
    draw_totals(kinds, directory / f"{name}_totals")
    draw_curves(kinds, directory / f"{name}_curves")
    findings = tuple(finding for claim in CLAIMS if (finding := _judge(claim, report)) is not None)
    texts = {
        f"{name}.csv": tables.to_csv([place.row for places in kinds.values() for place in places]),
        f"{name}_claims.json": markdown.claims_json(list(findings)),
        f"{name}.md": _page(stream, report, kinds, findings, command),
    }
    for file, text in texts.items():
        (directory / file).write_text(text, encoding="utf-8")
    drawn = [directory / f"{name}_{what}.{kind}" for what in ("totals", "curves") for kind in ("png", "pdf")]
    return Written((*(directory / file for file in texts), *drawn), findings)


def _judge(claim: Claim, report: Report) -> Finding | None:
    """The verdict on a claim; None if its competitors are not there."""
    return evaluate(claim, report) if list(claim.cells(report)) else None


def _page(stream: str, report: Report, kinds: dict[str, list[Place]], findings: Sequence[Finding], command: str) -> str:
    runs, seeds = report.settings.runs, next(iter(report.found.values())).curves.seeds
    grid = next(iter(report.chosen.values())).swept[0].curves.seeds
    parts = [
        f"# Rivals on {stream.replace('_', ' ')}\n",
        f"`{command}`, commit {commit()}. Settings were chosen on seeds {grid[0]} to {grid[-1]}, and are reported on "
        f"{seeds[0]} to {seeds[-1]}.\n",
        f"Each competitor at the best of its grid, which was chosen on other seeds; {runs} runs each, on the same data. "
        "Squared error per example over the whole run, with 95% intervals from resampled runs; late error; how far it rises "
        "above its low point, where both are divided by the linear tracker's; rank; the share of its settings that are better "
        "than Backprop's best; and time per example against Backprop.\n",
    ]
    for kind, places in kinds.items():
        parts += [f"## {kind}\n", "\n".join([HEAD, *(_line(place) for place in places)]) + "\n"]
        parts.append(_sentence(report, places) + "\n")
    parts += ["## Claims of other papers\n", markdown.claims_markdown(list(findings))]
    return "\n".join(parts)


def _line(place: Place) -> str:
    mean, low, high = place.total
    rank = "–" if place.rank is None else f"{place.rank[0]} ({place.rank[1]}–{place.rank[2]})"
    row = place.row
    return (
        f"| {place.chosen.group} | {row['setting']} | {mean:.4g} ({low:.4g}–{high:.4g}) | {place.late:.4g} "
        f"| {place.rise:+.1%} | {rank} | {place.share:.0%} | {place.cost:.2f} |"
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
    return f"**{first.group}** has the least error{rest}."
