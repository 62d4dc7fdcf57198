"""Reading every file of a sweep to find those that are damaged: cut short, empty, garbled, or of another configuration.

A file is written whole or not at all, so damage comes from outside: a full disk, a copy that was interrupted, a bad sector.
What is removed is made again by the next run of the sweep.
"""

import os
import struct
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from cbp_ray.errors import InputError
from cbp_ray.experiments.checkpoint import parse
from cbp_ray.experiments.config import MOST_BINS, OnlineConfig
from cbp_ray.results.json_files import read_json
from cbp_ray.results.keys import BlockName
from cbp_ray.results.sealed import is_sealed
from cbp_ray.results.storage import Folder
from cbp_ray.results.store import CHECKPOINT, SUFFIX, Store, config_of, read_block, read_parquet, read_runs

EVENTS = "events.out.tfevents."
RECORDS = ("sweeps", "failures", "progress", "searches", "loggers", "warnings")
"""Folders of JSON that the program writes."""
FOLDERS = (*RECORDS, "curves", "runs", "partial", "checkpoints", "live", "tensorboard")
FRAME = struct.Struct("<QI")
"""Head of a record in a TensorBoard file: its length and a checksum."""
FOOT = struct.Struct("<I")
MARK, END = b"PAR1", struct.Struct("<I4s")
"""How a Parquet file begins and ends: in the end the length of what describes it, and the mark again."""


class Damage(NamedTuple):
    """A file that does not hold what it should."""

    path: str
    """Path below the sweep's folder."""
    reason: str
    """What is wrong with it."""
    removes: tuple[str, ...]
    """The files that must go for the sweep to make it again."""


class Broken(ValueError):
    """What is wrong with a file's content."""


def damages(store: Store, read: Callable[[str], None] = lambda _: None) -> Iterator[Damage]:
    """Every damaged file of a sweep.

    Args:
      store: the sweep's results.
      read: told the path of every file that was read.
    """
    for path in store.folder.tree():
        place, _, name = path.rpartition("/")
        try:
            _check(store, place, name)
        except FileNotFoundError:
            continue  # removed meanwhile, by a sweep that runs
        except (InputError, Broken, OSError, ValueError, KeyError, TypeError) as error:
            yield Damage(path, _reason(error, store.folder), _with_its_like(place, name, path))
        read(path)


def damaged_blocks(store: Store, keys: Container[str]) -> list[BlockName]:
    """Blocks of some configurations of which a file is missing or any byte is not as it was written.

    Object stores have checksums of their own.
    """
    if store.folder.local is None:
        return []
    return [name for name in store.names() if name.key in keys and is_damaged(store, name)]


def is_damaged(store: Store, name: BlockName) -> bool:
    """Whether a block is stored, and one of its files is missing or not as it was written."""
    path = f"{name}{SUFFIX}"
    for folder in (store.curves, store.runs):
        try:
            if not is_sealed(folder.read(path)):
                return True
        except FileNotFoundError:
            # Without curves it is not stored, and perhaps its whole storage is gone for a while.
            return folder is store.runs and store.curves.has(path)
        except OSError as error:
            raise InputError(f"{folder.path}/{path}: must be readable, got {error.strerror}; see its permissions") from None
    return False


def cut_short(store: Store) -> list[BlockName]:
    """Blocks of which a file is missing or not whole, as far as the files' ends tell: quick enough for every look at a sweep.

    Object stores show no file before it is whole.
    """
    if store.folder.local is None:
        return []
    short = [
        name for name in store.names() if not all(_is_whole(f.path, f"{name}{SUFFIX}") for f in (store.curves, store.runs))
    ]
    # The others were removed meanwhile.
    return [name for name in short if store.curves.has(f"{name}{SUFFIX}")]


def _is_whole(folder: str, name: str) -> bool:
    """Whether a Parquet file has its two marks, and room for all that its end says."""
    try:
        with open(f"{folder}/{name}", "rb") as file:
            head, size = file.read(len(MARK)), file.seek(0, os.SEEK_END)
            file.seek(max(0, size - END.size))
            end = file.read()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(f"{folder}/{name}: must be readable, got {error.strerror}; see its permissions") from None
    if head != MARK or len(end) < END.size:
        return False
    length, mark = END.unpack(end)
    return bool(mark == MARK and len(MARK) + length + END.size <= size)


def remove_block(store: Store, name: BlockName) -> None:
    """Removes a block, which the next run of the sweep makes again."""
    for folder in (store.curves, store.runs):
        folder.remove(f"{name}{SUFFIX}")


def _check(store: Store, place: str, name: str) -> None:
    folder = store.folder / place if place else store.folder
    if not place and name in FOLDERS:
        raise Broken("it must be a folder")
    if place in ("curves", "runs", "partial"):
        _check_block(store, folder, place, name)
    elif place in ("checkpoints", "live"):
        if BlockName.parse(name.removesuffix(CHECKPOINT)) is None:
            raise Broken("it is not named for a block")
        parse(folder.read(name), name)
    elif place.startswith("tensorboard") and name.startswith(EVENTS):
        _check_events(folder.read(name))
    elif name.endswith(".json") and place.partition("/")[0] in RECORDS:
        kind = place.rpartition("/")[2]
        found = read_json(folder, name, kind)
        for each in found["configurations"] if kind == "sweeps" else [found] if kind == "drawn" else []:
            OnlineConfig.make(each["config"])
    elif name.endswith(".yaml") and place in ("", "sweeps"):
        if not folder.read(name).startswith((b"#", b"sweep:")):
            raise Broken("it is no sweep file")
    else:
        # Of W&B, of MLflow, of people: that it can be read is all that is known of it.
        folder.read(name)


def _check_block(store: Store, folder: Folder, place: str, name: str) -> None:
    block = BlockName.parse(name.removesuffix(SUFFIX))
    if block is None:
        raise Broken("it is not named for a block")
    if place == "runs":
        config_of(read_runs(folder, block), block)
        return
    found = config_of(read_parquet(folder, name, len(block.seeds) * MOST_BINS), block)
    if found is not None:  # of another version nothing more is known
        read_block(folder, block, *found, partial=place == "partial")
    if place == "curves" and not store.runs.has(name):
        raise Broken("its file in runs/ is missing")


def _check_events(content: bytes) -> None:
    """Checks the frames and checksums of a TensorBoard file."""
    from tensorboard.summary.writer.record_writer import masked_crc32c

    position = 0
    if not content:
        raise Broken("it is empty")
    while position < len(content):
        head = content[position : position + FRAME.size]
        if len(head) < FRAME.size:
            raise Broken("it is cut short")
        length, checksum = FRAME.unpack(head)
        end = position + FRAME.size + length
        if masked_crc32c(head[:8]) != checksum:
            raise Broken("it is garbled")
        if end + FOOT.size > len(content):
            raise Broken("it is cut short")
        if (masked_crc32c(content[position + FRAME.size : end]),) != FOOT.unpack_from(content, end):
            raise Broken("it is garbled")
        position = end + FOOT.size


def _with_its_like(place: str, name: str, path: str) -> tuple[str, ...]:
    """A block is made again only if its curves are gone, and it is its curves and its runs together."""
    return (f"curves/{name}", f"runs/{name}") if place in ("curves", "runs") else (path,)


def _reason(error: Exception, folder: Folder) -> str:
    text = " ".join(str(error).split()).partition("; run `cbp-ray verify")[0].partition("; remove it")[0]
    # Errors about input begin with the file, which is named already.
    return (text.rpartition(SUFFIX + ": ")[2] if folder.location in text else text)[:160] or type(error).__name__
