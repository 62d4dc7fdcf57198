"""A second look with more runs: of the settings that open comparisons read and no others, and those alone are judged anew."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_results import setting, store_made_up, world

from cbp_ray.cli import main
from cbp_ray.figures import decisions
from cbp_ray.figures.bit_flipping import comparisons
from cbp_ray.figures.claims import Claim, Evidence, Verdict, evaluate
from cbp_ray.figures.decisions import look_again, settings_read, undecided
from cbp_ray.figures.provenance import reproductions
from cbp_ray.figures.registry import FIGURES
from cbp_ray.figures.reproduce import load_figure
from cbp_ray.figures.results import Settings

CLAIMS = [claim for figure in FIGURES.values() for claim in figure.claims]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_a_comparison_reads_no_other_settings_than_those_noted(claim: Claim) -> None:
    settings = list(world(claim.figure, as_in_the_paper=True, runs=6))
    read = settings_read(claim, Settings(settings))
    before = [cell.statistic[0] for cell in claim.cells(Evidence(Settings(settings), resamples=1))]
    assert len(read) == len(before) and all(read)
    for number, noted in enumerate(read):
        # The others get runs that are upside down; which of them is the best stays as it was.
        changed = [
            decisions._Watched(one.config, one.curves if k in noted else _upside_down(one), one)
            for k, one in enumerate(settings)
        ]
        after = list(claim.cells(Evidence(Settings(changed), resamples=1)))
        assert after[number].statistic[0] == before[number]


def _upside_down(one):
    metrics = {name: 1 / (1e-3 + np.abs(values[:, ::-1])) for name, values in one.curves.metrics.items()}
    return replace(one.curves, metrics=metrics)


def noisy(runs: int, bins: int = 50) -> Settings:
    """Backprop rises by a little more than 5% with tanh, and by much with ReLU; the noise of 40 runs hides the little."""
    common = {"runs": runs, "noise": 0.4}
    return Settings(
        [
            setting(1.2, 1.2, algorithm={"name": "linear"}, runs=runs, noise=0.0),
            setting(0.8, 0.88, seed=3, **common),
            setting(0.8, 1.5, activation="relu", seed=2, **common),
            setting(0.7, 0.7, activation="elu", seed=4, **common),
        ]
    )


def test_more_runs_decide_and_what_was_decided_stays() -> None:
    claim = Claim("fig0.test", "quote", "definition", comparisons.backprop_rises(["tanh", "relu"], [0.01]))
    first, many = noisy(40), noisy(4_000)
    finding = evaluate(claim, Evidence(first))
    assert [cell.verdict for cell in finding.cells] == [Verdict.UNDECIDED, Verdict.HOLDS]
    assert finding.cells[0].needed is not None and finding.cells[0].needed > 40 and finding.cells[1].needed is None
    (left,) = undecided([claim], [finding], first)
    # Of the first cell: the linear tracker and tanh.
    assert left.cells == (0,) and left.settings == {0, 1}
    more = {one.config.model_dump_json(): one.curves for number, one in enumerate(many) if number in left.settings}
    again = look_again(left, first, more)
    assert [cell.runs for cell in again.cells] == [4_000, 40] and again.runs == 40
    assert again.cells[1] == finding.cells[1]
    assert again.cells[0].verdict is not Verdict.UNDECIDED
    exact = evaluate(claim, Evidence(many)).cells[0]
    assert again.cells[0] == exact


def test_the_best_is_that_of_the_first_runs() -> None:
    def world_of(runs: int, better: float) -> Settings:
        rates = [setting(0.7, 0.7 * k, algorithm={"name": "cbp", "replacement_rate": r}, runs=runs, noise=0.4, seed=1)
                 for k, r in ((1.12, 1e-4), (better, 1e-3))]  # fmt: skip
        return Settings([setting(1.2, 1.2, algorithm={"name": "linear"}, runs=runs, noise=0.0), *rates])

    claim = Claim("fig0.test", "quote", "definition", comparisons.stability(["cbp"], ["tanh"], stable=True))
    first = world_of(40, 1.4)
    assert first.best(algorithm="cbp").parameter == 1e-4
    (left,) = undecided([claim], [evaluate(claim, Evidence(first))], first) or pytest.fail("decided")
    assert left.settings == {0, 1}
    more = {one.config.model_dump_json(): one.curves for one in world_of(400, 0.5)}
    assert look_again(left, first, more).cells[0].runs == 400


def test_the_command_runs_what_is_missing_and_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = load_figure(FIGURES["fig3"], "smoke")
    lasts = [0.9] * len(sweep.configurations)
    store_made_up(sweep, tmp_path, lasts)
    arguments = ["fig3", "--scale", "smoke", "--storage", str(tmp_path), "--decide", "20"]
    assert main(["plot", *arguments]) == 2
    assert "run the sweep first" in capsys.readouterr().err
    store_made_up(replace(sweep, seeds=tuple(range(20))), tmp_path, lasts, seeds=range(4, 20))
    assert main(["reproduce", *arguments]) in (0, 1)
    claims = json.loads((tmp_path / "figures" / "smoke" / "fig3_claims.json").read_text())
    assert {cell["runs"] for claim in claims for cell in claim["cells"]} == {20}
    assert reproductions(tmp_path / "figures" / "smoke")[-1].command == "cbp-ray reproduce fig3 --scale smoke --decide 20"
    assert main(["plot", *arguments]) in (0, 1)
    assert main(["plot", "nowhere.yaml", "--decide", "20"]) == 2
    assert main(["reproduce", "rivals", "--decide", "20"]) == 2
