"""Running a sweep: plan what is missing, hand it to Ray Tune, keep count."""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cbp_ray.errors import ClusterError, InputError, StorageError
from cbp_ray.problems import mnist_files
from cbp_ray.results.keys import BlockName, config_key
from cbp_ray.results.store import Store
from cbp_ray.results.verify import damaged_blocks, is_damaged, remove_block
from cbp_ray.sweeps import cluster
from cbp_ray.sweeps.live_curves import LiveCurves
from cbp_ray.sweeps.plan import Plan, find_missing, make_plan
from cbp_ray.sweeps.progress import Event, Heartbeat, Listener, Totals
from cbp_ray.sweeps.resolved import record_sweep
from cbp_ray.sweeps.scratch import remove_forsaken_scratch, scratch_folder
from cbp_ray.sweeps.search_log import SearchLog, search_key
from cbp_ray.sweeps.sweep import Resources, Sweep

if TYPE_CHECKING:
    from ray import tune

    from cbp_ray.sweeps.tune_callback import SweepCallback

RETRIES = 2
"""How many times more a trial is tried that raises, or whose worker dies."""


def run_sweep(
    sweep: Sweep,
    storage: str | os.PathLike[str],
    *,
    address: str | None = None,
    progress: Listener = lambda _: None,
    retries: int = RETRIES,
    tensorboard: bool = True,
    max_concurrent: int | None = None,
) -> Totals:
    """Runs what a sweep still lacks. Call it again after whatever happened: nothing that is stored runs twice.

    Args:
      sweep: what to run, from `load_sweep`.
      storage: folder or URI; all nodes of the cluster must see the same one.
      address: address of a Ray cluster; without it, a local one is started for the length of the sweep.
      progress: told of one event after the other; now and then from another thread.
      retries: how many times more a trial is tried that fails.
      tensorboard: whether to write a TensorBoard run per configuration.
      max_concurrent: how many trials may run at the same time; as many as fit without it.

    Returns:
      What was done. Failed trials do not raise.

    Raises:
      InputError: before anything is started or written.
      StorageError: if the storage fails where that can't wait; what was done is kept.
      KeyboardInterrupt: after Ctrl-C; what was done is kept.
    """
    # Its protocol buffers take half a second to load, and `cbp-ray status`, which imports this, needs none.
    from cbp_ray.sweeps.block_run import check_patience
    from cbp_ray.sweeps.board_updates import BoardUpdates, most_runs

    store = Store(storage, sweep.name)
    address = cluster.resolve_address(address)
    most_runs()  # refuses what is no number
    check_patience()
    if sweep.loggers:
        from cbp_ray.sweeps.loggers import LoggerUpdates, check_loggers

        check_loggers(sweep, store)

    # The watch over a cluster speaks from a thread of its own.
    one_at_a_time = threading.RLock()

    def tell(event: Event) -> None:
        with one_at_a_time:
            progress(event)

    def say(doing: str) -> None:
        tell(Event("phase", Totals(0, 0, 0, 0, 0.0, doing=doing)))

    say(f"looking up what is stored in {store.folder.location}")
    damaged = _damaged(sweep, store)
    missing = find_missing(sweep, store, damaged)
    # Whether anything is left does not depend on the cluster, and starting one takes seconds.
    news = _bring_data(sweep) if missing.any else []
    if missing.any:
        say("starting Ray" if address is None else f"connecting to Ray at {address}")
    with _files_named(), cluster.connected(address) if missing.any else contextlib.nullcontext():
        slots = cluster.slots(sweep.resources, sweep.helpers) if missing.any else 0
        slots = min(slots, max_concurrent or slots)
        if missing.any and slots == 0 and address is None:
            raise InputError(_does_not_fit(sweep))
        plan = make_plan(missing, max(slots, 1))
        totals = Totals(len(plan.trials), plan.runs, plan.stored_runs, slots, plan.seconds)
        totals.stored_seconds, totals.resumed_trials, totals.doing = plan.stored_seconds, plan.resumed, "starting workers"

        def warn(message: str) -> None:
            tell(Event("warning", totals, {"message": message}))

        for name in damaged:
            # Another start may have made it again by now.
            if is_damaged(store, name):
                remove_block(store, name)
                news.append(f"{name} is damaged; its runs are made again")
        record = record_sweep(sweep, store)
        live = LiveCurves(store)
        boards = BoardUpdates(sweep, store, missing.names, live, warn) if tensorboard else None
        loggers = [LoggerUpdates(sweep, store, missing.names, warn)] if sweep.loggers else []
        if missing.any:
            tell(Event("start", totals, {"sweep": sweep.name, "storage": store.folder.location}))
            if slots == 0:
                news.append(f"{_does_not_fit(sweep)} Waiting for one to come up.")
        for message in news:
            warn(message)
        heartbeat = Heartbeat(store, record, totals)
        try:
            if missing.any:
                heartbeat.beat(force=True)
            if boards is not None:
                boards.catch_up()
            if missing.any:
                from cbp_ray.sweeps.tune_callback import SweepCallback

                callback = SweepCallback(plan, store, totals, tell, heartbeat, live, boards)
                # That a GCS of our own is dead, the driver notices by itself, and soon.
                with cluster.watched(warn) if address is not None else contextlib.nullcontext():
                    _fit(plan, store, slots, retries, callback, max_concurrent, loggers)
            else:
                for each in loggers:
                    if each.pending():
                        with cluster.connected(address):
                            each.setup()
                            each.finish()
                # A process that was killed after its last trial has left the sign that it runs.
                heartbeat.beat("finished", force=True)
                tell(Event("end", totals))
        except BaseException as error:
            # Ray turns the signal that stops a job into SystemExit.
            stopped = isinstance(error, KeyboardInterrupt | SystemExit)
            heartbeat.beat("interrupted" if stopped else "failed", force=True)
            raise
        finally:
            if boards is not None:
                boards.close()
        store.tidy()
        remove_forsaken_scratch()
    totals.ended = time.monotonic()
    return totals


def _damaged(sweep: Sweep, store: Store) -> set[BlockName]:
    """Stored blocks of this sweep of which a byte is not as it was written."""
    if sweep.tune is not None:
        own = {name.key for name in SearchLog(store, search_key(sweep)).drawn()}
    else:
        own = {config_key(configuration.config, sweep.engine) for configuration in sweep.configurations}
    return set(damaged_blocks(store, own))


@contextlib.contextmanager
def _files_named() -> Iterator[None]:
    """Makes one line of what the operating system says of files, also where Tune has put it into an error of its own."""
    try:
        yield
    except (InputError, ClusterError):
        raise
    except Exception as error:
        cause = error if isinstance(error, OSError) else error.__context__
        # Ray's own time-outs and lost connections have no number.
        if not isinstance(cause, OSError) or isinstance(cause, ConnectionError) or cause.errno is None:
            raise
        raise StorageError(f"a file can't be written or read ({cause}); mend that, and run the same command again") from error


def _bring_data(sweep: Sweep) -> list[str]:
    """Fetches the data sets that are not on this machine yet, and returns a message for each that is new.

    Each other node of a cluster fetches them for itself, when its first trial asks.
    """
    wanted = sorted({name for configuration in sweep.configurations for name in configuration.config.problem.datasets})
    fetched = ((dataset, *mnist_files.fetch(dataset)) for dataset in wanted)
    return [f"{dataset} fetched from {source} to {folder}" for dataset, folder, source in fetched if source]


def _fit(
    plan: Plan,
    store: Store,
    slots: int,
    retries: int,
    callback: "SweepCallback",
    max_concurrent: int | None = None,
    loggers: "Sequence[tune.Callback]" = (),
) -> None:
    """Runs the trials of a plan with Tune."""
    from ray import tune
    from ray.exceptions import GetTimeoutError, RpcError

    from cbp_ray.sweeps.block_run import pace_of
    from cbp_ray.sweeps.in_order import InOrder, Listed
    from cbp_ray.sweeps.trainable import PACKED, RunBlock, bundles, pack
    from cbp_ray.sweeps.worker_deaths import counted_once

    # Pending trials each ask Ray for a placement group: as many as run at once keep every core busy.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(2, slots))
    if plan.sweep.tune is not None:
        from cbp_ray.sweeps.search import search_settings

        settings = search_settings(plan.sweep, store, slots)
    else:
        pace = pace_of(min(slots, len(plan.trials)))
        about: Any = {"pace": pace} if pace > 1 else {}
        settings = tune.TuneConfig(
            search_alg=Listed({PACKED: pack(store, trial.block, trial.group, **about)} for trial in plan.trials),
            num_samples=len(plan.trials),
            scheduler=InOrder(),
            reuse_actors=True,
            trial_name_creator=_short_name,
            trial_dirname_creator=_short_name,
            max_concurrent_trials=max_concurrent,
        )
    with scratch_folder() as scratch:
        run_config = tune.RunConfig(
            # What Tune keeps for itself; results go to the store.
            storage_path=scratch,
            name="tune",
            verbose=0,
            # Trials keep checkpoints of their own, which outlive Tune.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=retries),
            callbacks=[callback, *loggers],
        )
        request: Any = _request(plan.sweep.resources)
        # Asked for each trial, of which there may be many thousands.
        resources = partial(bundles, request) if plan.sweep.helpers else tune.PlacementGroupFactory([request])
        trainable = tune.with_resources(RunBlock, resources)
        try:
            with counted_once():
                tune.Tuner(trainable, tune_config=settings, run_config=run_config).fit()
        except (GetTimeoutError, RpcError) as error:
            # Its own calls of the GCS, after a network that was silent for a while.
            reason = " ".join(str(error).split())
            raise ClusterError(f"Ray does not answer ({reason[:300]}); run the same command again to go on") from error
        callback.finish()


def _short_name(trial: "tune.experiment.Trial") -> str:
    return re.sub(r"\W", "_", str(trial.trial_id))


def _request(resources: Resources) -> dict[str, float]:
    request = {"CPU": resources.cpu, "GPU": resources.gpu, "memory": resources.memory_mb * 2**20}
    return {name: amount for name, amount in request.items() if amount}


def _does_not_fit(sweep: Sweep) -> str:
    wanted = ", ".join(f"{name}={amount:g}" for name, amount in sweep.resources.model_dump().items() if amount)
    if sweep.helpers:
        return (
            f"problem.env_runners: must fit on the cluster, got {sweep.helpers} beside {wanted} and fewer cores; ask for fewer."
        )
    return f"resources: must fit on a node, got {wanted} and no node that has it; ask for less."
