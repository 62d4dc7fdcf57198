"""The commands that take a sweep's results from one storage to another: export, import."""

import sys
from pathlib import Path

import click

from cbp_ray.cli.options import check_file, check_storage, storage_option
from cbp_ray.cli.stored import refuse_while_running
from cbp_ray.errors import InputError


@click.command("export")
@click.argument("sweep")
@click.argument("file", metavar="FILE.parquet", type=click.Path(path_type=Path))
@storage_option
def export_sweep(sweep: str, file: Path, storage: str) -> int:
    """Write all stored runs of a sweep into one file.

    The file is a Parquet table with a row per run and bin: every metric, the run's config, versions and seconds. It is
    a few times smaller than the sweep's folder, can be shipped with a paper, and `cbp-ray import` puts its runs into
    another storage, where `cbp-ray run` counts them as done. A sweep may run meanwhile; checkpoints, TensorBoard, and
    what a search knows of its trials stay behind.

    \b
    Examples:
      cbp-ray export first first.parquet
      python -c "import pandas; print(pandas.read_parquet('first.parquet'))"
    """
    from cbp_ray.atomic_files import is_forsaken, write_whole
    from cbp_ray.results.records import find_sweep
    from cbp_ray.sweeps.archive import pack

    store = find_sweep(check_storage(storage, writes=False), sweep)
    check_file(file, "FILE")
    names = store.names()
    with click.progressbar(names, label="reading", file=sys.stderr, hidden=len(names) < 100) as shown:
        content, runs = pack(store, shown)
    for left in file.absolute().parent.iterdir():
        if is_forsaken(left.name):  # by an export that was killed
            left.unlink(missing_ok=True)
    write_whole(file, content)
    others = sum(len(name.seeds) for name in names) - runs
    said = f"; {others:,} of another version of results stay behind" if others else ""
    click.echo(f"{runs:,} runs of {sweep}, {len(content) / 1e6:,.1f} MB: {file}{said}")
    return 0


@click.command("import")
@click.argument("file", metavar="FILE.parquet", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--as", "name", metavar="SWEEP", help="Name of the sweep that takes the runs; that of the file without it.")
@storage_option
def import_sweep(file: Path, name: str | None, storage: str) -> int:
    """Store the runs that `cbp-ray export` wrote into a file.

    Merges what several machines have run of one sweep: each exports, one imports. Runs that are stored already stay as
    they are, unless they are damaged. All of the file is checked before anything is written, and the results are those
    that were exported, to the last byte; `cbp-ray run` of the same sweep file then does only what is missing.

    \b
    Examples:
      cbp-ray import first.parquet
      cbp-ray import first.parquet --storage /data/cbp --as first_of_lab_b
    """
    from cbp_ray.results.store import Store
    from cbp_ray.sweeps.archive import MOST_FILE_BYTES, store_archive, unpack

    storage = check_storage(storage)
    if name is not None:
        _check_name(name, "--as", "use another")
    if not file.is_file():
        raise InputError(f"FILE: must be a file that `cbp-ray export` wrote, got {str(file)!r}, which is none; use another")
    if file.stat().st_size > MOST_FILE_BYTES:
        raise InputError(f"FILE: must have at most {MOST_FILE_BYTES:,} bytes, got {file.stat().st_size:,}; use another")
    archive = unpack(file.read_bytes(), f"FILE {str(file)!r}")
    if name is None:
        _check_name(archive.sweep, "FILE", "give the sweep a name with --as")
    store = Store(storage, name or archive.sweep)
    refuse_while_running(store, "--as" if name else "FILE")
    written = store_archive(archive, store)
    runs, known = (sum(len(block.seeds) for block in blocks) for blocks in (written, [block for block, _, _ in archive.blocks]))
    click.echo(f"{runs:,} of {known:,} runs are new in {store.folder.location}")
    return 0


def _check_name(name: str, option: str, fix: str) -> None:
    from cbp_ray.sweeps.sweep import check_name

    try:
        check_name(name)
    except InputError as error:
        raise InputError(f"{option}: {str(error).removeprefix('sweep: ').partition(';')[0]}; {fix}") from None
