"""Claims can hold, fail and stay open, and do so on the curves that they should."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_up_results import curves, setting, world
from scipy.stats import t

from cbp_ray.figures import statistics
from cbp_ray.figures.bit_flipping import comparisons
from cbp_ray.figures.claims import LEAST_RUNS, Cell, Cells, Claim, Evidence, Finding, Verdict, evaluate
from cbp_ray.figures.markdown import claims_json, claims_markdown
from cbp_ray.figures.registry import FIGURES, GROUPS
from cbp_ray.figures.results import Setting, Settings

CLAIMS = [claim for figure in FIGURES.values() for claim in figure.claims]

LINEAR = setting(1.2, 1.2, algorithm={"name": "linear"}, seed=99)
L2 = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
RATES = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2]


def judge(cells: Cells, *settings: Setting) -> Finding:
    return evaluate(Claim("fig0.test", "quote", "definition", cells), Evidence(Settings([LINEAR, *settings])))


def cbp(rate: float, first: float, last: float | None = None, **more: object) -> Setting:
    algorithm = {"name": "cbp", "replacement_rate": rate}
    return setting(first, first if last is None else last, algorithm=algorithm, seed=round(-10 * np.log10(rate)), **more)


def l2(decay: float, first: float, last: float | None = None) -> Setting:
    algorithm = {"name": "l2", "weight_decay": decay}
    return setting(first, first if last is None else last, algorithm=algorithm, seed=round(-7 * np.log10(decay)))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_a_claim_holds_in_a_world_like_the_papers(claim: Claim) -> None:
    found = evaluate(claim, Evidence(world(claim.figure, as_in_the_paper=True)))
    assert found.verdict is Verdict.HOLDS, found.decisive


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_a_claim_fails_in_the_opposite_world(claim: Claim) -> None:
    found = evaluate(claim, Evidence(world(claim.figure, as_in_the_paper=False)))
    assert found.verdict is Verdict.FAILS, found.decisive


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_a_few_runs_decide_nothing(claim: Claim) -> None:
    found = evaluate(claim, Evidence(world(claim.figure, as_in_the_paper=True, runs=LEAST_RUNS - 1)))
    assert found.verdict is Verdict.UNDECIDED


def test_every_claim_has_a_name_of_its_own_that_begins_with_its_figure() -> None:
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS) == 55
    assert all(claim.figure == figure.key for figure in FIGURES.values() for claim in figure.claims)


@pytest.mark.parametrize("problem", ["bit-flipping", "permuted-mnist"])
def test_the_results_that_ship_are_about_these_claims(problem: str) -> None:
    shipped = json.loads((Path(__file__).parents[2] / "docs" / "data" / f"{problem}_claims.json").read_text())
    told = [(entry["key"], entry["figure"], entry["quote"], entry["definition"]) for entry in shipped]
    claims = [claim for figure in GROUPS[problem] for claim in figure.claims]
    assert sorted(told) == sorted((claim.key, claim.figure, claim.quote, claim.definition) for claim in claims)


@pytest.mark.parametrize(
    ("last", "rising", "stable"),
    [
        (0.9, Verdict.HOLDS, Verdict.FAILS),
        (0.5, Verdict.FAILS, Verdict.HOLDS),
        (0.3, Verdict.FAILS, Verdict.HOLDS),
        # The end is 5% above the low point, give or take noise.
        (0.5 * 1.062, Verdict.UNDECIDED, Verdict.UNDECIDED),
    ],
)
def test_rising_and_stable_are_opposites(last: float, rising: Verdict, stable: Verdict) -> None:
    settings = [setting(0.5, last, noise=0.2)]
    assert judge(comparisons.backprop_rises(["tanh"], [0.01]), *settings).verdict is rising
    assert judge(comparisons.stability(["bp"], ["tanh"], stable=False), *settings).verdict is rising
    assert judge(comparisons.stability(["bp"], ["tanh"], stable=True), *settings).verdict is stable


def test_a_flat_noisy_curve_does_not_rise_on_average() -> None:
    # Its minimum lies well below its mean. Read off on other runs than those that chose it, it does not.
    rises, naive = [], []
    for seed in range(50):
        error = curves(0.5, 0.5, noise=0.5, seed=seed, runs=20).error
        late = statistics.late(error).mean()
        rises.append(late / statistics.low_point(error)[0].mean() - 1)
        naive.append(late / error.mean(axis=0).min() - 1)
    standard_error = np.std(rises) / np.sqrt(len(rises))
    assert abs(np.mean(rises)) < 4 * standard_error
    assert np.mean(naive) > 0.1


def test_hard_data_are_not_taken_for_lost_plasticity() -> None:
    flat, linear = setting(0.5, 0.5), LINEAR
    harder = np.linspace(1, 2, 50)

    def scaled(one: Setting) -> Setting:
        metrics = one.curves.metrics | {"error": one.curves.error * harder}
        return Setting(one.config, type(one.curves)(one.curves.seeds, one.curves.examples, metrics))

    evidence = Evidence(Settings([scaled(linear), scaled(flat)]))
    claim = Claim("fig0.test", "", "", comparisons.stability(["bp"], ["tanh"], stable=True))
    assert evaluate(claim, evidence).verdict is Verdict.HOLDS


def test_slightly_worse_is_allowed_where_the_claim_allows_it() -> None:
    settings = [cbp(1e-4, 0.52), l2(1e-3, 0.50)]
    assert judge(comparisons.better("cbp", "l2", ["tanh"]), *settings).verdict is Verdict.FAILS
    assert judge(comparisons.better("cbp", "l2", ["tanh"], slack=0.1), *settings).verdict is Verdict.HOLDS


def test_equal_is_undecided() -> None:
    settings = [cbp(1e-4, 0.5), setting(0.5, 0.5, seed=40)]
    assert judge(comparisons.better("cbp", "bp", ["tanh"]), *settings).verdict is Verdict.UNDECIDED


def test_the_share_of_values_counts_values_not_sizes() -> None:
    bp = setting(0.8, 0.8)
    four_of_five = [cbp(rate, 0.5 if rate < 1e-2 else 50.0) for rate in RATES]
    assert judge(comparisons.better_for_a_share(0.5, ["cbp"], ["tanh"]), bp, *four_of_five).verdict is Verdict.HOLDS
    assert judge(comparisons.better_for_a_share(0.9, ["cbp"], ["tanh"]), bp, *four_of_five).verdict is Verdict.FAILS


def test_a_wide_range_is_one_stretch() -> None:
    def decades(good: list[float]) -> float:
        bp = [setting(0.8, 0.8, activation=name) for name in comparisons.ALL]
        swept = [cbp(r, 0.5 if r in good else 1.0, activation=name) for r in RATES for name in comparisons.ALL]
        return judge(comparisons.wide_range, *bp, *swept).cells[0].estimate + comparisons.WIDE_DECADES

    assert decades([1e-5, 1e-4, 1e-3]) == pytest.approx(2)
    assert decades([1e-6, 1e-5, 1e-3, 1e-2]) == pytest.approx(1)
    assert decades([1e-4]) == pytest.approx(0, abs=1e-6)


def test_sensitivity_looks_around_the_best_value_only() -> None:
    # Far from the best, CBP is a disaster; within a factor of 10 it is flat, and L2 is not.
    gentle = [cbp(rate, 0.5 if rate == 1e-4 else 0.52 if 1e-5 <= rate <= 1e-3 else 50.0) for rate in RATES]
    steep = [l2(decay, 0.5 if decay == 1e-3 else 0.7) for decay in L2]
    assert judge(comparisons.less_sensitive(["tanh"]), *gentle, *steep).verdict is Verdict.HOLDS
    evidence = Evidence(Settings([LINEAR, *gentle, *steep]))
    assert comparisons.excess(evidence, "cbp", "tanh")[0] == pytest.approx(0.04, abs=0.01)
    assert comparisons.excess(evidence, "l2", "tanh")[0] == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_setting_with_a_diverged_run_is_never_the_best_and_spoils_nothing(value: float) -> None:
    bad = cbp(1e-4, 0.1)
    bad.curves.error[3, 10:] = value
    good = cbp(1e-5, 0.5)
    settings = Settings([LINEAR, bad, good, setting(0.8, 0.8)])
    assert settings.best(algorithm="cbp") is good
    claim = Claim("fig0.test", "", "", comparisons.better("cbp", "bp", ["tanh"]))
    assert evaluate(claim, Evidence(settings)).verdict is Verdict.HOLDS


def test_one_failing_cell_fails_the_claim_and_one_open_cell_leaves_it_open() -> None:
    rng = np.random.default_rng(0)
    yes, no, maybe = (Cell(name, shift + rng.normal(size=1001)) for name, shift in (("y", 10), ("n", -10), ("m", 0)))
    settings = Settings([LINEAR])
    for cells, verdict in (
        ([yes], Verdict.HOLDS),
        ([yes, maybe], Verdict.UNDECIDED),
        ([yes, maybe, no], Verdict.FAILS),
    ):
        found = evaluate(Claim("fig0.test", "", "", lambda _e, cells=cells: cells), Evidence(settings))  # type: ignore[misc]
        assert found.verdict is verdict
        assert found.level == pytest.approx(1 - 0.05 / len(cells))


def test_the_interval_has_its_level() -> None:
    # 400 samples of 40 runs each with mean 0: the 90% interval misses it about one time in ten.
    rng = np.random.default_rng(1)
    weights = statistics.resampling_weights(40, resamples=2000)
    missed = 0
    for _ in range(400):
        low, high = statistics.interval(weights @ rng.normal(size=40), 0.9, runs=40)
        missed += not low < 0 < high
    # Binomial(400, 0.1): 40 with a standard deviation of 6; the percentile interval is a little short at 40 runs.
    assert 20 < missed < 72


@pytest.mark.parametrize("runs", [5, 10])
def test_the_interval_of_a_mean_of_few_runs_is_students(runs: int) -> None:
    values = np.random.default_rng(runs).normal(size=runs)
    found = statistics.interval(statistics.resampling_weights(runs) @ values, 0.95, runs)
    ref = t.interval(0.95, runs - 1, values.mean(), values.std(ddof=1) / np.sqrt(runs))
    # 10,000 resamples know the standard deviation to within a percent or so.
    np.testing.assert_allclose(found, ref, atol=0.03 * (ref[1] - ref[0]))


def test_findings_depend_on_the_results_alone() -> None:
    first, second = (evaluate(CLAIMS[0], Evidence(world("fig3", as_in_the_paper=True))) for _ in range(2))
    assert first == second


def test_findings_as_json_and_markdown_have_every_comparison() -> None:
    found = [evaluate(claim, Evidence(world("fig6", as_in_the_paper=True))) for claim in FIGURES["fig6"].claims]
    listed = json.loads(claims_json(found))
    assert [entry["key"] for entry in listed] == [f.key for f in found]
    assert listed[0]["verdict"] == "holds"
    assert set(listed[0]["cells"][0]) == {"name", "estimate", "low", "high", "verdict", "runs", "needed"}
    text = claims_markdown(found)
    for finding in found:
        assert finding.quote in text
        assert all(f"| {cell.name} |" in text for cell in finding.cells)
