"""The numbers of small runs stay as they are, to the last bit; `cases.py` says which, and how to renew them."""

import json

import numpy as np
import pytest
from golden.cases import CASES, RECORDS, key, machine, record

KNOWN = json.loads(RECORDS.read_text())
SAME_MACHINE = KNOWN["machine"] == machine()
QUICK = {
    *("lane-bp-sgd-tanh", "lane-norm-sgd-leaky", "lane-cbp-adam-relu", "lane-nature-adam-tanh"),
    *("torch-cbp-sgd-leaky", "torch-cbp-deep-relu", "torch-norm-sgd-swish", "torch-nature-sgd-tanh"),
    *("mlp-bp-sgd-relu", "mlp-cbp-adam-relu", "torch-mnist-cbp-sgd", "stacked-cbp-sgd", "ant-bp-tanh", "ant-cbp-tanh"),
    *("lane-upgd-sgd-tanh", "mlp-perturbed-sgd-relu", "torch-upgd-sgd-tanh", "torch-redo-adam-tanh"),
}
"""The cases of `make test`; each of the others compiles a kernel of its own."""


def test_every_case_has_a_record():
    assert list(KNOWN["cases"]) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_keys_stay(name):
    assert key(CASES[name]) == KNOWN["cases"][name]["key"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in CASES])
def test_numbers_stay(name):
    known, found = KNOWN["cases"][name], record(CASES[name])
    if CASES[name].exact and SAME_MACHINE:
        assert {name: found[name] for name in ("curves", "weights")} == {name: known[name] for name in ("curves", "weights")}
        return
    # Rounding differs between kinds of CPU, and the physics of the ant make much of it.
    assert list(found["means"]) == list(known["means"])
    if not name.startswith("ant-"):
        for metric, value in known["means"].items():
            np.testing.assert_allclose(np.float64(found["means"][metric]), np.float64(value), rtol=1e-4, err_msg=metric)
