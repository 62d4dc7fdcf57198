"""Several env runners in a real Ray: friction by the global step, whatever their number and whoever dies."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import cheap_ant
import pytest
import ray
from cheap_ant import cheap_config
from ray.rllib.algorithms.algorithm import Algorithm
from ray.tune.logger import TBXLoggerCallback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cbp_ray.sweeps import cluster
from rllib_ext.ant.episode_returns import finished_episodes
from rllib_ext.ant.friction import FrictionSchedule

pytestmark = pytest.mark.xdist_group("ray")
SCHEDULE = FrictionSchedule(seed=5, period=100)


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    # The workers can't import from the folder of the tests.
    ray.cloudpickle.register_pickle_by_value(cheap_ant)
    with cluster.connected(None):
        yield
    ray.cloudpickle.unregister_pickle_by_value(cheap_ant)


def build(runners: int, environments: int, **env_config: Any) -> Algorithm:
    config = cheap_config(runners, environments)
    config.environment(env_config={**config.env_config, **env_config})
    return config.build_algo()


class Trial:
    """As much of a trial as Tune's TensorBoard logger wants."""

    def __init__(self, folder: Path) -> None:
        self.local_path, self.evaluated_params = str(folder), None

    def init_local_path(self) -> None: ...


def train(algorithm: Algorithm, log: Callable[[dict[str, Any]], None] = lambda result: None) -> int:
    """One iteration; checks what it reports. Returns how many time-steps there are."""
    before = steps_of(algorithm)
    result = algorithm.train()
    log(result)
    after = steps_of(algorithm)
    assert result["env_runners"]["friction"] == SCHEDULE.friction(after)
    assert after >= before + 240
    ended = finished_episodes(result)
    assert ended and all(before <= step for step, _ in ended)
    return after


def steps_of(algorithm: Algorithm) -> int:
    return algorithm.global_step  # type: ignore[attr-defined, no-any-return]


def records(algorithm: Algorithm) -> list[list[tuple[int, float]]]:
    """What each runner that lives has noted, with its frictions found right."""

    def look(runner: Any) -> Any:
        return runner.record if runner.env is not None else None

    noted = [record for record in algorithm.env_runner_group.foreach_env_runner(look) if record is not None]  # type: ignore[union-attr]
    for record in noted:
        assert record == [(number, SCHEDULE.friction(number)) for number, _ in record]
    return noted


def forget(algorithm: Algorithm) -> None:
    algorithm.env_runner_group.foreach_env_runner(lambda runner: runner.record.clear())  # type: ignore[union-attr, attr-defined]


@pytest.mark.long
def test_one_runner_and_tensorboard(tmp_path: Path) -> None:
    algorithm = build(1, 1)
    tensorboard, trial = TBXLoggerCallback(), cast(Any, Trial(tmp_path))
    steps = [train(algorithm, lambda result: tensorboard.log_trial_result(0, trial, result)) for _ in range(3)]
    (record,) = records(algorithm)
    assert [number for number, _ in record] == list(range(steps[-1])) and steps == [240, 480, 720]
    algorithm.stop()
    tensorboard.log_trial_end(trial)
    events = EventAccumulator(str(tmp_path)).Reload()
    logged = events.Scalars("ray/tune/env_runners/friction")
    assert [event.value for event in logged] == pytest.approx([SCHEDULE.friction(step) for step in steps])


@pytest.mark.long  # two minutes, most of which RLlib waits for the runner that died
def test_a_runner_dies_while_it_samples_and_the_run_goes_on_with_other_numbers_of_runners(tmp_path: Path) -> None:
    algorithm = build(2, 1, dying_runner=2, dies=str(tmp_path / "died"))
    # Runner 2 dies with 50 of its 120 steps made. The other makes two shares; what it returned counts, what was lost does not.
    start = steps = train(algorithm)
    assert (tmp_path / "died").exists()
    (survivor,) = records(algorithm)
    assert steps == len(survivor) == 240

    numbers: set[int] = set()
    for _ in range(30):
        forget(algorithm)
        steps = train(algorithm)
        noted = records(algorithm)
        made = [number for record in noted for number, _ in record]
        assert sorted(made) == list(range(steps - 240, steps))
        numbers |= set(made)
        if len(noted) == 2:
            break
    assert len(noted) == 2, "the runner was not replaced"
    assert numbers == set(range(start, steps))

    checkpoint = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    algorithm.stop()

    four = build(4, 2)
    four.restore_from_path(checkpoint)
    assert steps_of(four) == steps
    middle = train(four)
    end = train(four)
    noted = records(four)
    assert len(noted) == 4 and sum(map(len, noted)) == end - steps
    # With two environments a runner may make a step more than its share.
    assert middle - steps <= 244 and end - middle <= 244
    assert {number for record in noted for number, _ in record} >= {*range(steps, steps + 236), *range(middle, middle + 236)}
    four.stop()


def test_a_local_runner_goes_on_where_its_checkpoint_was(tmp_path: Path) -> None:
    algorithm = build(0, 1)
    steps = [train(algorithm) for _ in range(2)][-1]
    checkpoint = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    algorithm.stop()
    resumed = Algorithm.from_checkpoint(checkpoint)
    assert train(resumed) == steps + 240
    (record,) = records(resumed)
    assert [number for number, _ in record] == list(range(steps, steps + 240))
    resumed.stop()
