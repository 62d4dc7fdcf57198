"""The commands that look after stored sweeps: verify, mv, rm."""

import json
from typing import TYPE_CHECKING

import click

from cbp_ray.cli.options import check_storage, json_option, storage_option
from cbp_ray.errors import InputError

if TYPE_CHECKING:
    from cbp_ray.results.store import Store

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask first.")


@click.command()
@click.argument("sweep", required=False)
@click.option("--remove", is_flag=True, help="Remove what is damaged, so that the next run makes it again.")
@storage_option
@json_option
def verify(sweep: str | None, remove: bool, storage: str, as_json: bool) -> int:
    """Read every file of a sweep and name what is damaged.

    Reads one SWEEP, or all that are in the storage: results, checkpoints, records and TensorBoard runs. Files are
    written whole or not at all; this finds what a full disk or a broken copy has done to them since. Exits with 1 if
    something is damaged and stays.

    \b
    Examples:
      cbp-ray verify
      cbp-ray verify bit_flipping --storage /data/cbp
      cbp-ray verify bit_flipping --remove
    """
    from cbp_ray.results.records import find_sweep, stored_sweeps
    from cbp_ray.results.storage import Folder
    from cbp_ray.results.store import Store
    from cbp_ray.results.verify import damages

    storage = check_storage(storage, writes=remove)
    names = stored_sweeps(Folder(storage)) if sweep is None else [sweep]
    stores = [find_sweep(storage, name) if sweep is not None else Store(storage, name) for name in names]
    if remove:
        for store in stores:
            refuse_while_running(store, "--remove")
    found, files = [], 0

    def count(_path: str) -> None:
        nonlocal files
        files += 1

    for store in stores:
        # All of it before anything is removed: of a block, two files may be damaged.
        damaged = list(damages(store, count))
        for path in sorted({path for each in damaged for path in each.removes if remove}):
            store.folder.remove(path)
        found += [{"sweep": store.sweep, "path": each.path, "reason": each.reason} for each in damaged]
    if as_json:
        click.echo(json.dumps({"files": files, "damaged": found, "removed": remove}))
    else:
        for each in found:
            click.echo(f"{each['sweep']}/{each['path']}: {each['reason']}")
        fix = "removed; run the sweep again" if remove else "remove them with --remove, and run the sweep again"
        click.echo(f"{files} files read, " + (f"{len(found)} damaged: {fix}" if found else "all whole"))
    return 1 if found and not remove else 0


@click.command()
@click.argument("sweep")
@click.argument("new", metavar="NEW")
@yes_option
@storage_option
def mv(sweep: str, new: str, yes: bool, storage: str) -> int:
    """Give a stored sweep another name.

    Its files then say the new name; change it in your sweep file as well, or the next run begins anew under the old
    one. A sweep that runs is not moved.

    \b
    Examples:
      cbp-ray mv first first_long
      cbp-ray mv first old_first --storage /data/cbp --yes
    """
    from cbp_ray.results.records import find_sweep
    from cbp_ray.results.store import Store
    from cbp_ray.sweeps.resolved import rename_records
    from cbp_ray.sweeps.sweep import check_name

    storage = check_storage(storage)
    store, target = find_sweep(storage, sweep), Store(storage, new)
    try:
        check_name(new)
    except InputError as error:
        raise InputError(f"NEW: {str(error).removeprefix('sweep: ')}") from None
    if new in store.storage.folders():
        raise InputError(f"NEW: must not be there yet, got {new!r}, which is in {storage}; use another name")
    refuse_while_running(store, "SWEEP")
    if not _agreed(f"Move {sweep} ({_amount(store)}) to {new}?", yes):
        return 1
    store.folder.move(target.folder)
    rename_records(target)
    click.echo(f"{sweep} is {new} now; write sweep: {new} in its file to go on with it")
    return 0


@click.command()
@click.argument("sweep")
@yes_option
@storage_option
def rm(sweep: str, yes: bool, storage: str) -> int:
    """Remove a stored sweep with all its results.

    Asks first, and removes no sweep that runs.

    \b
    Examples:
      cbp-ray rm first
      cbp-ray rm first --storage /data/cbp --yes
    """
    from cbp_ray.results.records import find_sweep

    store = find_sweep(check_storage(storage), sweep)
    refuse_while_running(store, "SWEEP")
    if not _agreed(f"Remove {sweep} ({_amount(store)}) for good?", yes):
        return 1
    store.folder.remove_all()
    click.echo(f"{sweep} is removed")
    return 0


def refuse_while_running(store: "Store", field: str) -> None:
    """Refuses what would change a sweep under the process that runs it."""
    from cbp_ray.sweeps.running import running_on

    if (host := running_on(store)) is not None:
        raise InputError(f"{field}: must not be about a sweep that runs, got {store.sweep!r} on {host}; stop it first")


def _amount(store: "Store") -> str:
    runs = sum(len(name.seeds) for name in store.names())
    return f"{runs:,} runs, {store.folder.size() / 2**20:,.1f} MB"


def _agreed(question: str, yes: bool) -> bool:
    """Asks, unless told not to."""
    if yes:
        return True
    try:
        agreed = click.confirm(question)
    except click.Abort:
        click.echo("")
        raise InputError("--yes: must be given where nobody answers, got no answer; add --yes") from None
    if not agreed:
        click.echo("nothing done")
    return agreed
