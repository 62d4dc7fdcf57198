"""Online Permuted MNIST (section 2 of the paper): images in random order, and every so often a new permutation of pixels."""

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import SerializerFunctionWrapHandler, model_serializer

from cbp_ray.errors import InputError
from cbp_ray.problems.mnist_files import Images, load
from cbp_ray.problems.problem import COUNTS, DIAGNOSTICS, RANKS, Problem
from cbp_ray.randomness import Purpose, words
from cbp_ray.validation import SEEDS, Count, whole_number

WHITE = 255
"""The value of a pixel that stands for 1.0."""
HELD_EXAMPLES = 2000
"""Images of the test set that a network is asked about."""
IMAGES = 60_000
"""Training images in the data set."""


class PermutedMnistConfig(Problem):
    """The settings of online Permuted MNIST; the defaults are the paper's."""

    label = "Permuted MNIST"
    defaults: ClassVar[dict[str, Any]] = {
        "network": {"hidden": (2000, 2000, 2000), "activation": "relu"},
        "examples": 800 * IMAGES,
        "bin_size": IMAGES,
    }
    metrics: ClassVar[dict[str, str]] = {
        "accuracy": "fraction of the bin's examples classified rightly, each before the update",
        "loss": "mean cross-entropy over the bin, each before the update",
        "weight_magnitude_{layer}": "mean |w| into each hidden layer, 1 the first, at the bin's end",
        "output_weight_magnitude": "mean |w| of the output layer at the bin's end",
        "dead_{layer}": "fraction of a hidden layer's units that give 0 on all of 2000 held examples, at the bin's end",
        **RANKS,
        **COUNTS,
    }
    diagnostics: ClassVar[dict[str, str]] = DIAGNOSTICS
    performance = "accuracy"
    change = "a new permutation"
    performance_label = "accuracy (%)"
    loss = "loss"
    inputs: ClassVar[int] = 784
    """Pixels per image."""
    outputs = 10

    name: Literal["permuted_mnist"] = "permuted_mnist"
    """Name of the problem in configs."""
    dataset: Literal["mnist"] = "mnist"
    """Name of the data set that the images come from."""
    task_length: Count = IMAGES
    """Examples between two changes of the permutation; the data set has 60,000."""
    signed: bool = False
    """Inputs lie in [-1, 1] instead of [0, 1], as with Elsayed and Mahmood (2024)."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what was not asked for: results from before it could be keep their names."""
        settings: dict[str, Any] = handler(self)
        return {name: value for name, value in settings.items() if name != "signed" or value}

    @property
    def datasets(self) -> tuple[str, ...]:
        return (self.dataset,)

    @property
    def change_period(self) -> int:
        return self.task_length

    @property
    def examples_per_task(self) -> int:
        return self.task_length

    def stream(self, seed: int, images: Images | None = None) -> "PermutedMnist":
        """The problem of one seed; `images` may stand in for the data set."""
        return PermutedMnist(seed, images or self.dataset, self.task_length, self.signed)


class PermutedMnist:
    """The problem of one seed.

    A task lasts `task_length` examples and has one permutation of the pixels. Its examples are all images in random order;
    a task that is longer than the data set goes on with all of them in another order, a shorter one ends before all have
    been seen. Permutation and orders are functions of (seed, task) alone: any task can be made without those before it.

    Args:
      seed: fixes permutations and orders.
      dataset: `mnist`, or the images themselves.
      task_length: examples between two changes of the permutation.
      signed: whether inputs lie in [-1, 1] instead of [0, 1].

    Example:
      >>> problem = PermutedMnist(0, Images(*[np.eye(4, dtype=np.uint8), np.arange(4, dtype=np.uint8)] * 2))
      >>> images, labels = problem.take(2, start=60_000)
      >>> images.shape, labels.shape
      ((2, 4), (2,))

    References:
      Dohare, Sutton and Mahmood (2022), section 2; Zenke, Poole and Ganguli (2017) for the ten-task original.
    """

    def __init__(self, seed: int, dataset: str | Images = "mnist", task_length: int = IMAGES, signed: bool = False) -> None:
        self.seed = whole_number("seed", seed, below=SEEDS)
        self.task_length = whole_number("task_length", task_length, least=1)
        self.data = load(dataset) if isinstance(dataset, str) else dataset
        self.signed = signed

    @property
    def inputs(self) -> int:
        """Pixels per image."""
        return int(self.data.images.shape[1])

    def permutation(self, task: int) -> NDArray[np.int64]:
        """[pixels]: where each pixel of the original goes in this task."""
        draws = words(self.seed, Purpose.TASK_PERMUTATION, self.inputs, address=(task, 0, 0))
        return np.argsort(draws, kind="stable")

    def order(self, task: int, first: int, count: int) -> NDArray[np.int64]:
        """[count]: which image is shown at positions `first …` of this task."""
        size = len(self.data.labels)
        passes = range(first // size, (first + count - 1) // size + 1)
        draws = [words(self.seed, Purpose.TASK_ORDER, size, address=(task, k, 0)) for k in passes]
        orders = np.concatenate([np.argsort(d, kind="stable") for d in draws])
        start = first - passes.start * size
        return orders[start : start + count]

    def permuted(self, images: NDArray[np.uint8], task: int) -> NDArray[np.uint8]:
        """Images [n, pixels] as they look in this task."""
        changed = np.empty_like(images)
        changed[:, self.permutation(task)] = images
        return changed

    def probe(self, examples: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Held images as inputs, and their labels, as they look in the task of the last of `examples` examples."""
        held = self.permuted(self.data.held_images[:HELD_EXAMPLES], (examples - 1) // self.task_length)
        return self.inputs_of(held / WHITE), self.data.held_labels[:HELD_EXAMPLES].astype(np.int64)

    def inputs_of(self, shades: Any) -> Any:
        """What a network sees of shades between 0 and 1, an array or a tensor of them."""
        return shades * 2 - 1 if self.signed else shades

    def take(self, n: int, start: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Examples `start … start + n - 1`.

        Args:
          n: how many.
          start: position of the first. No task before its own is made.

        Returns:
          Images [n, pixels] of 0 to 255, and labels [n].
        """
        if n < 1 or start < 0:
            raise InputError(f"take: n must be at least 1 and start at least 0, got n={n}, start={start}")
        images, labels = [], []
        while n > 0:
            task, within = divmod(start, self.task_length)
            count = min(n, self.task_length - within)
            shown = self.order(task, within, count)
            images.append(self.permuted(self.data.images[shown], task))
            labels.append(self.data.labels[shown])
            start, n = start + count, n - count
        return np.concatenate(images), np.concatenate(labels)
