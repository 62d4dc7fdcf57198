"""The env runner of Slippery Ant: sets the friction of its environments by the global time-step.

The algorithm counts time-steps: `start` of them are sampled when a training step begins. From there on, runner w of W deals
its own steps out like cards: the k-th time-step that it makes, of whichever of its environments, has the global number

    start + k·W + w,    k = 0, 1, 2, …,    w = 0 … W - 1.

Within one call of its environments it takes them by index; an environment that is being reset makes no time-step. Runners
that make equally many steps thus cover `start, start + 1, …` without gap or repetition, and none needs to hear of the others.
The next training step starts from what really arrived, with the runners that live then, so that lost samples are not counted:
their numbers are used again.
"""

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.utils.debug import update_global_seed_if_necessary
from torch import nn

from cbp_ray.randomness import Purpose, words
from rllib_ext.ant.action_noise import normals
from rllib_ext.ant.episode_returns import END_STEPS, RETURNS
from rllib_ext.ant.friction import FRICTION, schedule_of
from rllib_ext.ant.open_env_runner import OpenEnvRunner
from rllib_ext.plain_state import flatten, random_state, set_random_state, unflatten
from rllib_ext.threads import one_thread_from_now_on


@dataclass
class GlobalSteps:
    """The global numbers of one runner's time-steps."""

    start: int = 0
    """Time-steps that the algorithm had sampled when it last told the runner."""
    runners: int = 1
    """W, the number of living runners."""
    position: int = 0
    """w, this runner's place among the living ones."""
    made: int = 0
    """k, time-steps of this runner since `start`."""

    def number(self, ahead: int = 0) -> int:
        """The global number of the step that is `ahead` after this runner's next one."""
        return self.start + (self.made + ahead) * self.runners + self.position


class SlipperyEnvRunner(OpenEnvRunner):
    """Sets `friction` of its environments by the global time-step. During evaluation it stays as it is at the beginning."""

    def __init__(self, *, config: AlgorithmConfig, **kwargs: Any) -> None:
        self.schedule = schedule_of(config)
        self.steps = GlobalSteps()
        self._evaluates = bool(config.in_evaluation)
        self._is_new = True
        self._restored = False
        self._noise_seed = secrets.randbits(64) if config.seed is None else int(config.seed)
        self._drawn = 0
        """Random numbers of exploration drawn since the algorithm last told a new global step."""
        super().__init__(config=config, **kwargs)
        if self.worker_index:
            one_thread_from_now_on()
        if isinstance(self.module, nn.Module):
            self.module.eval()  # a runner never trains

    def begin_at(self, step: int, runners: int, position: int) -> bool:
        """Takes note of the time-steps so far and of the place among the living; returns whether the runner is new."""
        new, self._is_new = self._is_new, False
        if step != self.steps.start:
            self._drawn = 0
        # Evaluation takes no time.
        self.steps = GlobalSteps(step, runners, position) if not self._evaluates else GlobalSteps(step, runners=0)
        if new and step > 0 and self.worker_index and self.config.seed is not None and not self._restored:
            # Otherwise a resumed run and a replaced runner would draw the random actions of the beginning again.
            update_global_seed_if_necessary(self.config.framework_str, self._random_words(1)[0] % 2**32)
        return new

    def _random_words(self, count: int) -> list[int]:
        """Random numbers that belong to this runner at the present global step."""
        address = (self.worker_index or 0, self.steps.start, int(self._evaluates))
        return [int(word) for word in words(int(self.config.seed or 0), Purpose.EPISODES, count, address=address)]

    def reset_seeds(self) -> list[int]:
        # RLlib gives runner 1, environment 2 the seed of runner 2, environment 1, and a replaced runner the seeds of the lost.
        return self._random_words(1 + self.num_envs)[1:]

    def action_noise(self, count: int) -> NDArray[np.float32]:
        # The words 0 and 1 at the end belong to `_random_words`.
        address = (self.worker_index or 0, self.steps.start, 2 + int(self._evaluates))
        first, self._drawn = self._drawn, self._drawn + count
        return normals(self._noise_seed, count, first=first, address=address)

    def make_env(self) -> None:
        super().make_env()
        self._forget_frictions()

    def _forget_frictions(self) -> None:
        """Has the frictions of all environments set again before the next step."""
        self._frictions: list[float | None] = [None] * self.num_envs
        # The steps for which they are right.
        self._right = range(0)

    def sample(self, **kwargs: Any) -> Any:
        self._made_before = self.steps.made
        return super().sample(**kwargs)

    def before_step(self, stepping: list[int]) -> None:
        if not stepping or (self.steps.number() in self._right and self.steps.number(len(stepping) - 1) in self._right):
            return
        frictions = list(self._frictions)
        for ahead, index in enumerate(stepping):
            frictions[index] = self.schedule.friction(self.steps.number(ahead))
        # An environment that is being reset gets its friction with its first step, but must have some.
        frictions = [self.schedule.friction(self.steps.number()) if value is None else value for value in frictions]
        if frictions != self._frictions:
            self.env.unwrapped.set_attr(FRICTION, frictions)
            self._frictions = frictions
        change = self.schedule.next_change(self.steps.number())
        self._right = range(change - self.schedule.period, change) if len(set(frictions)) == 1 else range(0)

    def after_step(self, stepping: list[int]) -> None:
        self._stepped = stepping
        self.steps.made += len(stepping)

    def last_number(self, index: int) -> int:
        """The global number of the time-step that an environment has just made."""
        return self.steps.number(self._stepped.index(index) - len(self._stepped))

    def after_failure(self) -> None:
        self.steps.made = self._made_before

    def after_episode(self, index: int) -> None:
        self.metrics.log_value(END_STEPS, self.last_number(index), reduce="item_series")
        self.metrics.log_value(RETURNS, self.returns[index], reduce="item_series")

    def load_rollout_state(self, state: dict[str, Any]) -> None:
        super().load_rollout_state(state)
        self._forget_frictions()

    def checkpoint(self) -> dict[str, Any] | None:
        """Rollouts and random state as arrays, which any of RLlib's checkpoint formats can hold; None without rollouts."""
        if not self.has_rollout():
            return None
        return flatten({"rollout": self.rollout_state(), "random_state": random_state()})

    def restore(self, checkpoint: dict[str, Any] | None) -> None:
        """Continues where `checkpoint` was taken, if it is of as many environments as these."""
        own = None if checkpoint is None else unflatten(checkpoint)
        if own is not None and len(own["rollout"]["environments"]) == self.num_envs:
            self.load_rollout_state(own["rollout"])
            set_random_state(own["random_state"])
            self._restored = True
