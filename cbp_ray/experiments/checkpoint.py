"""Checkpoints: one uncompressed `.npz` of plain arrays, written atomically and read without pickle."""

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbp_ray.atomic_files import write_whole
from cbp_ray.errors import InputError

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
        with np.load(io.BytesIO(content), allow_pickle=False) as data:
            return {name: data[name] for name in data.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, AttributeError) as error:
        raise InputError(f"checkpoint: must be a .npz file of cbp-ray, got {where} ({error}); remove it") from None


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
