"""Checkpoints: one uncompressed `.npz` of plain arrays, written atomically and read without pickle."""

import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbp_ray.atomic_files import write_whole
from cbp_ray.errors import InputError

ENDING = ".npy"
DAMAGE = (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error)
"""What zipfile and NumPy raise about files that are cut short or garbled."""

Checkpoint = dict[str, NDArray[Any]]


def dump(checkpoint: Mapping[str, NDArray[Any]]) -> bytes:
    """A checkpoint as the content of a file."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **checkpoint)
    return buffer.getvalue()


def parse(content: bytes, where: str | os.PathLike[str] = "another file") -> Checkpoint:
    """The inverse of `dump`.

    Raises:
      InputError: if the content is not that of such a checkpoint; it names `where` the content comes from.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(part.file_size for part in archive.infolist()) > len(content):
                raise ValueError("compressed")  # by others: a few bytes may stand for any number
            return {part.filename.removesuffix(ENDING): _array(archive.read(part)) for part in archive.infolist()}
    except DAMAGE as error:
        reason = " ".join(str(error).split())[:80]
        raise InputError(f"checkpoint: must be a .npz file of cbp-ray, got {where} ({reason}); remove it") from None


def _array(content: bytes) -> NDArray[Any]:
    """An array in NumPy's own format, whose head may not ask for more memory than the rest fills."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, _, dtype = read(stream)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(content) - stream.tell():
        raise ValueError("an array of another size")
    stream.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Mapping[str, NDArray[Any]]) -> None:
    """Writes a checkpoint; whatever happens, `path` holds either the old file or the whole new one."""
    write_whole(Path(path), dump(checkpoint))


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Reads what `save_checkpoint` wrote.

    Raises:
      FileNotFoundError: if there is no such file.
      InputError: if the file is not such a checkpoint.
    """
    return parse(Path(path).read_bytes(), path)
