"""Trains PPO, PPO+L2 or Continual PPO with Ray Tune, in the manner of RLlib's own example scripts.

    python -m rllib_ext.train --num-env-runners 1 --replacement-rate 1e-4 --stop-timesteps 1000000

Results, Tune's TensorBoard files and RLlib's checkpoints are in STORAGE_PATH/NAME. A run that was interrupted goes on from its
last checkpoint with `--resume --name NAME`, which takes all other options from the run itself. PPO on Slippery Ant with
`--seed` then goes on as if nothing had been.

Checkpoints of Tune and RLlib are pickles, which can run any code when they are read: `--resume` only what you have written
yourself. A run that belongs to another user, or that everybody can write to, is refused.
"""

import argparse
import json
import logging
import math
import os
import re
import stat
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

import click

from cbp_ray.cli.options import check_writable
from cbp_ray.errors import ClusterError, InputError
from cbp_ray.presets import Utility

PROGRAM = "python -m rllib_ext.train"
ALGORITHMS = ("PPO", "APPO", "IMPALA", "SAC", "DQN")
ACTIONS = {"SAC": "Box", "DQN": "Discrete"}
"""Kind of actions that an algorithm needs, if it does not take all."""
STEPS = "env_runners/num_env_steps_sampled_lifetime"
RETURN = "env_runners/episode_return_mean"
OPTIONS = "options.json"
"""Name of the file in a run's folder that has the options it was started with."""
OF_A_CALL = ("address", "storage_path", "name", "resume")
"""Options that a resumed run may be given; all others are the run's own."""
MATURITY_THRESHOLD = 500
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How one begins, after `pathlib` has taken its second slash."""
LARGEST_SEED = 2**31 - 1
MOST_CHARACTERS = 400
"""Most characters of what is said of an option."""
MOST_PLACES = 10_000
"""Most processes of a kind, or environments of one: RLlib makes room for each before it asks whether there is any."""


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        message = message if len(message) < MOST_CHARACTERS else message[: MOST_CHARACTERS - 1] + "…"
        self.exit(2, f"{self.prog}: {message}; see: {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The options; those that RLlib's example scripts have, too, have the same names."""
    made = _Parser(PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    what = made.add_argument_group("what learns")
    what.add_argument("--algo", choices=ALGORITHMS, default="PPO", help="algorithm of RLlib; PPO has the paper's settings")
    what.add_argument("--env", default="SlipperyAnt-v0", help="environment, one of Gymnasium's (default: SlipperyAnt-v0)")
    what.add_argument("--friction-period", type=_count, help="time-steps between changes of friction on Slippery Ant")
    what.add_argument("--replacement-rate", type=_number, help="fraction of units replaced per update; without it, no unit is")
    what.add_argument(
        "--maturity-threshold", type=_from_zero, help=f"updates that a unit is safe (default: {MATURITY_THRESHOLD})"
    )
    what.add_argument("--utility", choices=get_args(Utility), help="which measure decides (default: overall)")
    what.add_argument("--weight-decay", type=_number, default=0.0, help="L2 coefficient: PPO+L2 (default: 0)")
    what.add_argument("--lr", type=_positive, help="step size (default: the algorithm's)")
    what.add_argument("--seed", type=_seed, help="seed; with it, PPO can be repeated, and on Slippery Ant resumed exactly")

    where = made.add_argument_group("where")
    where.add_argument("--num-env-runners", type=_processes, default=0, help="processes that sample; 0: the one that learns")
    where.add_argument("--num-envs-per-env-runner", type=_places, default=1, help="environments of each (default: 1)")
    where.add_argument("--num-learners", type=_processes, default=0, help="processes that learn; 0: the algorithm's own")
    where.add_argument("--num-gpus-per-learner", type=_not_negative, default=0, help="GPUs of each (default: 0)")
    where.add_argument("--address", help="address of a Ray cluster, or auto; without it, a local one is started")

    until = made.add_argument_group("how long")
    until.add_argument("--stop-timesteps", type=_count, default=1_000_000, help="time-steps (default: 1000000)")
    until.add_argument("--stop-iters", type=_count, help="iterations")
    until.add_argument("--stop-reward", type=_number, help="mean return of episodes")

    kept = made.add_argument_group("what is kept")
    kept.add_argument("--storage-path", type=Path, default=Path("results"), help="folder of results (default: results)")
    kept.add_argument("--name", help="name of the run's folder (default: the algorithm's)")
    kept.add_argument("--checkpoint-freq", type=_count, default=25, help="iterations between checkpoints (default: 25)")
    kept.add_argument("--max-failures", type=_from_zero, default=3, help="times that it goes on by itself (default: 3)")
    kept.add_argument("--resume", action="store_true", help="go on with a run of your own; reads pickles, see above")
    return made


def _number(text: str) -> float:
    """A finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}")
    return number


def _positive(text: str) -> float:
    number = _number(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text!r}")
    return number


def _count(text: str, least: int = 1, most: float = math.inf) -> int:
    """An integer in a range, also as `1e6`."""
    number = _number(text)
    if not number.is_integer() or not least <= number <= most:
        ends = f"{least} or more" if most == math.inf else f"{least} to {most}"
        raise argparse.ArgumentTypeError(f"must be an integer, {ends}, got {text!r}")
    return int(number)


def _not_negative(text: str) -> float:
    number = _number(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text!r}")
    return number


def _from_zero(text: str) -> int:
    return _count(text, least=0)


def _places(text: str) -> int:
    """A number of processes or environments."""
    return _count(text, most=MOST_PLACES)


def _processes(text: str) -> int:
    return _count(text, least=0, most=MOST_PLACES)


def _seed(text: str) -> int:
    return _count(text, least=0, most=LARGEST_SEED)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a call; those that a resumed run has of its own are read from its folder.

    Raises:
      InputError: for a name that is taken, one that is not there, a folder that can't be written, or an option that
        contradicts the resumed run.
    """
    options = parser().parse_args(arguments)
    if options.replacement_rate is None and (options.utility or options.maturity_threshold is not None):
        given = "--utility" if options.utility else "--maturity-threshold"
        if not options.resume:
            raise InputError(f"{given}: must come with --replacement-rate, got it alone; add --replacement-rate 1e-4, say")
    options.name = options.name or f"{'continual_' if options.replacement_rate is not None else ''}{options.algo.lower()}"
    try:
        if URI.match(str(options.storage_path)):
            raise ValueError("a URI; checkpoints are written to a folder first, copy it from there")
        storage = options.storage_path.resolve()
        folder = storage / options.name
        there_is_one = folder.exists()
        str(folder).encode()  # fails where Ray, which writes it as text, would
        if folder.parent != storage or options.name == "..":
            raise ValueError(f"{options.name!r} is no name of a folder")
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--storage-path, --name: must be a folder and a name in it, got others ({reason})") from None
    if options.resume != there_is_one:
        there = "there is none" if options.resume else "there is one already"
        fix = "leave --resume out" if options.resume else "give another --name, or --resume it"
        raise InputError(f"--name: {there} in {folder}; {fix}")
    # Here, because Ray takes half a minute to start.
    check_writable(folder if options.resume else storage, "--storage-path")
    if not options.resume:
        return options
    check_own(folder)
    try:
        stored: dict[str, Any] = json.loads((folder / OPTIONS).read_text(encoding="utf-8"))
        if not isinstance(stored, dict):
            raise ValueError
    except (OSError, ValueError):
        raise InputError(
            f"--resume: {folder} must have a readable {OPTIONS}, got none; start it again under another --name"
        ) from None
    unset = object()
    asking = parser()
    asking.set_defaults(**dict.fromkeys(vars(options), unset))
    for name, value in vars(asking.parse_args(arguments)).items():
        if value is not unset and name not in OF_A_CALL and value != stored.get(name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option}: the run has {stored.get(name)}, got {value}; leave it out, or start another --name")
    own = {name: stored.get(name, value) for name, value in vars(options).items() if name not in OF_A_CALL}
    return argparse.Namespace(**vars(options) | own)


def make_config(options: argparse.Namespace) -> Any:
    """The config of RLlib that the options ask for."""
    import rllib_ext
    from rllib_ext import algorithms
    from rllib_ext.ant.environment import ENVIRONMENT

    kind: Any = getattr(algorithms, f"Continual{options.algo}Config", rllib_ext.ContinualPPOConfig)
    if options.friction_period and options.env != ENVIRONMENT:
        raise InputError(f"--friction-period: only {ENVIRONMENT} has friction, got --env {options.env}; leave it out")
    friction = {"friction": {"period": options.friction_period}} if options.friction_period else {}
    config = (
        kind()
        .environment(options.env, env_config=friction)
        .env_runners(num_env_runners=options.num_env_runners, num_envs_per_env_runner=options.num_envs_per_env_runner)
        .learners(num_learners=options.num_learners, num_gpus_per_learner=options.num_gpus_per_learner)
        .training(weight_decay=options.weight_decay, **({} if options.lr is None else {"lr": options.lr}))
        .debugging(seed=options.seed, log_level="ERROR")
    )
    if options.replacement_rate is not None:
        config.continual_backprop(
            replacement_rate=options.replacement_rate,
            maturity_threshold=MATURITY_THRESHOLD if options.maturity_threshold is None else options.maturity_threshold,
            utility=options.utility,
        )
    _check_environment(options.env, options.algo, config)
    try:
        config.validate()
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from error
    return config


def _check_environment(name: str, algorithm: str, config: Any) -> None:
    """Refuses environments that Gymnasium can't make or that the algorithm can't learn: RLlib would do so in a worker."""
    import gymnasium

    try:
        # What is only worth a warning is said in training, and would be a second line here.
        with warnings.catch_warnings(action="ignore"):
            environment: Any = gymnasium.make(name)
            spaces = environment.observation_space, environment.action_space
            environment.close()
    except (Exception, SystemExit) as error:  # a module before a colon is imported, and can fail in any way
        raise InputError(f"--env: must be the name of an environment, got {name!r} ({_reason(error)})") from None
    observations, actions = (type(space).__name__ for space in spaces)
    if actions != ACTIONS.get(algorithm, actions):
        raise InputError(
            f"--env: {algorithm} must have {ACTIONS[algorithm]} actions, got {name} with {actions}; use another --algo"
        )
    try:
        _build_networks(config, spaces)
    except Exception as error:
        raise InputError(
            f"--env: must have observations and actions that RLlib's networks take, vectors for instance, got {name} with "
            f"{observations} observations and {actions} actions ({_reason(error)}); use another, or a wrapped one"
        ) from None


def _build_networks(config: Any, spaces: tuple[Any, Any]) -> None:
    """Builds the networks for the spaces of an environment, which fails for spaces that they can't take."""
    import torch
    from ray.rllib.core import DEFAULT_MODULE_ID

    before = logging.root.manager.disable
    # Before RLlib fails, it warns of the old API stack, which is not the reason.
    logging.disable(logging.WARNING)
    try:
        # Initial weights are drawn, and the run's own shall not depend on it.
        with torch.random.fork_rng(devices=[]):
            config.get_rl_module_spec(spaces={DEFAULT_MODULE_ID: spaces}).build()
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """What an error says, in one line that is not too long."""
    return " ".join(str(error).split())[:300].rstrip(" .") or type(error).__name__


def _check_fits(config: Any, options: argparse.Namespace) -> None:
    """Refuses a run that no cluster of this size can start: Tune would wait for ever."""
    from cbp_ray.sweeps import cluster

    bundles = config.algo_class.default_resource_request(config).bundles
    nodes = cluster.offered()
    if not cluster.most_trials(nodes, bundles):
        wanted, there = (sum(each.get("CPU", 0.0) for each in group) for group in (bundles, nodes))
        gpus = sum(each.get("GPU", 0.0) for each in bundles)
        raise InputError(
            f"--num-env-runners: must fit on the cluster, got {options.num_env_runners}, with {options.num_learners} learners: "
            f"{wanted:g} cores and {gpus:g} GPUs, of {there:g} cores; use fewer, or an --address with more"
        )


def _keep_options(options: argparse.Namespace, folder: Path) -> None:
    """Writes down what the run was started with."""
    try:
        folder.mkdir(parents=True)
        text = json.dumps({name: value for name, value in vars(options).items() if name not in OF_A_CALL}, indent=2)
        (folder / OPTIONS).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"--storage-path: must be a folder that can be written, got {folder.parent} ({error.strerror})"
        ) from None


def train(options: argparse.Namespace) -> int:
    """Runs or resumes what the options ask for. Returns the exit code."""
    storage = options.storage_path.resolve()
    folder = storage / options.name
    config = make_config(options)

    from cbp_ray.sweeps import cluster

    with cluster.connected(cluster.resolve_address(options.address), sweep=False):
        from ray import tune

        _check_fits(config, options)
        stop = {STEPS: options.stop_timesteps, "training_iteration": options.stop_iters, RETURN: options.stop_reward}
        checkpoints = tune.CheckpointConfig(checkpoint_frequency=options.checkpoint_freq, checkpoint_at_end=True, num_to_keep=2)
        if options.resume:
            tuner = tune.Tuner.restore(
                str(folder), config.algo_class, param_space=config, resume_unfinished=True, resume_errored=True
            )
        else:
            _keep_options(options, folder)
            tuner = tune.Tuner(
                config.algo_class,
                param_space=config,
                run_config=tune.RunConfig(
                    name=options.name,
                    storage_path=str(storage),
                    stop={key: limit for key, limit in stop.items() if limit is not None},
                    checkpoint_config=checkpoints,
                    # A process that dies takes the run back to its last checkpoint.
                    failure_config=tune.FailureConfig(max_failures=options.max_failures),
                    progress_reporter=tune.CLIReporter(
                        metric_columns={
                            "training_iteration": "iteration",
                            STEPS: "steps",
                            RETURN: "return",
                            "time_total_s": "s",
                        },
                        max_report_frequency=10,
                    ),
                    verbose=1,
                ),
            )
        click.echo(f"results: {folder}; watch: tensorboard --logdir {folder}")
        results = tuner.fit()
    for failure in results.errors:
        click.echo(f"{PROGRAM}: the run failed: {' '.join(str(failure).split())[-500:]}", err=True)
    if results.errors:
        return 1
    last: dict[str, Any] = results[0].metrics or {}
    runners = last.get("env_runners", {})
    if not any(limit is not None and _of(last, key) >= limit for key, limit in stop.items()):
        raise KeyboardInterrupt  # which Tune keeps to itself, after it has stopped the run
    click.echo(
        f"done: {runners.get('num_env_steps_sampled_lifetime', 0):,.0f} time-steps, mean return "
        f"{runners.get('episode_return_mean', float('nan')):.1f}; checkpoint: {getattr(results[0].checkpoint, 'path', 'none')}"
    )
    return 0


def _of(result: Any, key: str) -> float:
    """A number of a result by its path; not-a-number if there is none."""
    for name in key.split("/"):
        result = result.get(name) if isinstance(result, dict) else None
    return float("nan") if result is None else float(result)


def check_own(folder: Path) -> None:
    """Refuses a run that somebody else may have written: Tune and RLlib read pickles from it, which can run any code.

    Raises:
      InputError: if a file or folder in it belongs to another user, or everybody can write to it.
    """
    for path in (folder, *folder.rglob("*")):
        about = path.lstat()
        open_to_all = about.st_mode & stat.S_IWOTH and not stat.S_ISLNK(about.st_mode)
        if about.st_uid != os.geteuid() or open_to_all:
            found = "which everybody can write to" if open_to_all else f"which belongs to user {about.st_uid}"
            raise InputError(f"--resume: must be a run of your own, got {path}, {found}; see docs/security.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script; bad input is one line and exit code 2."""
    try:
        return train(read_options(arguments))
    except (InputError, ClusterError) as error:
        click.echo(f"{PROGRAM}: {error}", err=True)
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt:
        click.echo(f"{PROGRAM}: interrupted; go on with --resume", err=True)
        return 130


if __name__ == "__main__":
    sys.exit(main())
