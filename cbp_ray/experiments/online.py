"""Online experiments: a config and seeds in, learning curves out. The loop is a generator; what surrounds it is yours."""

import functools
import itertools
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from cbp_ray.errors import InputError
from cbp_ray.experiments.checkpoint import Checkpoint
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.experiments.engines import EngineName, make_engine
from cbp_ray.experiments.engines.engine import Engine, Metrics, check_complete
from cbp_ray.validation import SEEDS, whole_number

if TYPE_CHECKING:
    from cbp_ray.experiments.diagnostics import Diagnostics

FORMAT = 3
"""Version of the checkpoints."""

MOST_RUNS = 1_000_000
"""Most seeds of one call."""

UNFIT = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError)
"""What NumPy, torch and our own classes raise when they are to go on from arrays that are not theirs."""

STATE, DIAGNOSTICS = "state/", "diagnostics/"


@dataclass(frozen=True)
class Bin:
    """One point of every run's learning curve."""

    index: int
    """Number of the bin, from 0."""
    bins: int
    """Number of bins of the whole run."""
    examples: int
    """Examples that each run has seen so far."""
    metrics: Metrics
    """What the bin records, each [seeds]; see `config.metrics`."""
    _checkpoint: Callable[[], Checkpoint]
    units: Metrics = field(default_factory=dict)
    """What generate-and-test sees of the hidden units at the bin's end, each [seeds]; see `engines.engine.UNITS`."""

    def checkpoint(self) -> Checkpoint:
        """Plain arrays from which `iterate_online(…, state=…)` goes on after this bin.

        Raises:
          RuntimeError: if the runs have gone on since; take it before the next bin.
        """
        return self._checkpoint()


@dataclass(frozen=True)
class Pause:
    """A moment within a bin."""

    examples: int
    """Examples that each run has seen so far, on average."""


def iterate_online(
    config: Mapping[str, Any] | OnlineConfig,
    seeds: Iterable[int] = range(100),
    engine: EngineName = "kernel",
    state: Checkpoint | None = None,
    device: str = "cpu",
) -> Iterator[Bin]:
    """Advances all runs bin by bin. No threads, no globals, nothing written.

    Args:
      config: a mapping or an `OnlineConfig`.
      seeds: one run each; a run does not depend on which others there are.
      engine: `kernel` (fast), `torch` (the reference), or `rllib` (Slippery Ant).
      state: a checkpoint of the same config, seeds and engine to go on from.
      device: where engine `torch` computes, `cuda` say. Numbers of another kind of device agree to rounding.

    Yields:
      A `Bin` after every `config.bin_size` examples, from the checkpoint's next bin on.

    Raises:
      InputError: at the call, not at the first bin.
    """
    return (point for point in iterate_with_pauses(config, seeds, engine, state, device) if isinstance(point, Bin))


def iterate_with_pauses(
    config: Mapping[str, Any] | OnlineConfig,
    seeds: Iterable[int] = range(100),
    engine: EngineName = "kernel",
    state: Checkpoint | None = None,
    device: str = "cpu",
) -> Iterator[Bin | Pause]:
    """Does what `iterate_online` does, and also pauses within bins that take long, where the engine can."""
    config, seeds = OnlineConfig.make(config), check_seeds(seeds)
    runner = make_engine(config, engine, seeds, device)
    diagnostics = _make_diagnostics(config, seeds, runner) if config.diagnostics else None
    try:
        first = 0 if state is None else _resume(runner, diagnostics, state, config, seeds, engine)
    except UNFIT as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())[:100]
        raise InputError(f"state: must be a whole checkpoint of this config, got another ({reason}); start again") from None
    return _bins(runner, diagnostics, config, seeds, engine, first)


def _make_diagnostics(config: OnlineConfig, seeds: tuple[int, ...], runner: Engine) -> "Diagnostics":
    # It needs torch, which kernel workers otherwise do without.
    from cbp_ray.experiments.diagnostics import Diagnostics

    return Diagnostics(config, seeds, runner)


def run_online(
    config: Mapping[str, Any] | OnlineConfig,
    seeds: Iterable[int] = range(100),
    engine: EngineName = "kernel",
    progress: Callable[[Bin], None] | None = None,
    state: Checkpoint | None = None,
    device: str = "cpu",
) -> Curves:
    """Runs one online experiment, once per seed, on the calling thread.

    Args:
      config: a mapping or an `OnlineConfig`.
      seeds: one run each.
      engine: `kernel` (fast), `torch` (the reference), or `rllib` (Slippery Ant).
      progress: called after every bin.
      state: a checkpoint to go on from; the curves then begin after it.
      device: where engine `torch` computes.

    Returns:
      The curves.

    Example:
      >>> config = {"algorithm": {"name": "bp"}, "optimizer": {"name": "sgd", "step_size": 0.01}, "examples": 40_000}
      >>> run_online(config, seeds=range(2), engine="kernel").error.shape
      (2, 2)
    """
    config, seeds = OnlineConfig.make(config), check_seeds(seeds)
    bins = []
    for point in iterate_online(config, seeds, engine, state, device):
        bins.append(point)
        if progress is not None:
            progress(point)
    curves = Curves.of(seeds, [point.examples for point in bins], [point.metrics for point in bins], config.metrics)
    _warn_of_divergence(config, curves)
    return curves


def _warn_of_divergence(config: OnlineConfig, curves: Curves) -> None:
    loss = config.problem.loss
    if loss is None:
        return
    diverged = [seed for seed, curve in zip(curves.seeds, curves[loss], strict=True) if not np.isfinite(curve).all()]
    if diverged:
        which = f"seed {diverged[0]}" if len(diverged) == 1 else f"{len(diverged)} of {len(curves.seeds)} runs"
        warnings.warn(
            f"run_online: {which} diverged: {loss} is not finite from some bin on; lower optimizer.step_size",
            RuntimeWarning,
            stacklevel=3,
        )


def check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """The seeds as Python integers.

    Raises:
      InputError: if there are none, or one is not an integer of 64 bits or comes twice.
    """
    # Counted before they are looked at: a range may have more than memory holds.
    if isinstance(seeds, str | bytes | Mapping) or (isinstance(seeds, range) and seeds[MOST_RUNS:]):
        raise InputError(f"seeds: must be at most {MOST_RUNS:,} whole numbers, got {seeds!r}; use range(100), say")
    try:
        seeds = list(itertools.islice(seeds, MOST_RUNS + 1))
    except TypeError:
        raise InputError(f"seeds: must be several whole numbers, got {seeds!r}; use range(100) or [0], say") from None
    checked = tuple(whole_number("seeds", seed, below=SEEDS) for seed in seeds)
    if len(checked) > MOST_RUNS:
        raise InputError(f"seeds: must be at most {MOST_RUNS:,}, got more; use fewer")
    if not checked:
        raise InputError("seeds: must name at least one run, got none; use range(100), say")
    if len(set(checked)) < len(checked):
        twice = next(seed for seed, after in itertools.pairwise(sorted(checked)) if seed == after)
        raise InputError(f"seeds: must differ, got {twice} twice; runs of the same seed are the same")
    return checked


def _bins(
    runner: Engine,
    diagnostics: "Diagnostics | None",
    config: OnlineConfig,
    seeds: tuple[int, ...],
    engine: str,
    first: int,
) -> Iterator[Bin | Pause]:
    begun = first

    def checkpoint(bins: int) -> Checkpoint:
        if begun != bins:
            raise RuntimeError(f"checkpoint: the runs have gone on since bin {bins - 1}; take it before the next bin")
        return {
            "format": np.array(FORMAT),
            "engine": np.array(engine),
            "config": np.array(config.model_dump_json()),
            "seeds": np.array(seeds, dtype=np.uint64),
            "bins": np.array(bins),
            **{STATE + name: array for name, array in runner.state().items()},
            **{DIAGNOSTICS + name: array for name, array in (diagnostics.state if diagnostics else {}).items()},
        }

    for index in range(first, config.bins):
        begun, seen = index + 1, index * config.bin_size
        count = min(config.bin_size, config.examples - seen)
        metrics = yield from _pauses(runner.advance_in_parts(count), seen, count)
        if diagnostics is not None:
            metrics = {**metrics, **diagnostics.measure(seen + count)}
        point = functools.partial(checkpoint, begun)
        yield Bin(index, config.bins, seen + count, metrics, point, runner.units())


def _pauses(parts: Generator[int, None, Metrics], seen: int, count: int) -> Generator[Pause, None, Metrics]:
    """The pauses of an engine within a bin of `count` examples, before which each run has seen `seen`."""
    while True:
        try:
            part = next(parts)
        except StopIteration as end:
            metrics: Metrics = end.value
            return metrics
        if part < count:
            yield Pause(seen + part)


def _resume(
    runner: Engine,
    diagnostics: "Diagnostics | None",
    state: Checkpoint,
    config: OnlineConfig,
    seeds: tuple[int, ...],
    engine: str,
) -> int:
    """Loads the state and returns the first bin that is still to come."""
    if not isinstance(state, Mapping) or str(state.get("format")) != str(FORMAT):
        state = state if isinstance(state, Mapping) else {"format": type(state).__name__}
        raise InputError(f"state: must be a checkpoint of format {FORMAT}, got {state.get('format')}; start again")
    check_complete(state, ("engine", "config", "seeds", "bins"))
    if str(state["engine"]) != engine:
        raise InputError(f"state: was made by engine {str(state['engine'])!r}, got engine={engine!r}; use the same")
    try:
        saved = OnlineConfig.model_validate_json(str(state["config"]))
    except ValidationError:
        raise InputError("state: must hold a config of this version, got one that it does not know; start again") from None
    # A longer run of the same experiment may go on from it.
    if saved.model_copy(update={"examples": config.examples}) != config:
        raise InputError("state: belongs to another config, got a checkpoint whose settings differ; start again")
    if tuple(int(seed) for seed in state["seeds"]) != seeds:
        raise InputError(f"state: has other seeds ({len(state['seeds'])} of them), got {len(seeds)}; use the same")
    bins = int(state["bins"])
    if not 0 <= bins <= saved.bins:
        raise InputError(f"state: must have from 0 to {saved.bins} bins, got {bins}; start again")
    seen = min(bins * saved.bin_size, saved.examples)
    if seen > config.examples:
        raise InputError(f"state: has seen {seen} examples, got a config with examples = {config.examples}; use more")
    if seen < config.examples and seen != bins * saved.bin_size:
        raise InputError("state: ends with a shorter bin, got a config that goes on from there; start again")
    runner.load_state({name.removeprefix(STATE): a for name, a in state.items() if name.startswith(STATE)}, seen)
    if diagnostics is not None:
        own = {name.removeprefix(DIAGNOSTICS): a for name, a in state.items() if name.startswith(DIAGNOSTICS)}
        diagnostics.load_state(own)
    return bins
