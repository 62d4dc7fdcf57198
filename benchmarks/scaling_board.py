"""TensorBoard over a sweep's folder: when it lists every run, how quickly it answers, and what it takes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import cached_property
from pathlib import Path
from typing import Any

from cbp_ray_benchmarks.scaling_meter import below, open_files, processes, summed

TAG = "performance/error"
START_SECONDS, PATIENCE_SECONDS = 120.0, 900.0


class Board:
    """A TensorBoard of its own on loopback, until `close`.

    Args:
      folder: its `--logdir`.
    """

    def __init__(self, folder: Path) -> None:
        program = shutil.which("tensorboard", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        assert program is not None, "TensorBoard is not installed"
        # It takes a port that is free, and says which.
        command = [program, "--logdir", str(folder), "--host", "127.0.0.1", "--port", "0"]
        self._begun, self._said = time.monotonic(), (folder.parent / "board.err").open("w+")
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._said, start_new_session=True)
        # A proxy of the machine must not be asked.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @cached_property
    def _url(self) -> str:
        while time.monotonic() - self._begun < START_SECONDS and self._process.poll() is None:
            self._said.seek(0)
            if (match := re.search(r"http://[\w.]+:(\d+)/", self._said.read())) is not None:
                return f"http://127.0.0.1:{match[1]}"
            time.sleep(0.1)
        raise RuntimeError("TensorBoard did not start")

    def _get(self, path: str, form: bytes | None = None) -> tuple[float, bytes]:
        begun = time.monotonic()
        with self._open.open(urllib.request.Request(self._url + path, form), timeout=PATIENCE_SECONDS) as answer:
            content = answer.read()
        return time.monotonic() - begun, content

    def _runs(self) -> int:
        try:
            return len(json.loads(self._get("/data/runs")[1]))
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return 0

    def numbers(self, size: int) -> dict[str, Any]:
        """Waits until all of so many runs are listed with their curves, and measures."""
        while (listed := self._runs()) < size:
            if time.monotonic() - self._begun > PATIENCE_SECONDS or self._process.poll() is not None:
                break
            time.sleep(0.1)
        seconds = time.monotonic() - self._begun
        loaded = self._tags()
        while loaded[2] < listed and time.monotonic() - self._begun < PATIENCE_SECONDS:
            time.sleep(0.5)
            loaded = self._tags()
        whole = time.monotonic() - self._begun
        runs_s, runs = self._get("/data/runs")
        name = json.loads(runs)[0]
        curve_s, curve = self._get(f"/data/plugin/scalars/scalars?run={name}&tag={TAG}")
        known = processes()
        ours = [known[pid] for pid in below(self._process.pid, known)]
        return summed(
            {
                "runs": listed,
                "runs_with_curves": loaded[2],
                "listed_after_s": seconds,
                "loaded_after_s": whole,
                "runs_answer_s": runs_s,
                "runs_answer_mb": len(runs) / 1e6,
                "tags_answer_s": loaded[0],
                "tags_answer_mb": loaded[1] / 1e6,
                "curve_answer_s": curve_s,
                "curve_points": len(json.loads(curve)),
                "rss_mb": sum(process.rss for process in ours) / 1e6,
                "cpu_s": sum(process.seconds for process in ours),
                "files": sum(open_files(process.pid) for process in ours),
            }
        )

    def _tags(self) -> tuple[float, int, int]:
        """Seconds and bytes of the answer that says which curves there are, and how many runs have the one of performance."""
        seconds, content = self._get("/data/plugin/scalars/tags")
        return seconds, len(content), sum(TAG in tags for tags in json.loads(content).values())

    def close(self) -> None:
        """Ends it, with the process that reads files for it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()
        self._said.close()
