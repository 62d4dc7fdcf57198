"""Which global time-step is which, when several environments step at once.

The algorithm counts time-steps: `start` of them are sampled when a training step begins. From there on, runner w of W deals
its own steps out like cards: the k-th time-step that it makes, of whichever of its environments, has the global number

    start + k·W + w,    k = 0, 1, 2, …,    w = 0 … W - 1.

Within one call of its environments it takes them by index; an environment that is being reset makes no time-step. Runners
that make equally many steps thus cover `start, start + 1, …` without gap or repetition, and none needs to hear of the others.
The next training step starts from what really arrived, with the runners that live then, so that lost samples are not counted:
their numbers are used again.
"""

from dataclasses import dataclass


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
