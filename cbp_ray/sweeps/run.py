"""Running a sweep: plan what is missing, hand it to Ray Tune, keep count."""

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cbp_ray.errors import InputError
from cbp_ray.problems import mnist_files
from cbp_ray.results.keys import seeds_by_key
from cbp_ray.results.store import Store
from cbp_ray.sweeps import checkpoints, cluster, failures
from cbp_ray.sweeps.definition import Resources, Sweep
from cbp_ray.sweeps.plan import Plan, make_plan
from cbp_ray.sweeps.progress import Event, Heartbeat, Listener, Totals, ignore
from cbp_ray.sweeps.records import record_sweep

if TYPE_CHECKING:
    from ray import tune

    from cbp_ray.sweeps.boards import SweepBoards

RETRIES = 2
"""A trial that raises, or whose worker dies, is tried so many times more."""


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended."""

    done: int
    """Trials finished now."""
    repeated: int
    """Trials that ran although another process had stored the same block meanwhile; 0 unless two sweeps run at once."""
    failed: int
    """Trials given up; `cbp-ray status --failed` shows why."""
    stored_runs: int
    """Runs that were there before."""
    runs: int
    """Runs finished now."""
    seconds: float
    """From the first trial to the last result."""
    engine_seconds: float
    """CPU time inside the engine, summed over the workers."""


def run_sweep(
    sweep: Sweep,
    storage: str | os.PathLike[str],
    *,
    address: str | None = None,
    progress: Listener = ignore,
    retries: int = RETRIES,
    tensorboard: bool = True,
) -> Outcome:
    """Runs what a sweep still lacks. Call it again after whatever happened: nothing that is stored runs twice.

    Args:
      sweep: from `load_sweep`.
      storage: folder or URI; all nodes of the cluster must see the same one.
      address: of a Ray cluster; without it, a local one is started for the length of the sweep.
      progress: told of every event.
      retries: of a trial that fails.
      tensorboard: whether to write a TensorBoard run per configuration.

    Returns:
      What was done. Failed trials do not raise.

    Raises:
      InputError: before anything is started or written.
      KeyboardInterrupt: after Ctrl-C; what was done is kept.
    """
    store = Store(storage, sweep.name)
    address = cluster.resolve_address(address)
    if sweep.tune is None:
        # Whether anything is left does not depend on the cluster, and starting one takes seconds.
        plan = make_plan(sweep, store, slots=1)
        if not plan.trials:
            record_sweep(sweep, store)
            totals = Totals(0, 0, plan.stored_runs, 0, 0.0)
            _tidy(store)
            if tensorboard:
                _boards(sweep, store, plan, totals, progress).catch_up()
            progress(Event("end", totals))
            return _outcome(totals)
    else:
        from cbp_ray.sweeps.search import check_search

        check_search(sweep)
    news = _bring_data(sweep)
    with cluster.connected(address):
        slots = cluster.slots(sweep.resources)
        if slots == 0 and address is None:
            raise InputError(_does_not_fit(sweep.resources))
        record = record_sweep(sweep, store)
        plan = make_plan(sweep, store, max(slots, 1))
        totals = Totals(len(plan.trials), plan.runs, plan.stored_runs, slots, plan.seconds)
        progress(Event("start", totals, {"sweep": sweep.name, "storage": store.folder.location}))
        for message in news:
            progress(Event("warning", totals, {"message": message}))
        if slots == 0:
            progress(Event("warning", totals, {"message": f"{_does_not_fit(sweep.resources)} Waiting for one to come up."}))
        heartbeat = Heartbeat(store, record, totals)
        heartbeat.beat(force=True)
        boards = _boards(sweep, store, plan, totals, progress) if tensorboard else None
        try:
            if boards is not None:
                boards.catch_up()
            _fit(sweep, store, plan, totals, progress, heartbeat, boards, retries)
        except BaseException as error:
            heartbeat.beat("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", force=True)
            raise
        _tidy(store)
    return _outcome(totals)


def _boards(sweep: Sweep, store: Store, plan: Plan, totals: Totals, progress: Listener) -> "SweepBoards":
    from cbp_ray.sweeps.boards import SweepBoards

    return SweepBoards(sweep, store, plan.names, lambda message: progress(Event("warning", totals, {"message": message})))


def _bring_data(sweep: Sweep) -> list[str]:
    """Fetches the data sets that are not on this machine yet: one that can't be had is one error, and not one per trial.

    Each other node of a cluster fetches them for itself, when its first trial asks.

    Returns:
      What is new.
    """
    wanted = sorted({name for configuration in sweep.configurations for name in configuration.config.problem.datasets})
    fetched = ((dataset, *mnist_files.fetch(dataset)) for dataset in wanted)
    return [f"{dataset} fetched from {source} to {folder}" for dataset, folder, source in fetched if source]


def _tidy(store: Store) -> None:
    """Removes what is about runs that are stored by now, in whatever blocks."""
    stored = seeds_by_key(store.names())
    failures.drop_stored(store, stored)
    checkpoints.drop_stored(store, stored)


def _fit(
    sweep: Sweep,
    store: Store,
    plan: Plan,
    totals: Totals,
    progress: Listener,
    heartbeat: Heartbeat,
    boards: "SweepBoards | None",
    retries: int,
) -> None:
    from ray import tune

    from cbp_ray.sweeps.bookkeeping import Bookkeeper
    from cbp_ray.sweeps.trainable import BLOCK, RunBlock, pack

    # Pending trials each ask Ray for a placement group: as many as run at once keep every core busy.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(2, totals.slots))
    bookkeeper = Bookkeeper(sweep, store, plan, totals, progress, heartbeat, boards)
    scratch = tempfile.mkdtemp(prefix="cbp-ray-tune-")
    if sweep.tune is not None:
        from cbp_ray.sweeps.search import search_settings

        space, settings = search_settings(sweep, store, totals.slots)
    else:
        space = {BLOCK: tune.grid_search([pack(store, trial.block, group=trial.group) for trial in plan.trials])}
        settings = tune.TuneConfig(reuse_actors=True, trial_name_creator=_short_name, trial_dirname_creator=_short_name)
    try:
        tuner = tune.Tuner(
            tune.with_resources(RunBlock, _request(sweep.resources)),
            param_space=space,
            tune_config=settings,
            run_config=tune.RunConfig(
                # What Tune keeps for itself; results go to the store.
                storage_path=scratch,
                name="tune",
                verbose=0,
                # Trials keep checkpoints of their own, which outlive Tune.
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                failure_config=tune.FailureConfig(max_failures=retries),
                callbacks=[bookkeeper],
            ),
        )
        tuner.fit()
        bookkeeper.finish()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _short_name(trial: "tune.experiment.Trial") -> str:
    return re.sub(r"\W", "_", str(trial.trial_id))


def _request(resources: Resources) -> dict[str, float]:
    request = {"cpu": resources.cpu, "gpu": resources.gpu, "memory": resources.memory_mb * 2**20}
    return {name: amount for name, amount in request.items() if amount}


def _does_not_fit(resources: Resources) -> str:
    wanted = ", ".join(f"{name}={amount:g}" for name, amount in resources.model_dump().items() if amount)
    return f"resources: must fit on a node, got {wanted} and no node that has it; ask for less."


def _outcome(totals: Totals) -> Outcome:
    return Outcome(
        done=totals.trials_done,
        repeated=totals.repeated,
        failed=totals.failed,
        stored_runs=totals.stored_runs,
        runs=totals.runs_done,
        seconds=totals.seconds,
        engine_seconds=totals.engine_seconds,
    )
