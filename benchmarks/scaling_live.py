"""What trials that run cost the driver by what they report, without Ray: many of them, as if on as many cores.

A process of its own says what one round takes: 20 s or more in the life of a sweep, in which each trial reports five times that
it lives, and once also tells the new bins of its curves, which go to `live/`, to TensorBoard and to the sign of life.
"""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.results.store import Store
from cbp_ray.sweeps import block_run, board_updates, live_curves, load_sweep
from cbp_ray.sweeps.block_run import LivePart, report
from cbp_ray.sweeps.board_updates import BoardUpdates
from cbp_ray.sweeps.cluster import connected
from cbp_ray.sweeps.live_curves import LiveCurves
from cbp_ray.sweeps.plan import find_missing, make_plan
from cbp_ray.sweeps.progress import Heartbeat, Totals
from cbp_ray.sweeps.resolved import record_sweep

ROUNDS, BINS = 7, 7
"""Rounds, of which all but the first count, and bins that each tells of."""
PER_ROUND = round(block_run.LIVE_SECONDS / block_run.STEP_SECONDS)


def measure(file: Path, storage: Path) -> dict[str, Any]:
    """CPU and clock seconds of a round of the trials of a sweep, all of which run at the same time."""
    sweep = load_sweep(file)
    # A round takes as long as it takes: what is due when goes by a clock of our own.
    round_s, passed = block_run.LIVE_SECONDS * block_run.pace_of(len(sweep.configurations)), [0.0]
    for module in (board_updates, live_curves):
        module.time = SimpleNamespace(monotonic=lambda: passed[0])  # type: ignore[attr-defined]
    store = Store(storage, sweep.name)
    with connected(None):
        from cbp_ray.sweeps.trainable import PACKED, pack
        from cbp_ray.sweeps.tune_callback import SweepCallback

        plan = make_plan(find_missing(sweep, store), 10**6)
        totals = Totals(len(plan.trials), plan.runs, 0, len(plan.trials), plan.seconds)
        record = record_sweep(sweep, store)
        live = LiveCurves(store)
        boards = BoardUpdates(sweep, store, (), live, lambda _: None)
        boards.catch_up()
        heartbeat = Heartbeat(store, record, totals)
        callback = SweepCallback(plan, store, totals, lambda _: None, heartbeat, live, boards)
        trials: Any = [
            SimpleNamespace(trial_id=f"{number:08}", config={PACKED: pack(store, each.block, each.group)}, block=each.block)
            for number, each in enumerate(plan.trials)
        ]
        for trial in trials:
            callback.on_trial_start(0, trials, trial)
        cpu = wall = 0.0
        for number in range(ROUNDS):
            if number == 1:
                cpu, wall = time.process_time(), time.monotonic()
            for turn in range(PER_ROUND):
                for trial in trials:
                    part = _part(trial.block.config, number * BINS) if turn == 0 else None
                    callback.on_trial_result(0, trials, trial, told(trial.block.config, number, turn, part))
                    callback.on_step_end(0, trials)
                passed[0] += round_s / PER_ROUND
        cpu, wall = (time.process_time() - cpu) / (ROUNDS - 1), (time.monotonic() - wall) / (ROUNDS - 1)
    reports = PER_ROUND * len(trials)
    found = {"round_s": round_s, "cpu_s_per_round": cpu, "clock_s_per_round": wall, "reports": reports}
    return found | {"cpu_ms_per_report": 1e3 * cpu / reports, "busy": cpu / round_s, "busy_clock": wall / round_s}


def told(config: OnlineConfig, number: int, turn: int, part: LivePart | None) -> dict[str, Any]:
    """A report."""
    examples = config.bin_size * (number * BINS + turn)
    return report(examples=examples, new_examples=examples, engine_seconds=float(number * PER_ROUND + turn), live=part)


def _part(config: OnlineConfig, first: int) -> LivePart:
    """Some bins of a run."""
    values = np.random.default_rng(first).uniform(size=(1, BINS))
    examples = config.bin_size * np.arange(first + 1, first + BINS + 1)
    return LivePart(first, CurveSummary.of(Curves((0,), examples, dict.fromkeys(config.metrics, values))))


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]))))
