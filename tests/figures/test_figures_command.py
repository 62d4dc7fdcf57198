"""`reproduce`, `plot` and `figures` at smoke scale: real runs through Ray, figures, tables and documentation."""

import functools
import json
from pathlib import Path

import pyarrow.parquet
import pytest
from made_up_results import world
from mnist_help import general_engine
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cbp_ray.cli import figures as cli_figures
from cbp_ray.cli import main
from cbp_ray.experiments import run_online
from cbp_ray.experiments.engines import mlp_permuted_mnist
from cbp_ray.figures import reproduce as reproduce_module
from cbp_ray.figures.provenance import reproductions
from cbp_ray.figures.registry import FIGURES, GROUPS
from cbp_ray.figures.reproduce import load_figure
from cbp_ray.problems import mnist_files
from cbp_ray.results import Block, Store
from cbp_ray.sweeps.sweep import join

# Results are made once, in one process.
pytestmark = pytest.mark.xdist_group("figures")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of figure 19 at smoke scale, run once for all tests of this module."""
    folder = tmp_path_factory.mktemp("results")
    assert main(["reproduce", "fig19", "--scale", "smoke", "--storage", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_reproduce_writes_figures_tables_claims_and_a_log(storage: Path) -> None:
    directory = storage / "figures" / "smoke"
    endings = (".png", ".pdf", ".csv", ".md", "_claims.json", "_claims.md")
    assert all((directory / f"fig19{ending}").stat().st_size > 100 for ending in endings)
    claims = json.loads((directory / "fig19_claims.json").read_text())
    assert {claim["verdict"] for claim in claims} == {"undecided"}
    assert {claim["runs"] for claim in claims} == {4}
    entry = reproductions(directory)[0]
    assert entry.command == "cbp-ray reproduce fig19 --scale smoke"
    events = EventAccumulator(str(storage / "bit_flipping" / "tensorboard" / "figures")).Reload()
    (image,) = events.Images("fig19@smoke")
    assert image.encoded_image_string == (directory / "fig19.png").read_bytes()
    assert (entry.runs, entry.stored_runs, entry.failed) == (4 * 15, 0, 0)


@pytest.mark.slow
def test_a_figure_whose_runs_are_stored_runs_nothing(storage: Path) -> None:
    stored = sorted((storage / "bit_flipping" / "curves").iterdir())
    assert main(["reproduce", "fig19", "--scale", "smoke", "--storage", str(storage)]) == 0
    assert sorted((storage / "bit_flipping" / "curves").iterdir()) == stored
    entry = reproductions(storage / "figures" / "smoke")[-1]
    assert (entry.runs, entry.stored_runs) == (0, 4 * 15)


@pytest.mark.slow
def test_plot_draws_from_stored_results_and_writes_the_documentation(storage: Path, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    arguments = ["plot", "fig19", "--scale", "smoke", "--storage", str(storage), "--docs", str(docs)]
    page = docs / "results.md"
    page.write_text("# Results\n\nBefore.\n\n## More\n")
    assert main(arguments) == 0
    assert main(arguments) == 0
    text = page.read_text()
    assert text.startswith("# Results\n\nBefore.\n\n## More\n")
    assert text.count("### Figure 19") == 1
    assert "fig19.nearly-90-percent" in text
    assert "cbp-ray reproduce fig19 --scale smoke" in text
    assert (docs / "figures" / "fig19.png").exists()
    assert (docs / "data" / "fig19.csv").exists()
    bins = pyarrow.parquet.read_table(docs / "data" / "fig19.parquet")
    assert len(bins) == 15 * 10


@pytest.mark.slow
def test_plot_without_results_says_what_is_missing(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["plot", "fig3", "--scale", "smoke", "--storage", str(storage)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "run the sweep first" in error


@pytest.mark.long
@pytest.mark.parametrize("problem", ["bit-flipping", "permuted-mnist"])
def test_every_figure_can_be_made_from_real_runs_at_smoke_scale(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # One compiled kernel for all algorithms of Permuted MNIST, instead of one for each.
    general = functools.partial(general_engine, images=mnist_files.load("mnist"))
    monkeypatch.setattr(mlp_permuted_mnist, "MlpEngine", general)
    figures = GROUPS[problem]
    for sweep in join([load_figure(figure, "smoke") for figure in figures], problem):
        # Without Ray, which other tests have: what is tried out here are the settings of every figure.
        store = Store(tmp_path, sweep.name)
        for configuration in sweep.configurations:
            block = Block(configuration.config, sweep.engine, sweep.seeds)
            store.write(block, run_online(configuration.config, sweep.seeds), {})
    assert main(["plot", problem, "--scale", "smoke", "--storage", str(tmp_path)]) == 0
    directory = tmp_path / "figures" / "smoke"
    for figure in figures:
        assert (directory / f"{figure.key}.png").stat().st_size > 20_000
    claims = json.loads((directory / f"{problem}_claims.json").read_text())
    assert {claim["key"] for claim in claims} == {claim.key for figure in figures for claim in figure.claims}
    assert {claim["verdict"] for claim in claims} == {"undecided"}
    assert "Nothing is decided with fewer than 5 runs" in capsys.readouterr().out


@pytest.mark.parametrize(("paper", "code"), [(True, 0), (False, 1)])
def test_a_failed_claim_is_exit_code_1(
    paper: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduce_module, "read_settings", lambda sweep, storage: world(sweep.source, paper))
    assert main(["plot", "fig3", "--storage", str(tmp_path)]) == code
    out = capsys.readouterr().out
    assert ("Of 2 claims, 2 hold." if paper else "Of 2 claims, 2 fail.") in out


def test_a_group_of_figures_has_all_its_claims_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_figures, "chosen", lambda name: [FIGURES["fig3"], FIGURES["fig17a"]])
    monkeypatch.setattr(reproduce_module, "read_settings", lambda sweep, storage: world(sweep.source, True))
    assert main(["plot", "bit-flipping", "--storage", str(tmp_path)]) == 0
    events = EventAccumulator(str(tmp_path / "bit_flipping" / "tensorboard" / "figures")).Reload()
    for key in ("fig3", "fig17a"):
        (image,) = events.Images(key)
        assert image.encoded_image_string == (tmp_path / "figures" / "paper" / f"{key}.png").read_bytes()
    claims = json.loads((tmp_path / "figures" / "paper" / "bit-flipping_claims.json").read_text())
    assert {claim["figure"] for claim in claims} == {"fig3", "fig17a"}


@pytest.mark.parametrize("key", FIGURES)
def test_every_figure_has_a_smoke_and_a_laptop_scale(key: str, tmp_path: Path) -> None:
    paper, laptop, smoke = (load_figure(FIGURES[key], scale) for scale in ("paper", "laptop", "smoke"))
    if FIGURES[key].problem == "bit-flipping":
        assert laptop.configurations == paper.configurations
    assert {c.group for c in smoke.configurations} == {c.group for c in paper.configurations}
    examples = sum(c.config.examples for c in smoke.configurations) * len(smoke.seeds)
    assert examples < 10_000_000
    # Small enough to be drawn: the claims look at the last and at the first bins.
    assert min(c.config.bins for c in smoke.configurations) >= 5
    store = Store(tmp_path, smoke.name)
    assert not any(store.has(Block(c.config, smoke.engine, smoke.seeds)) for c in smoke.configurations)


def test_figures_lists_what_each_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "--json"]) == 0
    listed = {entry["key"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["fig6"]["cost"]["runs"] == 7800
    assert 30 < listed["fig6"]["cost"]["core_seconds"] < 3000
    # 24 settings, 10 runs of 48M examples of a network with 9.6M weights: most of a year of one core.
    assert listed["fig7"]["cost"]["runs"] == 240
    assert 3e6 < listed["fig7"]["cost"]["core_seconds"] < 1e8
    assert listed["fig9"]["cost"]["runs"] == 30 * 11
