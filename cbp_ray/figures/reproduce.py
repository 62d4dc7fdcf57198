"""From a figure's key to its files: load its sweep, run what is missing, draw, write tables, check claims."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from cbp_ray.figures.claims import Evidence, Finding, evaluate
from cbp_ray.figures.figure import Figure
from cbp_ray.figures.results import Setting, Settings
from cbp_ray.results import Store
from cbp_ray.sweeps import Sweep, cost, load_sweep
from cbp_ray.sweeps.sweep import join

CONFIGS = "cbp_ray_tune_configs"


def load_figure(figure: Figure, scale: str = "paper") -> Sweep:
    """The sweep of one figure."""
    with as_file(files(CONFIGS)) as directory:
        return load_sweep(directory / figure.sweep, scale=scale)


@dataclass(frozen=True)
class Estimate:
    """What all runs of some figures cost."""

    settings: int
    runs: int
    core_seconds: float


def estimate(figures: Sequence[Figure], scale: str = "paper") -> Estimate:
    """Counts the runs of some figures, shared ones once, and says roughly how long they take on one core."""
    sweeps = join([load_figure(figure, scale) for figure in figures], "estimate")
    return Estimate(
        sum(len(sweep.configurations) for sweep in sweeps),
        sum(sweep.runs for sweep in sweeps),
        sum(cost.seconds(c.config, sweep.engine, len(sweep.seeds)) for sweep in sweeps for c in sweep.configurations),
    )


def read_settings(sweep: Sweep, storage: str | os.PathLike[str]) -> Settings:
    """The settings of a sweep with their stored runs.

    Raises:
      MissingResults: if a run is not stored.
    """
    store = Store(storage, sweep.name)
    names = store.names()
    return Settings(
        Setting(configuration.config, store.read_curves(configuration.config, sweep.seeds, sweep.engine, names))
        for configuration in sweep.configurations
    )


@dataclass(frozen=True)
class Product:
    """What came out of one figure."""

    figure: Figure
    settings: Settings
    rows: list[dict[str, Any]]
    """Rows of `tables.settings_table`."""
    findings: list[Finding]
    paths: list[Path]
    """The files written."""


def check(figure: Figure, settings: Settings) -> list[Finding]:
    """What the runs say of a figure's claims."""
    evidence = Evidence(settings)
    return [evaluate(claim, evidence) for claim in figure.claims]


def produce(figure: Figure, settings: Settings, directory: Path, findings: Sequence[Finding] | None = None) -> Product:
    """Draws a figure, writes its table, and checks its claims, if what was found is not given.

    Writes `<key>.png`, `.pdf`, `.csv` and `.md` (the numbers), `<key>_claims.json` and `.md`.
    """
    from cbp_ray.figures import markdown, tables

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / figure.key
    figure.drawing(settings, path)
    rows = tables.settings_table(figure, settings)
    labels = {setting.algorithm: setting.label for setting in settings}
    findings = check(figure, settings) if findings is None else list(findings)
    texts = {
        f"{figure.key}.csv": tables.to_csv(rows),
        f"{figure.key}.md": f"# {figure.title}\n\n{markdown.numbers_table(rows, labels)}",
        f"{figure.key}_claims.json": markdown.claims_json(findings),
        f"{figure.key}_claims.md": f"# {figure.title}: claims\n\n{markdown.claims_markdown(findings)}",
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    paths = [path.with_suffix(".png"), path.with_suffix(".pdf"), *(directory / name for name in texts)]
    return Product(figure, settings, rows, findings, paths)


def show_in_tensorboard(product: Product, sweep: Sweep, storage: str | os.PathLike[str]) -> None:
    """Puts a figure into the Images tab of its sweep, beside the runs that it is drawn from."""
    from cbp_ray.results.tensorboard import write_image

    name = product.figure.key if sweep.scale == "paper" else f"{product.figure.key}@{sweep.scale}"
    write_image(Store(storage, sweep.name), name, product.paths[0].read_bytes())
