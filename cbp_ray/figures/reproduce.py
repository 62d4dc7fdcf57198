"""From a figure's key to its files: load its sweep, run what is missing, draw, write tables, check claims."""

import os
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from cbp_ray.figures.cases import Case, Cases
from cbp_ray.figures.claims import Evidence, Finding, evaluate
from cbp_ray.figures.paper_claims import claims_of
from cbp_ray.figures.registry import Figure
from cbp_ray.results import Store
from cbp_ray.sweeps import Sweep, load_sweep
from cbp_ray.sweeps.sweep import join as join

CONFIGS = "cbp_ray_tune_configs"


def load_figure(figure: Figure, scale: str = "paper") -> Sweep:
    """The sweep of one figure, which must be available."""
    assert figure.sweep is not None
    with as_file(files(CONFIGS)) as directory:
        return load_sweep(directory / figure.sweep, scale=scale)


def read_cases(sweep: Sweep, storage: str | os.PathLike[str]) -> Cases:
    """The stored results of a sweep.

    Raises:
      MissingResults: if a run is not stored.
    """
    store = Store(storage, sweep.name)
    names = store.names()
    return Cases(
        Case(configuration.config, store.read_curves(configuration.config, sweep.seeds, sweep.engine, names))
        for configuration in sweep.configurations
    )


@dataclass(frozen=True)
class Product:
    """What came out of one figure."""

    figure: Figure
    cases: Cases
    rows: list[dict[str, Any]]
    findings: list[Finding]
    paths: list[Path]
    """The files written."""


def produce(figure: Figure, cases: Cases, directory: Path) -> Product:
    """Draws a figure, writes its table, and checks its claims.

    Writes `<key>.png`, `.pdf`, `.csv` and `.md` (the numbers), `<key>_claims.json` and `.md`.
    """
    from cbp_ray.figures import report, tables
    from cbp_ray.figures.drawings import DRAWINGS

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / figure.key
    DRAWINGS[figure.key](cases, path)
    rows = tables.settings_table(cases)
    evidence = Evidence(cases)
    findings = [evaluate(claim, evidence) for claim in claims_of(figure.key)]
    texts = {
        f"{figure.key}.csv": tables.to_csv(rows),
        f"{figure.key}.md": f"# {figure.title}\n\n{tables.to_markdown(rows)}",
        f"{figure.key}_claims.json": report.claims_json(findings),
        f"{figure.key}_claims.md": f"# {figure.title}: claims\n\n{report.claims_markdown(findings)}",
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    paths = [path.with_suffix(".png"), path.with_suffix(".pdf"), *(directory / name for name in texts)]
    return Product(figure, cases, rows, findings, paths)


def show_in_tensorboard(product: Product, sweep: Sweep, storage: str | os.PathLike[str]) -> None:
    """Puts a figure into the Images tab of its sweep, beside the runs that it is drawn from."""
    from cbp_ray.results.tensorboard import write_image

    name = product.figure.key if sweep.scale == "paper" else f"{product.figure.key}@{sweep.scale}"
    write_image(Store(storage, sweep.name), name, product.paths[0].read_bytes())
