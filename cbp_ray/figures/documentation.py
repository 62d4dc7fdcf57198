"""The results that ship with the project: `results.md`, its figures and its numbers, made from stored results."""

import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow.parquet

from cbp_ray.figures import provenance, report, tables
from cbp_ray.figures.cases import Case
from cbp_ray.figures.reproduce import Product, join
from cbp_ray.sweeps import Sweep

BEGIN, END = "<!-- {}: begin, written by cbp-ray plot -->", "<!-- {}: end -->"


def write_documentation(
    name: str, products: Sequence[Product], sweeps: Sequence[Sweep], storage: str | os.PathLike[str], figures: Path, docs: Path
) -> list[Path]:
    """Writes the results of some figures into a folder of documentation.

    Args:
      name: of the group of figures, `bit-flipping` say.
      products: the figures, all of one problem.
      sweeps: their sweeps, in the same order.
      storage: where the results are.
      figures: folder that holds the drawings and the log.
      docs: folder to write: `results.md` (only the part of this group changes), `figures/`, `data/`. A README.md beside it
        that has a part for this group gets the verdicts.

    Returns:
      The files written.
    """
    data, pictures = docs / "data", docs / "figures"
    for folder in (data, pictures):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for product in products:
        key = product.figure.key
        for source, target in ((f"{key}.png", pictures), (f"{key}.csv", data)):
            written.append(Path(shutil.copy2(figures / source, target / source)))
    unique: dict[str, Case] = {case.config.model_dump_json(): case for product in products for case in product.cases}
    bins = data / f"{name}.parquet"
    pyarrow.parquet.write_table(tables.bins_table(unique.values()), bins, compression="zstd")
    findings = [finding for product in products for finding in product.findings]
    claims = data / f"{name}_claims.json"
    claims.write_text(report.claims_json(findings), encoding="utf-8")
    sections = [
        report.Section(product.figure, product.findings, product.rows, _about(sweep, storage))
        for product, sweep in zip(products, sweeps, strict=True)
    ]
    page = docs / "results.md"
    keys = {product.figure.key for product in products}
    _replace_part(page, name, report.results_part(_introduction(name, keys, sweeps, storage, figures), sections))
    readme = docs.parent / "README.md"
    if readme.exists() and BEGIN.format(name) in readme.read_text(encoding="utf-8"):
        _replace_part(readme, name, report.verdicts_part(findings))
        written.append(readme)
    return [*written, bins, claims, page]


def _about(sweep: Sweep, storage: str | os.PathLike[str]) -> str:
    spent = provenance.spent(sweep, storage)
    return (
        f"{_scale(sweep)}{len(sweep.configurations)} settings, {len(sweep.seeds)} runs each: "
        f"{spent.engine_seconds:.0f} s of CPU time, some of it shared with other figures."
    )


def _scale(sweep: Sweep) -> str:
    """What is smaller than in the paper, if something is: read off the runs themselves, so that it can't be forgotten."""
    configs = [configuration.config for configuration in sweep.configurations]
    tasks = [config.problem.examples_per_task for config in configs]
    if None in tasks:
        return ""
    facts = {
        "hidden layers of": {str(config.network.hidden[0]) for config in configs},
        "runs of": {f"{config.examples:,}" for config in configs},
        "bins of": {f"{config.bin_size:,}" for config in configs},
        "a new permutation every": {f"{length:,}" for length in tasks},
    }
    words = (f"{name} {', '.join(sorted(values, key=lambda v: (len(v), v)))}" for name, values in facts.items())
    return f"Drawn here: {'; '.join(words)} examples. "


def _introduction(
    name: str, keys: Collection[str], sweeps: Sequence[Sweep], storage: str | os.PathLike[str], figures: Path
) -> str:
    log = [entry for entry in provenance.reproductions(figures) if entry.runs and not set(entry.figures).isdisjoint(keys)]
    lines = [
        f"- `{entry.command}` on {entry.finished}, commit {entry.commit}: {entry.runs:,} runs in {entry.sweep_seconds:.0f} s"
        f" ({entry.seconds:.0f} s with drawing and claims), {entry.cores} cores of {entry.cpu}"
        for entry in log
    ]
    engine = sum(provenance.spent(sweep, storage).engine_seconds for sweep in join(sweeps, name))
    return (
        f"CPU time of all runs: {engine:.0f} s. Made by:\n\n{os.linesep.join(lines)}\n\n"
        f"`data/{name}.parquet` has mean and standard error of every bin of every setting, `data/figN.csv` a line per setting, "
        f"`data/{name}_claims.json` every comparison."
    )


def _replace_part(page: Path, name: str, text: str) -> None:
    begin, end = BEGIN.format(name), END.format(name)
    old = page.read_text(encoding="utf-8") if page.exists() else "# Results\n"
    before, found, rest = old.partition(begin)
    after = rest.partition(end)[2] if found else "\n"
    page.write_text(f"{before.rstrip()}\n\n{begin}\n\n{text.strip()}\n\n{end}{after}", encoding="utf-8")
