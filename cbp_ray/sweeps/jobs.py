"""Sweeps as Ray jobs: submit, follow, show, stop. The job runs `python -m cbp_ray run`, which goes on where it stopped."""

import asyncio
import logging
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbp_ray.errors import ClusterError, InputError
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
      InputError: if the server does not answer, is none of Ray's, or wants another token.
      ClusterError: if it fails.
    """
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--address: must be the URL of a job server, got {address!r}; use http://HOST:8265")
    if cluster.has_token():
        cluster.use_token()
    import aiohttp
    import requests
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
        client = JobSubmissionClient(address)
    except AuthenticationError:
        raise InputError(f"--address: {cluster.wants_token(address)}") from None
    except requests.exceptions.InvalidURL:
        raise InputError(f"--address: must be the URL of a job server, got {address!r}; use http://HOST:8265") from None
    except (RuntimeError, KeyError, TypeError, ValueError, requests.HTTPError):
        # It has asked for the version: 404, or an answer that holds none.
        raise InputError(
            f"--address: must be a job server of Ray, got another answer from {address}; is it http://HOST:8265?"
        ) from None
    except (ConnectionError, requests.RequestException):
        raise InputError(
            f"--address: must be a running job server, got no answer from {address}; is it http://HOST:8265?"
        ) from None
    try:
        yield client
    except (RuntimeError, ConnectionError, requests.RequestException, aiohttp.ClientError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ClusterError(f"{address} failed: {reason}; see the logs of its head node") from None


@contextmanager
def _about(job: str, address: str) -> "Iterator[JobSubmissionClient]":
    """A client to ask about one job.

    Raises:
      InputError: if the server does not know it.
    """
    with _client(address) as client:
        try:
            client.get_job_info(job)
        except RuntimeError as error:
            if "404" in str(error) or "does not exist" in str(error):
                known = f"see `cbp-ray status --address {address}`"
                raise InputError(f"JOB: must be the id of a job at {address}, got {job!r}; {known}") from None
            raise
        yield client


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
    sizes: Counter[str] = Counter()
    for path in _sent(working_dir):
        sizes[path.relative_to(working_dir).parts[0]] += path.lstat().st_size
    total = sizes.total()
    if total > LARGEST_UPLOAD_MB * 2**20:
        largest, size = sizes.most_common(1)[0]
        raise InputError(
            f"--working-dir: must be at most {LARGEST_UPLOAD_MB} MB, got {total / 2**20:.0f} MB, of which {largest} has "
            f"{size / 2**20:.0f}; submit from a folder that holds only code and configs"
        )


def _sent(working_dir: Path) -> list[Path]:
    """The files of a working directory that go to the cluster, as Ray itself reads the patterns and .gitignore."""
    from ray._private.runtime_env import packaging

    found: list[Path] = []
    silent = logging.getLogger(__name__)
    excluded = packaging._get_excludes(working_dir, EXCLUDES)
    packaging._dir_travel(working_dir, [excluded], found.append, include_gitignore=True, logger=silent)
    return [path for path in found if not path.is_dir()]


def logs(address: str, job: str) -> str:
    """What a job has printed so far."""
    with _about(job, address) as client:
        return str(client.get_job_logs(job))


def follow(address: str, job: str, show: Callable[[str], None]) -> bool:
    """Shows a job's output until it ends. Returns whether it succeeded."""
    with _about(job, address) as client:

        async def tail() -> None:
            async for text in client.tail_job_logs(job):
                show(text)

        asyncio.run(tail())
        return str(client.get_job_status(job)) == "SUCCEEDED"


def stop(address: str, job: str) -> bool:
    """Stops a job; its sweep can be submitted again. Returns whether it was running."""
    with _about(job, address) as client:
        return bool(client.stop_job(job))


def listed(address: str) -> list[dict[str, Any]]:
    """The jobs of a cluster, the latest first; times are seconds since 1970."""
    with _client(address) as client:
        found = [
            {
                "job": d.submission_id,
                "state": str(d.status),
                "command": d.entrypoint,
                "started": d.start_time / 1000 if d.start_time else None,
                "ended": d.end_time / 1000 if d.end_time else None,
            }
            for d in client.list_jobs()
            if d.submission_id
        ]
    return sorted(found, key=lambda job: -(job["started"] or 0))
