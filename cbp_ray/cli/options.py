"""What several commands share: their options, and the checks of places that they read and write."""

import contextlib
import os
import re
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from cbp_ray.cli.errors import Choice
from cbp_ray.errors import InputError

SCALES = ("paper", "laptop", "smoke")
UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds of each unit of time."""

config_argument = click.argument("config", metavar="CONFIG.yaml", type=click.Path(exists=True, dir_okay=False, path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs to read.")
storage_option = click.option(
    "--storage",
    metavar="DIR",
    default="results",
    show_default=True,
    help="Where results are kept: a folder that all nodes share, or a URI such as s3://bucket/path.",
)
set_option = click.option("--set", "overrides", metavar="A.B=C", multiple=True, help="Replace one setting; may be repeated.")
seeds_option = click.option(
    "--seeds", metavar="SEEDS", help="Seeds instead of those in the config: 0:100 for 0 to 99, or 1,2,5:9."
)
scale_option = click.option(
    "--scale",
    type=Choice(SCALES),
    default="paper",
    show_default=True,
    help="The paper's runs; what a 2-core machine finishes; a few seconds. A sweep file says which it has.",
)
address_option = click.option("--address", metavar="A", help="Ray cluster to run on; a local one is started without it.")
server_option = click.option("--address", metavar="URL", required=True, help="Job server of the cluster, http://HOST:8265.")


class Duration(click.ParamType[float]):
    """A length of time in seconds, typed as `90s`, `30min`, `2h`, `1d` or `1h30min`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).replace(" ", "").lower()
        parts = re.findall(rf"(\d+(?:\.\d+)?)({'|'.join(UNITS)})", text)
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
        if "".join(number + unit for number, unit in parts) != text or not seconds > 0:
            self.fail(f"must be a time with its unit (s, min, h, d), got {value!r}; use 2h, say", param, ctx)
        return seconds


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say how much of the cluster a sweep takes, and for how long."""
    help_text = "Stop cleanly after this time, 90s, 30min or 2h; run again, it goes on."
    time_limit = click.option("--time-limit", metavar="T", type=Duration(), help=help_text)
    most = click.option("--max-concurrent", metavar="N", type=click.IntRange(min=1), help="Run at most N trials at once.")
    return most(time_limit(command))


@contextlib.contextmanager
def limited_time(seconds: float | None) -> Iterator[None]:
    """Interrupts what is inside after a time, exactly as Ctrl-C does."""
    if seconds is None:
        yield
        return

    def interrupt() -> None:
        click.echo(f"time limit of {seconds:g} s reached", err=True)
        # To the process, not raised in this thread: Ray Tune listens to the signal and lets trials save checkpoints.
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def sweep_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say which sweep to run: config, --set, --seeds, --scale and --storage."""
    for option in (storage_option, scale_option, seeds_option, set_option, config_argument):
        command = option(command)
    return command


def check_storage(storage: str, writes: bool = True) -> str:
    """Returns the storage as an absolute path or a URI.

    Raises:
      InputError: for a file, a URI that pyarrow does not know or can't reach, and, if the command writes, for a folder that
        is not writable or is gone after the job.
    """
    check_no_secret(storage, "--storage")
    if writes and in_job():
        check_outlives_job(storage, "--storage")
    if "://" in storage:
        from pyarrow.fs import FileType

        from cbp_ray.results.storage import Folder

        try:
            storage.encode()
            folder = Folder(storage)
            if folder.filesystem.get_file_info(folder.path).type == FileType.File:
                raise ValueError("it is a file")
        except (ValueError, OSError) as error:
            found = f"{storage!r} ({' '.join(str(error).split())[:100]})"
            raise InputError(f"--storage: must be a folder or a URI of pyarrow.fs, got {found}; correct it") from None
        if folder.local is not None:
            _check_readable(folder.local, "--storage")
        return storage
    path = Path(storage).absolute()
    _check_readable(path, "--storage")
    if writes:
        check_writable(path, "--storage")
    return str(path)


def _check_readable(path: Path, option: str) -> None:
    """Refuses what is no folder, and names that no folder can have; one that is not there is empty."""
    try:
        str(path).encode()
        if not stat.S_ISDIR(path.stat().st_mode):
            raise NotADirectoryError("no folder")
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "no folder" if isinstance(error, OSError) else "no text in UTF-8"
        raise InputError(f"{option}: must be a folder, got {str(path)!r} ({reason}); use another") from None


def check_file(path: Path, option: str) -> None:
    """Refuses a path to which no file can be written."""
    check_writable(path.absolute().parent, option)
    try:
        if not path.absolute().parent.is_dir():
            raise FileNotFoundError(0, "there is no such folder")
        if not path.name or path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if path.exists() and not path.is_file():
            raise OSError(0, "it is no file")
    except OSError as error:
        raise InputError(f"{option}: must be a file to write, got {str(path)!r} ({error.strerror}); use another") from None


def check_no_secret(place: str, option: str) -> None:
    """Refuses a URI with a password or a key in it: places are shown, logged, and part of a job's description.

    The message does not quote it.
    """
    head, scheme, rest = place.partition("://")
    if not scheme:
        return
    user = rest.partition("/")[0].rpartition("@")[0]
    if ":" in user or re.search(r"[?&][^=&]*(key|secret|token|password)[^=&]*=", rest, re.IGNORECASE):
        fix = "give it in the environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, say"
        raise InputError(f"{option}: must not hold a password or a key, got a {head} URI with one; {fix}")


def check_writable(path: Path, option: str) -> None:
    """Refuses a path that is no folder, or a folder that can be neither written nor made."""
    reason = ""
    try:
        existing = next(p for p in (path, *path.absolute().parents) if p.exists())
        with tempfile.TemporaryFile(dir=existing):
            return
    except (OSError, RecursionError, UnicodeError) as error:
        # Not every file system that refuses to be written to says so when asked for permission.
        reason = f" ({getattr(error, 'strerror', None) or type(error).__name__})"
    raise InputError(f"{option}: must be a folder that can be written, got {str(path)!r}{reason}; use another")


def in_job() -> bool:
    """Whether this process is the entry point of a Ray job."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def check_outlives_job(place: str, option: str) -> None:
    """Refuses a relative path: in a job it lies in the unpacked working directory, which Ray removes."""
    if "://" not in place and not Path(place).is_absolute():
        raise InputError(f"{option}: must be an absolute path or a URI for a job, got {place!r}; use /shared/cbp, say")


def directory_of(storage: str, output: str | None, scale: str) -> Path:
    """Where drawings go: they need a file system of this machine, results do not."""
    from cbp_ray.results.storage import Folder

    if output is not None:
        if "://" in output:
            raise InputError(f"--output: must be a folder of this machine, got {output!r}; use figures, say")
        if in_job():
            check_outlives_job(output, "--output")
        return Path(output).absolute() / scale
    if (local := Folder(storage).local) is None:
        raise InputError(f"--output: must be given where --storage is no folder ({storage}), got nothing; use --output figures")
    return local / "figures" / scale
