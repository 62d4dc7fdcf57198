"""Checkpoints: one uncompressed `.npz` of plain arrays, written atomically and read without pickle."""

import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbp_ray.errors import InputError

Checkpoint = dict[str, NDArray[Any]]


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Mapping[str, NDArray[Any]]) -> None:
    """Writes a checkpoint; whatever happens, `path` holds either the old file or the whole new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            np.savez(file, allow_pickle=False, **checkpoint)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Reads what `save_checkpoint` wrote.

    Raises:
      InputError: if the file is not such a checkpoint.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            return {name: data[name] for name in data.files}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, AttributeError) as error:
        raise InputError(f"checkpoint: must be a .npz file of cbp-ray, got {path} ({error}); remove it") from None
