"""Sweeps as Ray jobs: submit, follow, show, stop. The job runs `python -m cbp_ray run`, which goes on where it stopped."""

import asyncio
import logging
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbp_ray.errors import ClusterError, InputError
from cbp_ray.sweeps import cluster

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

EXCLUDES = """.git .venv venv build dist *.egg-info __pycache__ .mypy_cache .pytest_cache .ruff_cache .hypothesis
/results /data *.parquet *.npz *.nbi *.nbc *.log"""
"""Patterns of what is not sent of the working directory, because the cluster has no use for it."""


STOP_SECONDS = 60
"""How long a job that is told to stop may take to save checkpoints; Ray's own patience ends after 3 s."""


@contextmanager
def _client(address: str, job: str | None = None) -> "Iterator[JobSubmissionClient]":
    """A client of a job server, with the user's token, perhaps to ask about one job.

    Raises:
      InputError: if the server does not answer, is none of Ray's, wants another token, or does not know the job.
      ClusterError: if it fails.
    """
    no_url = f"--address: must be the URL of a job server, got {address!r}; use http://HOST:8265"
    if not address.startswith(("http://", "https://")):
        raise InputError(no_url)
    if "@" in address.partition("://")[2].partition("/")[0]:
        raise InputError("--address: must not hold a user or a password, got a URL with one; the token is in ~/.ray/auth_token")
    if cluster.has_token():
        cluster.use_token()
    import aiohttp
    import requests
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env"):
        logging.getLogger(f"ray.{name}").setLevel(logging.ERROR)
    try:
        client = JobSubmissionClient(address)
    except AuthenticationError:
        raise InputError(f"--address: {cluster.wants_token(address)}") from None
    except requests.exceptions.InvalidURL:
        raise InputError(no_url) from None
    except (RuntimeError, KeyError, TypeError, ValueError, requests.HTTPError):
        # It has asked for the version: 404, or an answer that holds none.
        found = f"another answer from {address}; is it http://HOST:8265?"
        raise InputError(f"--address: must be a job server of Ray, got {found}") from None
    except (ConnectionError, requests.RequestException):
        found = f"no answer from {address}; is it http://HOST:8265?"
        raise InputError(f"--address: must be a running job server, got {found}") from None
    try:
        if job is not None:
            client.get_job_info(job)
        yield client
    except (RuntimeError, ConnectionError, requests.RequestException, aiohttp.ClientError) as error:
        if job is not None and isinstance(error, RuntimeError) and ("404" in str(error) or "does not exist" in str(error)):
            known = f"see `cbp-ray status --address {address}`"
            raise InputError(f"JOB: must be the id of a job at {address}, got {job!r}; {known}") from None
        reason = " ".join(str(error).split())[:300]
        raise ClusterError(f"{address} failed: {reason}; see the logs of its head node") from None


def submit(address: str, arguments: Sequence[str], working_dir: Path) -> str:
    """Starts `python -m cbp_ray run …` as a job and returns the job's id.

    Args:
      address: URL of the job server.
      arguments: after `run`; paths relative to `working_dir`.
      working_dir: sent to the cluster, without `EXCLUDES`.
    """
    with _client(address) as client:
        job: str = client.submit_job(
            entrypoint=shlex.join(["python", "-m", "cbp_ray", "run", *arguments]),
            runtime_env={
                "working_dir": str(working_dir),
                "excludes": EXCLUDES.split(),
                "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)},
            },
            metadata={"program": "cbp-ray"},
        )
    return job


def logs(address: str, job: str) -> str:
    """What a job has printed so far."""
    with _client(address, job) as client:
        return str(client.get_job_logs(job))


def follow(address: str, job: str, show: Callable[[str], None]) -> bool:
    """Shows a job's output until it ends. Returns whether it succeeded."""
    with _client(address, job) as client:

        async def tail() -> None:
            async for text in client.tail_job_logs(job):
                show(text)

        asyncio.run(tail())
        return str(client.get_job_status(job)) == "SUCCEEDED"


def stop(address: str, job: str) -> bool:
    """Stops a job; its sweep can be submitted again. Returns whether it was running."""
    with _client(address, job) as client:
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
