"""Sweeps as Ray jobs: submit, follow, show, stop. The job runs `python -m cbp_ray run`, which goes on where it stopped."""

import asyncio
import logging
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbp_ray.errors import InputError
from cbp_ray.sweeps import cluster

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

EXCLUDES = [
    ".git",
    ".venv",
    "venv",
    "build",
    "dist",
    "*.egg-info",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    "/results",
    "/data",
    "*.parquet",
    "*.npz",
    "*.nbi",
    "*.nbc",
    "*.log",
]
"""Of the working directory, what the cluster has no use for."""

LARGEST_UPLOAD_MB = 100


@contextmanager
def _client(address: str) -> "Iterator[JobSubmissionClient]":
    """A client of a job server, with the user's token.

    Raises:
      InputError: if the server does not answer, or wants another token.
    """
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--address: must be the URL of a job server, got {address!r}; use http://HOST:8265")
    if cluster.has_token():
        cluster.use_token()
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for name in (
        "dashboard.modules.dashboard_sdk",
        "dashboard.modules.job.sdk",
        "_private.runtime_env.packaging",
        "_private.runtime_env.working_dir",
    ):
        logging.getLogger(f"ray.{name}").setLevel(logging.ERROR)
    try:
        yield JobSubmissionClient(address)
    except ConnectionError:
        raise InputError(
            f"--address: must be a running job server, got no answer from {address}; is it http://HOST:8265?"
        ) from None
    except AuthenticationError:
        what = "got another" if cluster.has_token() else "got none"
        raise InputError(f"--address: {address} wants its token, {what}; {cluster.HOW_TO_GET_A_TOKEN}") from None
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if "404" in reason or "does not exist" in reason:
            raise InputError(
                f"JOB: must be the id of a job at {address}, got one it does not know; see `ray job list`"
            ) from None
        raise


def submit(address: str, arguments: Sequence[str], working_dir: Path) -> str:
    """Starts `python -m cbp_ray run …` as a job.

    Args:
      address: URL of the job server.
      arguments: after `run`; paths relative to `working_dir`.
      working_dir: sent to the cluster, without `EXCLUDES`.

    Returns:
      The job's id.
    """
    check_size(working_dir)
    with _client(address) as client:
        job: str = client.submit_job(
            entrypoint=shlex.join(["python", "-m", "cbp_ray", "run", *arguments]),
            runtime_env={"working_dir": str(working_dir), "excludes": EXCLUDES},
            metadata={"program": "cbp-ray"},
        )
    return job


def check_size(working_dir: Path) -> None:
    """Refuses a folder that is too large to send.

    Raises:
      InputError: naming its largest part.
    """
    sizes = {entry.name: _size(entry) for entry in working_dir.iterdir() if not _excluded(entry)}
    total = sum(sizes.values())
    if total > LARGEST_UPLOAD_MB * 2**20:
        largest = max(sizes, key=lambda name: sizes[name])
        raise InputError(
            f"--working-dir: must be at most {LARGEST_UPLOAD_MB} MB, got {total / 2**20:.0f} MB, of which {largest} has "
            f"{sizes[largest] / 2**20:.0f}; submit from a folder that holds only code and configs"
        )


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(_size(entry) for entry in path.iterdir() if not _excluded(entry))


def _excluded(path: Path) -> bool:
    return any(path.match(pattern.lstrip("/")) for pattern in EXCLUDES)


def logs(address: str, job: str) -> str:
    """What a job has printed so far."""
    with _client(address) as client:
        return str(client.get_job_logs(job))


def follow(address: str, job: str, show: Callable[[str], None]) -> bool:
    """Shows a job's output until it ends. Returns whether it succeeded."""
    with _client(address) as client:

        async def tail() -> None:
            async for text in client.tail_job_logs(job):
                show(text)

        asyncio.run(tail())
        return str(client.get_job_status(job)) == "SUCCEEDED"


def stop(address: str, job: str) -> bool:
    """Stops a job; its sweep can be submitted again. Returns whether it was running."""
    with _client(address) as client:
        return bool(client.stop_job(job))


def listed(address: str) -> list[dict[str, Any]]:
    """The jobs of a cluster, the latest first."""
    with _client(address) as client:
        found = [
            {"job": d.submission_id, "status": str(d.status), "entrypoint": d.entrypoint, "started": d.start_time}
            for d in client.list_jobs()
            if d.submission_id
        ]
    return sorted(found, key=lambda job: -(job["started"] or 0))
