"""The results that ship with the project: `results.md`, its figures and its numbers, made from stored results."""

import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet

from cbp_ray.figures import markdown, tables
from cbp_ray.figures.claims import LEAST_RUNS, Finding, Verdict
from cbp_ray.figures.provenance import told
from cbp_ray.figures.reproduce import Product
from cbp_ray.results import Store, config_key
from cbp_ray.results.keys import describe_seeds
from cbp_ray.sweeps import Sweep
from cbp_ray.sweeps.sweep import join

BEGIN, END = "<!-- {}: begin, written by cbp-ray plot -->", "<!-- {}: end -->"


def write_documentation(
    name: str, products: Sequence[Product], sweeps: Sequence[Sweep], storage: str | os.PathLike[str], figures: Path, docs: Path
) -> list[Path]:
    """Writes the results of some figures into a folder of documentation.

    Args:
      name: name of the group of figures, `bit-flipping` say.
      products: the figures, all of one problem.
      sweeps: their sweeps, in the same order.
      storage: where the results are.
      figures: folder that holds the drawings and the log.
      docs: folder to write: `results.md` (only the part of this group changes), `figures/`, `data/`.

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
    unique = {setting.config.model_dump_json(): setting for product in products for setting in product.settings}
    bins = data / f"{name}.parquet"
    pyarrow.parquet.write_table(tables.bins_table(unique.values()), bins, compression="zstd")
    findings = [finding for product in products for finding in product.findings]
    claims = data / f"{name}_claims.json"
    claims.write_text(markdown.claims_json(findings), encoding="utf-8")
    text = f"{_introduction(name, products, sweeps, storage, figures)}\n"
    counts = ", ".join(f"{sum(f.verdict is verdict for f in findings)} {markdown.WORDS[verdict]}" for verdict in Verdict)
    if findings:
        text += "\n### Claims\n\n"
        text += f"Of {len(findings)} claims, {counts}.{_too_few(findings)}\n\n{markdown.claims_table(findings)}"
    text += "".join(_section(product, sweep, storage) for product, sweep in zip(products, sweeps, strict=True))
    page = docs / "results.md"
    replace_part(page, name, text)
    return [*written, bins, claims, page]


def _too_few(findings: Sequence[Finding]) -> str:
    """Why claims are undecided that have too few runs to be anything else."""
    if all(finding.runs >= LEAST_RUNS for finding in findings):
        return ""
    return f" With fewer than {LEAST_RUNS} runs per setting, a claim is undecided by rule, whatever its interval."


def _introduction(
    name: str, products: Sequence[Product], sweeps: Sequence[Sweep], storage: str | os.PathLike[str], figures: Path
) -> str:
    lines = told(figures, [product.figure.key for product in products])
    engine = sum(_engine_seconds(sweep, storage) for sweep in join(sweeps, name))
    return (
        f"CPU time of all runs: {engine:.0f} s. Made by:\n\n{lines}\n\n"
        f"`data/{name}.parquet` has mean and standard error of every bin of every setting, `data/figN.csv` a line per setting, "
        f"`data/{name}_claims.json` every comparison."
    )


def _section(product: Product, sweep: Sweep, storage: str | os.PathLike[str]) -> str:
    """What the page of results says of one figure."""
    figure = product.figure
    number = figure.key.removeprefix("fig")
    text = f"\n### Figure {number}: {figure.title}\n\n![Figure {number}](figures/{figure.key}.png)\n\n"
    text += f"{figure.what}. {_scale(sweep)}{len(sweep.configurations)} settings, {len(sweep.seeds)} runs each: "
    text += f"{_engine_seconds(sweep, storage):.0f} s of CPU time, some of it shared with other figures.\n"
    best = [row for row in product.rows if row["best"]]
    # What is the same in all rows stands in the text above.
    told = [name for name in best[0] if len({str(row[name]) for row in best}) > 1]
    labels = {setting.algorithm: setting.label for setting in product.settings}
    numbers = markdown.numbers_table([{name: row[name] for name in told} for row in best], labels)
    text += _folded(f"Numbers of the best settings (<code>data/{figure.key}.csv</code> has all settings)", numbers)
    for finding in product.findings:
        text += f'\n**{finding.key}: {finding.verdict}.** "{finding.quote}" {finding.definition}\n'
        text += _folded(markdown.decisive_text(finding), markdown.cells_table(finding))
    return text


def _folded(summary: str, text: str) -> str:
    return f"\n<details><summary>{summary}</summary>\n\n{text}\n</details>\n"


def _scale(sweep: Sweep) -> str:
    """What is smaller than in the paper, if something is: read off the runs themselves, so that it can't be forgotten."""
    configs = [configuration.config for configuration in sweep.configurations]
    problem = configs[0].problem
    if not problem.change:
        return ""
    facts = {
        "hidden layers of": {str(config.network.hidden[0]) for config in configs},
        "runs of": {f"{config.examples:,}" for config in configs},
        "bins of": {f"{config.bin_size:,}" for config in configs},
        f"{problem.change} every": {f"{config.problem.change_period:,}" for config in configs},
    }
    words = (f"{name} {', '.join(sorted(values, key=lambda v: (len(v), v)))}" for name, values in facts.items())
    seeds = f"seeds {describe_seeds(sweep.seeds)}"
    return f"Drawn here: {'; '.join(words)} {problem.example}s; {seeds}. "


def _engine_seconds(sweep: Sweep, storage: str | os.PathLike[str]) -> float:
    """CPU time inside the engine of the stored runs of a sweep, wherever and whenever they were made."""
    store, wanted, found = Store(storage, sweep.name), set(sweep.seeds), 0.0
    keys = {config_key(configuration.config, sweep.engine) for configuration in sweep.configurations}
    for name in store.names():
        if name.key in keys and wanted.intersection(name.seeds):
            table = pyarrow.parquet.read_table(io.BytesIO(store.runs.read(f"{name}.parquet")))
            # Every row of a block has the time of all its seeds together.
            found += float(table.slice(0, 1).to_pylist()[0].get("engine_seconds", 0.0))
    return found


def replace_part(page: Path, name: str, text: str, title: str = "# Results\n") -> None:
    """Writes the part of a page between two marks, which are added at its end if they are not there yet."""
    begin, end = BEGIN.format(name), END.format(name)
    old = page.read_text(encoding="utf-8") if page.exists() else title
    before, found, rest = old.partition(begin)
    after = rest.partition(end)[2] if found else "\n"
    page.write_text(f"{before.rstrip()}\n\n{begin}\n\n{text.strip()}\n\n{end}{after}", encoding="utf-8")
