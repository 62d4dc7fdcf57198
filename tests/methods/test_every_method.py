"""What is true of every method of the package, whatever it does: a new one is tested by being listed in `OWN`."""

import numpy as np
import pytest

from cbp_ray.experiments import OnlineConfig, iterate_online, run_online
from cbp_ray.methods import OWN, Method

VALUES = {float: 0.01, int: 5}
"""Values of settings that have no default, by type."""


def config(method: type[Method], dtype: str = "float64") -> OnlineConfig:
    needed = {name: VALUES[field.annotation] for name, field in method.model_fields.items() if field.is_required()}
    algorithm = {"name": method.model_fields["name"].default, **needed}
    rest = {"examples": 90, "bin_size": 30, "problem": {"flip_period": 40}, "dtype": dtype}
    return OnlineConfig.make({"algorithm": algorithm, "optimizer": {"name": "adam", "step_size": 0.01}, **rest})


@pytest.mark.parametrize("method", OWN)
def test_it_learns_in_the_torch_engine_and_resumes_to_the_last_bit(method: type[Method]) -> None:
    whole = run_online(config(method), [3], "torch")
    assert np.isfinite(whole.error).all()
    state = next(iterate_online(config(method), [3], "torch")).checkpoint()
    rest = run_online(config(method), [3], "torch", state=state)
    for name, values in whole.metrics.items():
        np.testing.assert_array_equal(rest[name], values[:, 1:])


@pytest.mark.parametrize("method", OWN)
def test_what_is_said_of_it_is_complete(method: type[Method]) -> None:
    assert method.label and "color" in method.look
    assert method.swept is None or method.swept in method.model_fields
    made = config(method).algorithm
    assert set(made.told) <= set(method.model_fields)


def test_labels_and_names_are_unique() -> None:
    assert len({method.label for method in OWN}) == len({method.model_fields["name"].default for method in OWN}) == len(OWN)
