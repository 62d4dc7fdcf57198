"""What runs on the workers: one block of seeds, step by step, and its results into the store."""

import contextlib
import fcntl
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.experiments.engines.engine import Metrics
from cbp_ray.experiments.online import Bin, iterate_online
from cbp_ray.methods import VARIABLE, know_methods
from cbp_ray.results.keys import decode_seeds, encode_seeds
from cbp_ray.results.store import Block, Store
from cbp_ray.sweeps import checkpoints

STEP_SECONDS = 4.0
"""A worker reports about this often. Ctrl-C waits for the step that runs, and Tune waits no longer than 15 s."""

CHECKPOINT_SECONDS = 45.0
"""A trial that lasts longer leaves a checkpoint behind this often."""

TASK_CHECKPOINT_SECONDS = 1.0
"""Permuted MNIST leaves one behind after every task, but of tasks that are shorter than this only after some."""

BLOCK = "block"
"""The one setting of a trial: all of the block as a string, because Tune copies and flattens anything else many times."""


def pack(store: Store, block: Block, **extra: Any) -> str:
    """A block and where its results go, as the setting of a trial."""
    return json.dumps(
        {
            "storage": store.storage.location,
            "sweep": store.sweep,
            "config": block.config.model_dump(mode="json"),
            "engine": block.engine,
            "seeds": encode_seeds(block.seeds),
            "methods": os.environ.get(VARIABLE, ""),
            **extra,
        }
    )


def unpack(text: str) -> tuple[Store, Block, dict[str, Any]]:
    """The inverse of `pack`."""
    spec = json.loads(text)
    know_methods(filter(None, spec.pop("methods").split(",")))
    block = Block(OnlineConfig.make(spec.pop("config")), spec.pop("engine"), decode_seeds(spec.pop("seeds")))
    return Store(spec.pop("storage"), spec.pop("sweep")), block, spec


class RunBlock(tune.Trainable):
    """One block as a Tune trial. The actor is used again for the next block, with everything imported and compiled."""

    def setup(self, config: dict[str, Any]) -> None:
        self._work: Work | None = None
        self._setting = config

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Leaves the block that was (with a checkpoint, if a scheduler stopped it) and takes the next."""
        self.cleanup()
        self._setting = new_config
        return True

    def step(self) -> dict[str, Any]:
        # Begun here and not in `setup`: an error here is the trial's, an error there the actor's.
        if self._work is None:
            self._work = Work(*unpack(self._setting[BLOCK]))
        return self._work.advance()

    def cleanup(self) -> None:
        if self._work is not None:
            self._work.interrupt()
            self._work = None


class Work:
    """The runs of one block, wherever they were left."""

    def __init__(self, store: Store, block: Block, extra: dict[str, Any]) -> None:
        self.store, self.block = store, block
        self.metric: str | None = extra.get("metric")
        self.every_bins: int = extra.get("every_bins", 0)
        self.examples: list[int] = []
        self.points: list[Metrics] = []
        self.last: Bin | None = None
        self.begun = self.saved = time.monotonic()
        self.engine_seconds = 0.0
        self.finished = False
        self.bins: Iterator[Bin] | None = None
        self.device = choose_device(block.engine)
        self.stop: list[Any] | None = extra.get("stop")
        self.already = self.stop is None and store.has(block)
        if self.stop is None and not self.already:
            if block.engine == "kernel":
                compile_once(block.config)
            self.bins = self._iterate()
        self.resumed_examples = self.saved_examples = self.examples[-1] if self.examples else 0

    def _iterate(self) -> Iterator[Bin]:
        config, seeds, engine = self.block.config, self.block.seeds, self.block.engine
        kept = checkpoints.load(self.store, self.block)
        if kept is not None:
            state, examples, points = kept
            try:
                bins = iterate_online(config, seeds, engine, state, self.device)  # type: ignore[arg-type]
            except (InputError, KeyError, ValueError):
                pass  # of another version, say: the block begins anew
            else:
                self.examples, self.points = examples, points
                return bins
        return iterate_online(config, seeds, engine, device=self.device)  # type: ignore[arg-type]

    def advance(self) -> dict[str, Any]:
        """Runs for about `STEP_SECONDS`. Returns what the driver shows; `done` once the results are stored."""
        if self.stop is not None:
            return self._report_stop(*self.stop)
        if self.bins is None:
            return self._report(done=True, written=False)
        until, bins = time.monotonic() + STEP_SECONDS, 0
        while True:
            begun = time.thread_time()
            point = next(self.bins, None)
            self.engine_seconds += time.thread_time() - begun
            if point is None:
                break
            self.last = point
            self.examples.append(point.examples)
            self.points.append(point.metrics)
            now, bins = time.monotonic(), bins + 1
            if now - self.saved >= CHECKPOINT_SECONDS or self._task_ended(now):
                self._save()
            # The last bin is reported together with the end: a scheduler that counts examples would stop the trial before.
            if (now >= until or bins == self.every_bins) and point.index + 1 < point.bins:
                return self._report(done=False)
        return self._report(done=True, written=self._finish())

    def _finish(self) -> bool:
        metrics = {name: np.stack([point[name] for point in self.points], axis=1) for name in self.points[0]}
        curves = Curves(self.block.seeds, np.array(self.examples, dtype=np.int64), metrics)
        about = {
            **environment(),
            "device": self.device,
            "seconds": time.monotonic() - self.begun,
            "engine_seconds": self.engine_seconds,
            "finished": time.time(),
        }
        written = self.store.write(self.block, curves, about)
        checkpoints.remove(self.store, self.block)
        self.finished = True
        return written

    def _task_ended(self, now: float) -> bool:
        """Whether there is a task that a checkpoint would save."""
        length = self.block.config.problem.examples_per_task
        if length is None or now - self.saved < TASK_CHECKPOINT_SECONDS:
            return False
        return self.examples[-1] // length > self.saved_examples // length

    def _save(self) -> None:
        if self.last is not None:
            checkpoints.save(self.store, self.block, self.last.checkpoint(), self.examples, self.points)
            self.saved, self.saved_examples = time.monotonic(), self.examples[-1]

    def interrupt(self) -> None:
        """Keeps what is done so far, if it took long enough to be worth keeping."""
        if not self.finished and self.last is not None and self.engine_seconds > 1:
            self._save()

    def _report(self, done: bool, written: bool = False) -> dict[str, Any]:
        seen = self.block.config.examples if done else (self.examples[-1] if self.examples else 0)
        report = {
            "done": done,
            # Tune sets `done` itself when a scheduler stops a trial; this one is ours.
            "stored": done,
            "examples": seen,
            "new_examples": 0 if self.already else (seen - self.resumed_examples) * len(self.block.seeds),
            "engine_seconds": self.engine_seconds,
            "repeated": done and not written and not self.already,
        }
        if self.metric is not None:
            report[self.metric] = self._value(self.metric)
        return report

    def _report_stop(self, examples: int, value: float) -> dict[str, Any]:
        """What an earlier start of the search said of a trial when it stopped it."""
        assert self.metric is not None
        report = {"done": True, "stored": False, "examples": examples, "new_examples": 0, "engine_seconds": 0.0}
        return report | {"repeated": False, self.metric: value}

    def _value(self, metric: str) -> float:
        """Mean over seeds in the latest bin."""
        if self.already:
            curves = self.store.read_curves(self.block.config, self.block.seeds, self.block.engine)
            return float(curves.mean(metric)[-1])
        return float(self.points[-1][metric].mean()) if self.points else float("nan")


def choose_device(engine: str) -> str:
    """`cuda` for the torch engine in a trial that has reserved a GPU, or a part of one, which torch can use."""
    if engine != "torch" or not ray.is_initialized() or not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@cache
def environment() -> dict[str, Any]:
    """Where and with what the runs are made."""
    versions = {name: version(name) for name in ("cbp-ray", "numpy", "numba", "torch", "ray")}
    return {
        "host": platform.node(),
        "node": ray.get_runtime_context().get_node_id() if ray.is_initialized() else "",
        "cpu": _cpu_model(),
        "python": platform.python_version(),
        "versions": json.dumps(versions),
        "commit": _commit(),
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str:
    """Of the code that runs, if it runs from a checkout."""
    here = Path(__file__).parents[2]
    if not (here / ".git").exists():
        return ""
    command = ["git", "-C", str(here), "rev-parse", "HEAD"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return ""


_compiled: set[str] = set()


def compile_once(config: OnlineConfig) -> None:
    """Compiles what `config` needs, one process of this machine at a time: the others find it in Numba's cache on disk."""
    shape = json.dumps(_kinds(config.model_dump(mode="json")))
    if shape in _compiled:
        return
    directory = Path(tempfile.gettempdir()) / f"cbp-ray-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    with open(directory / "compile.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        smallest: dict[str, Any] = {"examples": 1, "bin_size": 1}
        if config.problem.name == "permuted_mnist":
            # The kernel is the same for any network, and large ones take long to make.
            smallest["network"] = config.network.model_copy(update={"hidden": (1,)})
        for _ in iterate_online(config.model_copy(update=smallest), (0,), "kernel"):
            pass
    _compiled.add(shape)


def _kinds(settings: Any) -> Any:
    """Settings with every number replaced by its sign: what kernels are compiled for depends on no more."""
    if isinstance(settings, dict):
        return {name: _kinds(value) for name, value in settings.items()}
    if isinstance(settings, list):
        return [_kinds(value) for value in settings]
    return settings if isinstance(settings, str | bool) or settings is None else settings > 0
