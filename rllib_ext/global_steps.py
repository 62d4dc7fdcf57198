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
    """The count of one runner."""

    start: int = 0
    """What the algorithm has sampled, as of the last time that it said so."""
    runners: int = 1
    """W, those that live."""
    position: int = 0
    """w, this one's place among them."""
    made: int = 0
    """k, steps of this runner since then."""

    def number(self, ahead: int = 0) -> int:
        """Of the step that is `ahead` after this runner's next one."""
        return self.start + (self.made + ahead) * self.runners + self.position
