"""What other papers say of the methods, as claims that can fail."""

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from cbp_ray.figures.claims import Cell, Claim, Evidence, comparison
from cbp_ray.figures.results import Settings
from cbp_ray.figures.rivals.comparison import OUTSIDE, Report
from cbp_ray.figures.rivals.streams import Stream

SINGLE_STRENGTH = 1e-2


@comparison
def beats(evidence: Evidence, winner: str, losers: Iterable[str]) -> Iterable[Cell]:
    """Total error of one competitor below that of others, in every kind."""
    report = cast(Report, evidence)
    for kind in report.kinds:
        for loser in losers:
            if report.has(kind, winner, loser):
                ratio = report.total_of(kind, winner) / report.total_of(kind, loser)
                yield Cell(f"{kind}: {winner} against {loser}", 1 - ratio)


@comparison
def gains_less_with_layer_norm(evidence: Evidence, pairs: dict[str, str]) -> Iterable[Cell]:
    """What a method gains over Backprop is less where both have layer norm."""
    report = cast(Report, evidence)
    for kind in report.kinds:
        for plain, normalized in pairs.items():
            if report.has(kind, plain, normalized, "bp", "layer_norm"):
                without = 1 - report.total_of(kind, plain) / report.total_of(kind, "bp")
                with_norm = 1 - report.total_of(kind, normalized) / report.total_of(kind, "layer_norm")
                yield Cell(f"{kind}: {plain}", without - with_norm)


@comparison
def single_strength_is_best(evidence: Evidence) -> Iterable[Cell]:
    """L2-Init's strength of 1e-2 has the least total error of all strengths, each at its best step size, in the first stage."""
    report = cast(Report, evidence)
    for (kind, group), chosen in report.chosen.items():
        if group != "l2_init":
            continue
        first_stage = Evidence(Settings(chosen.swept))
        strengths = sorted({float(setting.parameter) for setting in chosen.swept})
        totals = {strength: first_stage.least(parameter=strength) for strength in strengths}
        if SINGLE_STRENGTH not in totals:
            continue
        own = totals.pop(SINGLE_STRENGTH)
        for strength, total in totals.items():
            yield Cell(f"{kind}: against {strength:g}", 1 - own / total, first_stage.settings.runs)


@comparison
def beats_all(evidence: Evidence, winner: str) -> Iterable[Cell]:
    """Total error of one competitor below those of all that are ranked, but for those that are built on it."""
    report = cast(Report, evidence)
    for kind in report.kinds:
        losers = [group for group in report.groups(kind) if group not in OUTSIDE and not group.endswith(winner)]
        yield from beats(winner, losers)(evidence)


CLAIMS = (
    Claim(
        "rivals.swr-small-networks",
        "Selective weight reinitialization maintains plasticity better than unit-wise reinitialization in small networks "
        "(Hernandez-Garcia et al. 2025).",
        "Total error of SWR below those of CBP and ReDo, each at its best setting, in every kind. Value: 1 - ratio.",
        beats("swr", ("cbp", "redo")),
    ),
    Claim(
        "rivals.swr-layer-norm",
        "The same holds in networks with layer normalization (Hernandez-Garcia et al. 2025).",
        "As before, all three with layer norm. Value: 1 - ratio.",
        beats("swr_layer_norm", ("cbp_layer_norm", "redo_layer_norm")),
    ),
    Claim(
        "rivals.units-lose-with-layer-norm",
        "Reinitializing units is less effective in networks with layer normalization (Hernandez-Garcia et al. 2025).",
        "1 - total error / Backprop's, for CBP and ReDo: larger without layer norm than with. Value: the difference.",
        gains_less_with_layer_norm({"cbp": "cbp_layer_norm", "redo": "redo_layer_norm"}),
    ),
    Claim(
        "rivals.l2-init-single-strength",
        "A single value of 1e-2 achieves the best performance across problems (Kumar et al. 2023, of L2 Init).",
        "In the first stage, total error at strength 1e-2 below that at others, each at its best step size. Value: 1 - ratio.",
        single_strength_is_best(),
    ),
    Claim(
        "rivals.upgd-protects",
        "UPGD's protecting form performs better than the non-protecting one (Elsayed and Mahmood 2024, on their own streams).",
        "Total error of the protecting form below that of the other, each at its best setting. Value: 1 - ratio.",
        beats("upgd", ("upgd_unprotected",)),
    ),
    Claim(
        "rivals.input-norm",
        "Plain SGD with inputs normalised by running averages does better than every method, on permuted inputs (a third "
        "party's study of UPGD's protocol).",
        "Total error of Backprop with normalised inputs below that of every competitor without. Value: 1 - ratio.",
        beats_all("input_norm"),
    ),
)
"""Their sentences in our words, where only a summary was read."""


def claims_of(stream: Stream) -> list[Claim]:
    """The claims under the stream's name."""
    return [replace(claim, key=claim.key.replace("rivals", stream.name, 1)) for claim in CLAIMS]
