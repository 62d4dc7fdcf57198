"""Where new weights come from when nobody says it: what the initial weights look like."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from cbp_ray import GenerateAndTest, initialize
from cbp_ray.algorithm.initialization import recognise
from cbp_ray.initial_weights import Distribution


def truncated(weight):
    nn.init.trunc_normal_(weight, std=0.1, a=-0.2, b=0.2)


KNOWN = {
    "Kaiming normal": (lambda w: nn.init.kaiming_normal_(w, mode="fan_out"), "normal", math.sqrt(2 / 60)),
    "Kaiming uniform": (nn.init.kaiming_uniform_, "uniform", math.sqrt(6 / 40)),
    "Xavier normal": (nn.init.xavier_normal_, "normal", math.sqrt(2 / 100)),
    "Xavier uniform": (nn.init.xavier_uniform_, "uniform", math.sqrt(6 / 100)),
    "normal": (lambda w: nn.init.normal_(w, std=3.0), "normal", 3.0),
    "truncated normal of torch's default": (lambda w: nn.init.trunc_normal_(w, std=0.02), "normal", 0.02),
    "truncated normal": (truncated, "truncated_normal", 0.1),
    "orthogonal": (lambda w: nn.init.orthogonal_(w, gain=1.4), "orthogonal", 1.4),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", KNOWN)
def test_known_schemes_are_recognised_with_their_scale(name, seed):
    torch.manual_seed(seed)
    fill, kind, scale = KNOWN[name]
    module = nn.Linear(40, 60)
    fill(module.weight)
    nn.init.zeros_(module.bias)
    found = recognise(module)
    assert found.kind == kind
    # 2400 weights tell the scale of a normal distribution to 2%.
    assert found.scale == pytest.approx(scale, rel=0.07 if "normal" in kind else 1e-3)
    assert (found.bias_scale, found.bias_mean) == (0, 0)


def test_an_orthogonal_layer_with_more_units_than_inputs_and_a_wide_one():
    for shape in ((8, 60), (60, 8)):
        module = nn.Linear(shape[1], shape[0])
        nn.init.orthogonal_(module.weight, gain=math.sqrt(2))
        nn.init.zeros_(module.bias)
        found = recognise(module)
        assert found.kind == "orthogonal" and found.size == 60 and found.scale == pytest.approx(math.sqrt(2), rel=1e-4)
        rows = found.weight(np.random.default_rng(0).random((4000, found.width(shape[1]))))[:, : shape[1]]
        lengths = np.square(rows).sum(1)
        # A row of an orthogonal matrix: whole rows have the gain's length, parts of one their share of it.
        assert lengths.mean() == pytest.approx(2 * min(1, shape[1] / 60), rel=0.05)
        assert lengths.std() < 1e-12 if shape[1] == 60 else lengths.std() > 0.05


def test_pytorchs_default_stays_what_it_was():
    torch.manual_seed(0)
    for module in (nn.Linear(30, 40), nn.Conv2d(3, 8, 3), nn.ConvTranspose1d(4, 6, 3), nn.Conv3d(2, 4, 2)):
        bound = 1 / math.sqrt(module.weight[0].numel())
        assert recognise(module) == Distribution.uniform(bound, bound)


def test_what_initialize_records_is_used():
    model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 1))
    initialize(model, "lecun")
    assert recognise(model[0]) == Distribution.uniform(math.sqrt(3 / 30))


def replaced_all(model, **kwargs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gnt = GenerateAndTest(model, optimizer, 1.0, maturity_threshold=1, **kwargs)
    for _ in range(2):
        model(torch.randn(3, model[0].in_features))
        gnt.step()
    return model[0].weight.detach()


@pytest.mark.parametrize("init", [None, "empirical"])
def test_weights_of_no_known_scheme_are_drawn_from_those_that_were(init):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(50, 40).exp())  # all positive, far from symmetric
        model[0].bias.fill_(0.25)
    initial = model[0].weight.detach().clone()
    if init is None:
        with pytest.warns(UserWarning, match=r"initial distribution of '0' is not known.*init='empirical'"):
            fresh = replaced_all(model)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fresh = replaced_all(model, init=init)
    assert not torch.any(fresh == initial)
    for q in (0.05, 0.5, 0.95):
        assert float(fresh.quantile(q)) == pytest.approx(float(initial.quantile(q)), rel=0.15)
    assert torch.all(model[0].bias == 0.25)


@pytest.mark.parametrize("init", ["uniform", "normal", "truncated_normal", "orthogonal"])
def test_a_kind_can_be_named_and_has_the_scale_of_the_weights(init):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 1))
    deviation = float(model[0].weight.detach().std())
    assert float(replaced_all(model, init=init).std()) == pytest.approx(deviation, rel=0.08)


def test_constants_are_no_distribution_that_is_known():
    module = nn.Linear(40, 50)
    nn.init.ones_(module.weight)
    found = recognise(module)
    assert found.kind == "empirical" and set(found.quantiles) == {1.0}
