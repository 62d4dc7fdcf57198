"""The runs of one block on a worker: advanced a few seconds at a time, kept in checkpoints, stored in the end."""

import time
from collections.abc import Iterator
from typing import Any

from cbp_ray.errors import InputError
from cbp_ray.experiments.curves import Curves
from cbp_ray.experiments.engines.engine import Metrics
from cbp_ray.experiments.online import Bin, iterate_online
from cbp_ray.results.store import Block, Store
from cbp_ray.sweeps import unfinished
from cbp_ray.sweeps.compile_lock import compile_once
from cbp_ray.sweeps.provenance import environment

STEP_SECONDS = 4.0
"""A worker reports about this often. Ctrl-C waits for the step that runs, and Tune waits no longer than 15 s."""

CHECKPOINT_SECONDS = 45.0
"""A trial that lasts longer leaves a checkpoint behind this often."""

TASK_CHECKPOINT_SECONDS = 1.0
"""Permuted MNIST leaves one behind after every task, but of tasks that are shorter than this only after some."""


class BlockRun:
    """The runs of one block, begun or resumed from their checkpoint.

    Args:
      store: where results go.
      block: what to run.
      device: where engine `torch` computes.
      metric: a metric to report the latest value of.
      every_bins: how many bins to report after, if that is sooner than a few seconds; 0 for time alone.
      stop: where an earlier start of a search stopped this trial, as examples and value of the metric: it is only reported.
    """

    def __init__(
        self,
        store: Store,
        block: Block,
        device: str = "cpu",
        metric: str | None = None,
        every_bins: int = 0,
        stop: tuple[int, float] | None = None,
    ) -> None:
        self.store, self.block, self.device = store, block, device
        self.metric, self.every_bins, self.stop = metric, every_bins, stop
        self.examples: list[int] = []
        self.points: list[Metrics] = []
        self.last: Bin | None = None
        self.begun = self.saved = time.monotonic()
        self.engine_seconds = 0.0
        self.finished = False
        self.already = stop is None and store.has(block)
        self.bins: Iterator[Bin] | None = None
        if stop is None and not self.already:
            compile_once(block.config, block.engine)
            self.bins = self._iterate()
        self.resumed_examples = self.saved_examples = self.examples[-1] if self.examples else 0

    @property
    def curves(self) -> Curves:
        """The curves so far."""
        return Curves.of(self.block.seeds, self.examples, self.points, self.block.config.metrics)

    def _iterate(self) -> Iterator[Bin]:
        config, seeds, engine = self.block.config, self.block.seeds, self.block.engine
        kept = unfinished.load(self.store, self.block)
        if kept is not None:
            state, curves = kept
            try:
                bins = iterate_online(config, seeds, engine, state, self.device)  # type: ignore[arg-type]
            except (InputError, KeyError, ValueError):
                pass  # of another version, say: the block begins again
            else:
                self.examples, self.points = curves.examples.tolist(), curves.points()
                return bins
        return iterate_online(config, seeds, engine, device=self.device)  # type: ignore[arg-type]

    def advance(self) -> dict[str, Any]:
        """Runs for about `STEP_SECONDS`. Returns what the driver shows; `done` once the results are stored."""
        if self.stop is not None or self.bins is None:
            return self._report(done=True)
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
        times = {"seconds": time.monotonic() - self.begun, "engine_seconds": self.engine_seconds, "finished": time.time()}
        self.store.write(self.block, self.curves, environment() | {"device": self.device} | times)
        unfinished.remove(self.store, self.block)
        self.finished = True
        return self._report(done=True)

    def interrupt(self) -> None:
        """Keeps what is done so far, if it took long enough to be worth keeping."""
        if not self.finished and self.engine_seconds > 1:
            self._save()
        if not self.finished and self.metric is not None and self.points:
            # A search has perhaps stopped it: its curves are kept, although it is not complete.
            self.store.write_partial(self.block, self.curves)

    def _task_ended(self, now: float) -> bool:
        """Whether a task has ended that a checkpoint would save."""
        length = self.block.config.problem.examples_per_task
        if length is None or now - self.saved < TASK_CHECKPOINT_SECONDS:
            return False
        return self.examples[-1] // length > self.saved_examples // length

    def _save(self) -> None:
        if self.last is not None:
            unfinished.save(self.store, self.block, self.last.checkpoint(), self.curves)
            self.saved, self.saved_examples = time.monotonic(), self.examples[-1]

    def _report(self, done: bool) -> dict[str, Any]:
        seen = self.block.config.examples if done else self.examples[-1]
        seen = seen if self.stop is None else self.stop[0]
        report = {
            "done": done,
            # Tune sets `done` itself when a scheduler stops a trial; this one is ours.
            "stored": done and self.stop is None,
            "examples": seen,
            "new_examples": 0 if self.bins is None else (seen - self.resumed_examples) * len(self.block.seeds),
            "engine_seconds": self.engine_seconds,
        }
        return report if self.metric is None else report | {self.metric: self._value(self.metric)}

    def _value(self, metric: str) -> float:
        """The metric's mean over seeds in the latest bin."""
        if self.stop is not None:
            return self.stop[1]
        if self.already:
            return float(self.store.read_curves(self.block.config, self.block.seeds, self.block.engine).mean(metric)[-1])
        return float(self.points[-1][metric].mean()) if self.points else float("nan")
