"""Weights & Biases and MLflow, for sweep files that ask for them: one run per configuration, when it is complete.

Ray Tune's own logger callbacks do the work. They make a run per trial; a trial of ours is only some seeds of a configuration,
so they are given configurations in the place of trials, with the curve over all seeds. A sweep that does not name a logger
sends nothing to anybody.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from ray.tune import Callback
from ray.tune.experiment import Trial as TuneTrial

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.extras import need
from cbp_ray.results.intervals import mean_interval
from cbp_ray.results.keys import BlockName, config_key, encode_seeds
from cbp_ray.results.run_names import RunNames, flat_settings
from cbp_ray.results.store import Block, Store
from cbp_ray.results.summaries import Summary, plain_settings
from cbp_ray.sweeps.search_log import SearchLog, search_key
from cbp_ray.sweeps.sweep import Sweep
from cbp_ray.sweeps.trainable import PACKED, unpack

FOLDER = "loggers"
"""Folder of a sweep that notes which configurations a logger has been told of, with which seeds."""
OFFLINE = ("offline", "disabled", "dryrun")
PROJECT = "cbp-ray"
"""Project of Weights & Biases, unless WANDB_PROJECT names another."""


@dataclass(frozen=True, eq=False)
class ConfigurationRun:
    """What the logger callbacks of Ray Tune ask of a trial, for all runs of one configuration together."""

    trial_id: str
    """Name of the run to the tracker's program."""
    name: str
    """Name of the run to people."""
    config: dict[str, Any]
    """Settings that are shown with the run."""
    local_path: str
    """Folder in which the tracker may leave files."""
    experiment_dir_name: str
    """Name of the sweep."""

    def __str__(self) -> str:
        return self.name


class Tracker:
    """One logger callback of Ray Tune, which is told of whole configurations."""

    name: str
    """What sweep files call it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._callback: Any = None

    @property
    def folder(self) -> Path:
        """Where the tracker keeps files of its own: in the sweep's folder, if that is on a file system of this machine."""
        local = self.store.folder.local
        return Path(tempfile.gettempdir()) if local is None else local

    def check(self) -> None:
        """Refuses to start without the package, an account, or a place for files.

        Raises:
          InputError: one line that says what to install or to set.
        """

    def make(self) -> Any:
        """The callback of Ray Tune."""
        raise NotImplementedError

    def prepare(self, run: ConfigurationRun) -> None:
        """Makes room for a run: one of the same configuration with fewer seeds goes."""

    def log(self, run: ConfigurationRun, points: Iterable[dict[str, float]]) -> None:
        """Makes one run of a configuration's curve."""
        if self._callback is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._callback = self.make()
            self._callback.setup()
        self.prepare(run)
        self._callback.log_trial_start(run)
        for number, point in enumerate(points):
            self._callback.log_trial_result(number, run, point)
        self._callback.log_trial_end(run)
        # Waits for this run: thousands of configurations must not have a process each at the same time.
        self._callback.on_experiment_end(trials=[])


class Wandb(Tracker):
    """Weights & Biases: a run has the configuration's key as its id, so that one with more seeds takes its place."""

    name = "wandb"

    def check(self) -> None:
        need("wandb", "wandb")
        if os.environ.get("WANDB_MODE") in OFFLINE:
            if self.store.folder.local is None and os.environ["WANDB_MODE"] != "disabled":
                found = f"{self.store.storage.location} and WANDB_MODE=offline"
                raise InputError(f"loggers: 'wandb' must have a folder for its files, got {found}; use another --storage")
            return
        if os.environ.get("WANDB_API_KEY"):
            return
        import wandb

        try:
            known = wandb.login(prompt=False)
        except TypeError:  # older versions ask for the key in this way
            known = bool(wandb.api.api_key)
        if not known:
            fix = "run `wandb login`, or set WANDB_MODE=offline"
            raise InputError(f"loggers: must have an account of Weights & Biases for 'wandb', got no key; {fix}")

    def make(self) -> Any:
        from ray.air.integrations.wandb import WandbLoggerCallback

        actor: Any = WandbLoggerCallback._logger_actor_cls

        class PatientActor(actor):  # type: ignore[misc]
            """Ends after W&B's own process has written everything: Ray kills both as soon as `run` returns."""

            def run(self) -> None:
                super().run()
                self._wandb.teardown()

        class PatientCallback(WandbLoggerCallback):
            _logger_actor_cls = PatientActor

        # Given here as well as in the environment: the process that logs may be of a cluster that has another.
        mode: dict[str, Any] = {"mode": os.environ["WANDB_MODE"]} if os.environ.get("WANDB_MODE") in OFFLINE else {}
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        return PatientCallback(project=project, group=self.store.sweep, dir=str(self.folder), **mode)

    def prepare(self, run: ConfigurationRun) -> None:
        for old in self.folder.glob(f"wandb/offline-run-*-{run.trial_id}"):
            shutil.rmtree(old, ignore_errors=True)


class MLflow(Tracker):
    """MLflow: at MLFLOW_TRACKING_URI, or in `mlflow/` of the sweep's folder; the sweep is an experiment."""

    name = "mlflow"

    def check(self) -> None:
        need("mlflow", "mlflow")
        if self.store.folder.local is None and not os.environ.get("MLFLOW_TRACKING_URI"):
            found = f"{self.store.storage.location} and no MLFLOW_TRACKING_URI"
            raise InputError(f"loggers: 'mlflow' must have a server or a folder, got {found}; set it")

    def make(self) -> Any:
        from ray.air.integrations.mlflow import MLflowLoggerCallback

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            # A folder of files is what every version of MLflow reads without a server; newer ones want to be asked for it.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (self.folder / "mlflow").absolute().as_uri()
        return MLflowLoggerCallback(tracking_uri=uri, experiment_name=self.store.sweep, tags={})

    def prepare(self, run: ConfigurationRun) -> None:
        import mlflow

        client = mlflow.MlflowClient(self._callback.tracking_uri)
        experiment = client.get_experiment_by_name(self.store.sweep)
        for old in client.search_runs([experiment.experiment_id], f"tags.configuration = '{run.trial_id}'"):
            client.delete_run(old.info.run_id)
        self._callback.tags = {"configuration": run.trial_id}


TRACKERS: dict[str, type[Tracker]] = {Wandb.name: Wandb, MLflow.name: MLflow}


def check_loggers(sweep: Sweep, store: Store) -> None:
    """Refuses a sweep one of whose loggers could not be told; see `Tracker.check`."""
    for name in sweep.loggers:
        TRACKERS[name](store).check()


class LoggerUpdates(Callback):
    """Listens to Tune and tells the sweep's loggers of every configuration that is complete, in a thread of its own.

    Args:
      sweep: the sweep, which names its loggers.
      store: where results are.
      stored: the blocks that are stored already.
      warn: told once for each logger that fails: it must not end the making of results.
    """

    def __init__(self, sweep: Sweep, store: Store, stored: Iterable[BlockName], warn: Callable[[str], None]) -> None:
        self._sweep, self._store, self._warn = sweep, store, warn
        self._trackers = [TRACKERS[name](store) for name in sweep.loggers]
        self._blocks: dict[str, list[BlockName]] = defaultdict(list)
        for name in stored:
            self._blocks[name.key].append(name)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="loggers")
        self._errors: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its callbacks with its own snapshot, which is never read.
        return {}

    def setup(self, stop: Any = None, num_samples: Any = None, total_num_samples: Any = None, **info: Any) -> None:
        """Tells of the configurations that are complete already and were not told of: after a crash, say."""
        for each in self._sweep.configurations:
            self._tell(each.config, each.group)
        if self._sweep.tune is not None:
            log = SearchLog(self._store, search_key(self._sweep))
            for name in log.drawn():
                if name.key in self._blocks:
                    group, config = log.read(name)
                    self._tell(config, group)

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        self._say_errors()
        if result["stored"]:
            _, block, group, _, _ = unpack(trial.config[PACKED])
            if block.name not in self._blocks[block.name.key]:
                self._blocks[block.name.key].append(block.name)
            self._tell(block.config, group)

    def on_experiment_end(self, trials: list[TuneTrial], **info: Any) -> None:
        # After Ctrl-C the rest is told of by the next start.
        unfinished = [trial for trial in trials if trial.status not in (TuneTrial.TERMINATED, TuneTrial.ERROR)]
        self.finish(wait=not unfinished)

    def finish(self, wait: bool = True) -> None:
        """Ends, after all that is to be told was told, or after what is being told now."""
        self._pool.shutdown(cancel_futures=not wait)
        self._say_errors()

    def pending(self) -> bool:
        """Whether there is a configuration that is complete and that a logger was not told of."""
        keys = {config_key(each.config, self._sweep.engine) for each in self._sweep.configurations}
        return any(self._untold(tracker, key) for tracker in self._trackers for key in keys)

    def _seeds(self, key: str) -> tuple[int, ...]:
        return tuple(sorted({seed for name in self._blocks.get(key, ()) for seed in name.seeds}))

    def _untold(self, tracker: Tracker, key: str) -> bool:
        seeds = self._seeds(key)
        if not set(self._sweep.seeds) <= set(seeds):
            return False
        try:
            note = json.loads((self._store.folder / FOLDER / tracker.name).read(f"{key}.json"))
        except (FileNotFoundError, ValueError):
            return True
        return bool(note.get("seeds") != encode_seeds(seeds))

    def _tell(self, config: OnlineConfig, group: str) -> None:
        key = config_key(config, self._sweep.engine)
        names = tuple(self._blocks.get(key, ()))
        for tracker in list(self._trackers):
            if self._untold(tracker, key):
                self._pool.submit(self._log, tracker, Block(config, self._sweep.engine, self._seeds(key)), group, names)

    def _log(self, tracker: Tracker, block: Block, group: str, names: tuple[BlockName, ...]) -> None:
        """Makes one run, in the thread; whatever goes wrong in other people's programs ends this logger, not the sweep."""
        if tracker not in self._trackers:
            return
        try:
            curves = self._store.read_curves(block.config, block.seeds, block.engine, names)
            about = {"sweep": self._store.sweep, "group": group, "engine": block.engine, "seeds": len(block.seeds)}
            key = block.name.key
            run = ConfigurationRun(
                # The same configuration may be in several sweeps of a project.
                trial_id=hashlib.sha256(f"{self._store.sweep}/{key}".encode()).hexdigest()[:16],
                name=self._names.of(group, flat_settings(block.config)),
                config=about | plain_settings(block.config),
                local_path=str(tracker.folder),
                experiment_dir_name=self._store.sweep,
            )
            tracker.log(run, points(block.config, curves))
            note = {"seeds": encode_seeds(block.seeds), "run": run.trial_id}
            (self._store.folder / FOLDER / tracker.name).write(f"{key}.json", json.dumps(note).encode())
        except Exception as error:
            self._trackers.remove(tracker)
            self._errors.append(f"no more runs for {tracker.name}: {' '.join(str(error).split())[:200]}")

    @cached_property
    def _names(self) -> RunNames:
        searched = {} if self._sweep.tune is None else self._sweep.tune.space
        return RunNames([(c.group, flat_settings(c.config)) for c in self._sweep.configurations], searched)

    def _say_errors(self) -> None:
        while self._errors:
            self._warn(self._errors.pop(0))


def points(config: OnlineConfig, curves: Curves) -> Iterable[dict[str, float]]:
    """The curve of a configuration as results of a trial: means over seeds with the interval of the performance.

    Its steps are examples: `training_iteration` is what W&B counts steps by, `timesteps_total` what MLflow does.
    """
    metric = config.problem.performance
    band, last = mean_interval(curves[metric]), len(curves.examples) - 1
    columns = {metric: band.estimate, f"{metric}_low": band.low, f"{metric}_high": band.high}
    columns |= {name: curves.mean(name) for name in curves.metrics if name != metric}
    row = Summary.of(config, curves).row
    for index, examples in enumerate(curves.examples.tolist()):
        values = {name: float(column[index]) for name, column in columns.items()}
        if index == last:
            values |= {"performance": row["performance"], "late": row["late"]}
        finite = {name: value for name, value in values.items() if np.isfinite(value)}
        yield {"training_iteration": examples, "timesteps_total": examples, "examples": examples, **finite}
