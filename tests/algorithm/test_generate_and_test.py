"""GenerateAndTest against the oracle, and statements about the method."""

import copy
import itertools
import math

import naive
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import first
from torch import nn

from cbp_ray import Adam, Distribution, GenerateAndTest, OnlineNorm, initialize
from cbp_ray.algorithm import magnitudes
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import bound

UTILITIES = ["random", "weight_magnitude", "contribution", "mean_corrected_contribution", "adaptation", "overall"]
MODULES = {
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "swish": nn.SiLU,
}


def build(sizes, activation="tanh", *, norm=False, seed=0):
    """A Sequential with the oracle's shapes and its parameters by the oracle's names."""
    layers, names = [], {}
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        linear = nn.Linear(n_in, n_out)
        layers.append(linear)
        names[f"w{i}"], names[f"b{i}"] = linear.weight, linear.bias
        if i < len(sizes) - 2:
            if norm:
                layers.append(OnlineNorm(n_out, 0.99, 0.9))
                names[f"scale{i}"], names[f"norm_bias{i}"] = layers[-1].weight, layers[-1].bias
            layers.append(MODULES[activation]())
    model = nn.Sequential(*layers).double()
    initialize(model, "kaiming", activation=activation, seed=seed)
    return model, names


def oracle_of(model, activation, *, norm=False):
    linears = [m for m in model if isinstance(m, nn.Linear)]
    norms = [naive.OnlineNorm(m.num_features, 0.99, 0.9) for m in model if isinstance(m, OnlineNorm)]
    return naive.Network(
        [m.weight.detach().numpy().copy() for m in linears],
        [m.bias.detach().numpy().copy() for m in linears],
        activation,
        norms,
    )


def compare(*, sizes, optimizer, batch, utility, preset, steps, activation="tanh", norm=False, replacement="accumulate", rate):
    """Trains the oracle and the torch version on the same stream; returns both logs of replacements."""
    model, names = build(sizes, activation, norm=norm)
    reference = oracle_of(model, activation, norm=norm)
    if optimizer == "sgd":
        opt, ref_opt = torch.optim.SGD(model.parameters(), lr=0.02), naive.SGD(0.02)
    else:
        opt, ref_opt = Adam(model.parameters(), lr=0.005), naive.Adam(0.005)
    kwargs = {
        "replacement_rate": rate,
        "maturity_threshold": 20,
        "decay_rate": 0.95,
        "utility": utility,
        "preset": preset,
        "replacement": replacement,
        "seed": 3,
    }
    gnt = GenerateAndTest(model, opt, **kwargs)
    bounds = [bound(n, activation) for n in sizes[:-2]]
    ref = naive.GenerateAndTest(reference, ref_opt, bounds, **kwargs)
    rng = np.random.default_rng(0)
    teacher = rng.normal(size=(sizes[0], sizes[-1]))
    log = []
    for step in range(steps):
        x = rng.integers(0, 2, size=(batch, sizes[0])).astype(float)
        y = np.sin(x @ teacher + step // 200)
        opt.zero_grad()
        nn.functional.mse_loss(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        opt.step()
        report = gnt.step()
        for layer, units in report.replaced.items():
            log += [(step, gnt.layers.index(layer), unit) for unit in units]
        gradient, hidden, _ = reference.batch_gradient(x, y)
        ref_opt.step(reference.parameters(), gradient)
        ref.step(hidden)
    for name, value in reference.parameters().items():
        np.testing.assert_allclose(names[name].detach().numpy(), value, rtol=1e-7, atol=1e-9, err_msg=name)
    return log, ref.log


@pytest.mark.parametrize("preset", ["paper", "nature2024"])
@pytest.mark.parametrize("utility", UTILITIES)
@pytest.mark.parametrize("batch", first(1, [32, 1]))
@pytest.mark.parametrize("depth", first(1, [3, 1]))
@pytest.mark.parametrize("optimizer", first(1, ["adam", "sgd"]))
def test_equals_the_oracle(optimizer, depth, batch, utility, preset):
    log, expected = compare(
        sizes=[4, *[4] * depth, 1], optimizer=optimizer, batch=batch, utility=utility, preset=preset, steps=250, rate=0.04
    )
    assert log == expected
    assert len(log) >= 6 * depth


@pytest.mark.parametrize("activation", list(MODULES))
def test_equals_the_oracle_for_every_activation(activation):
    log, expected = compare(
        sizes=[4, 5, 2],
        optimizer="sgd",
        batch=2,
        utility="overall",
        preset="paper",
        steps=250,
        activation=activation,
        rate=0.02,
    )
    assert log == expected and log


@pytest.mark.parametrize(("optimizer", "batch"), first(1, [("adam", 3), ("sgd", 1), ("sgd", 3), ("adam", 1)]))
def test_equals_the_oracle_with_online_norm_and_bernoulli_replacement(optimizer, batch):
    log, expected = compare(
        sizes=[4, 5, 4, 1],
        optimizer=optimizer,
        batch=batch,
        utility="overall",
        preset="paper",
        steps=250,
        norm=True,
        replacement="bernoulli",
        rate=0.02,
    )
    assert log == expected and log


def tiny(seed=0, hidden=16):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def train(model, optimizer, gnt, steps, *, start=0, batch=8):
    reports = []
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(batch, 6, generator=generator)
        optimizer.zero_grad()
        (model(x) - torch.stack([x.sum(1).sin(), x[:, 0] * x[:, 1]], 1)).square().mean().backward()
        optimizer.step()
        if gnt is not None:
            reports.append(gnt.step())
    return reports


def assert_same(a, b):
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


@pytest.mark.parametrize("make", [Adam, torch.optim.Adam, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)])
def test_rate_zero_is_the_plain_optimizer_bit_for_bit(make):
    plain, with_gnt = tiny(), tiny()
    o_plain, o_gnt = make(plain.parameters(), lr=0.01), make(with_gnt.parameters(), lr=0.01)
    train(plain, o_plain, None, 200)
    reports = train(with_gnt, o_gnt, GenerateAndTest(with_gnt, o_gnt, 0.0, maturity_threshold=5), 200)
    assert_same(plain, with_gnt)
    assert not any(report.replaced for report in reports)


def test_no_immature_unit_is_replaced():
    model = tiny()
    optimizer = Adam(model.parameters(), lr=0.01)
    gnt = GenerateAndTest(model, optimizer, 0.05, maturity_threshold=30)
    ages = [
        int(r.ages[layer][unit]) for r in train(model, optimizer, gnt, 400) for layer, u in r.replaced.items() for unit in u
    ]
    assert len(ages) > 100
    assert min(ages) == 31


@pytest.mark.long
@pytest.mark.parametrize("replacement", ["accumulate", "bernoulli"])
@pytest.mark.parametrize("preset", ["paper", "nature2024"])
def test_the_long_run_count_is_rate_times_units(preset, replacement):
    model = tiny(hidden=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gnt = GenerateAndTest(model, optimizer, 0.009, maturity_threshold=10, preset=preset, replacement=replacement)
    reports = train(model, optimizer, gnt, 500, batch=1)
    for layer, replaced in gnt.replaced.items():
        assert replaced == sum(len(r.replaced.get(layer, [])) for r in reports)
        if preset == "paper":
            expected = 0.009 * 10 * (500 - 10)
        else:
            expected = 0.009 * sum(int((r.ages[layer] > 10).sum()) for r in reports)
        tolerance = 1 if replacement == "accumulate" else 4 * math.sqrt(expected)
        assert abs(replaced - expected) <= tolerance
        assert replaced > 20


def freeze(model):
    return torch.optim.SGD(model.parameters(), lr=0.0)


def test_a_replacement_changes_nothing_when_the_unit_contributed_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    with torch.no_grad():
        model[2].weight[:, 3] = 0.0
    gnt = GenerateAndTest(model, freeze(model), 0.01, maturity_threshold=3, utility="contribution")
    x = torch.randn(20, 6)
    before, old = model(x).detach().clone(), model[0].weight[3].detach().clone()
    while not (replaced := gnt.step().replaced):
        model(x)
    assert replaced == {"0": [3]}
    assert not torch.equal(model[0].weight[3], old)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("preset", ["paper", "nature2024"])
def test_the_bias_transfer_keeps_the_mean_output(preset):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 3)).double()
    gnt = GenerateAndTest(model, freeze(model), 0.02, maturity_threshold=5, preset=preset, utility="contribution")
    x = torch.randn(64, 5, dtype=torch.float64)
    before = model(x).mean(0).detach()
    report = gnt.step()
    while not report.replaced:
        model(x)
        report = gnt.step()
    after = model(x).mean(0).detach()
    if preset == "nature2024":
        torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)
    else:
        assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize("make", [Adam, torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("replacement", ["accumulate", "bernoulli"])
@pytest.mark.parametrize("utility", [pytest.param("overall", marks=pytest.mark.long), "random"])
def test_saved_and_loaded_midway_equals_the_unbroken_run(tmp_path, make, replacement, utility):
    def fresh():
        model = tiny()
        optimizer = make(model.parameters(), lr=0.01)
        return (
            model,
            optimizer,
            GenerateAndTest(model, optimizer, 0.01, maturity_threshold=20, utility=utility, replacement=replacement, seed=5),
        )

    unbroken = fresh()
    train(*unbroken, 300)
    first = fresh()
    train(*first, 150)
    torch.save([part.state_dict() for part in first], tmp_path / "state.pt")
    second = fresh()
    for part, state in zip(second, torch.load(tmp_path / "state.pt", weights_only=True), strict=True):
        part.load_state_dict(state)
    train(*second, 150, start=150)
    assert_same(second[0], unbroken[0])
    assert second[2].replaced == unbroken[2].replaced
    assert sum(unbroken[2].replaced.values()) > 40


def test_a_loaded_state_brings_its_initial_distribution_along():
    def fresh(kaiming):
        model = tiny()
        if kaiming:
            initialize(model, "kaiming", activation="tanh")
        optimizer = Adam(model.parameters(), lr=0.01)
        return model, optimizer, GenerateAndTest(model, optimizer, 0.01, maturity_threshold=20)

    unbroken, first, second = fresh(True), fresh(True), fresh(False)
    train(*unbroken, 200)
    train(*first, 100)
    for part, state in zip(second, copy.deepcopy([part.state_dict() for part in first]), strict=True):
        part.load_state_dict(state)
    train(*second, 100, start=100)
    assert_same(second[0], unbroken[0])
    other = tiny()
    with pytest.raises(InputError, match="leave init out"):
        GenerateAndTest(other, freeze(other), 0.01, maturity_threshold=20, init="xavier").load_state_dict(first[2].state_dict())


@pytest.mark.long
@pytest.mark.parametrize("preset", ["paper", "nature2024"])
def test_large_matrices_read_in_pieces_equal_the_oracle(monkeypatch, preset):
    monkeypatch.setattr(magnitudes, "CHUNK", 8)  # several pieces, and lost inputs are subtracted instead of read again
    log, expected = compare(
        sizes=[4, 6, 6, 6, 1], optimizer="adam", batch=2, utility="overall", preset=preset, steps=600, rate=0.01
    )
    assert log == expected and len(log) > 60


def test_several_forwards_before_one_step_are_averaged():
    a, b = tiny().double(), tiny().double()
    gnts = [
        GenerateAndTest(m, freeze(m), 0.01, maturity_threshold=10, preset=p) for m in (a, b) for p in ("paper", "nature2024")
    ]
    for step in range(300):
        x = torch.randn(12, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        a(x)
        for part in x.split([2, 3, 6, 1]):
            b(part)
        reports = [gnt.step() for gnt in gnts]
        for whole, split in zip(reports[:2], reports[2:], strict=True):
            assert whole.replaced == split.replaced
            for layer in whole.utilities:
                torch.testing.assert_close(whole.utilities[layer], split.utilities[layer], rtol=1e-9, atol=1e-12)
    assert sum(gnts[0].replaced.values()) > 10


def test_only_forwards_in_training_mode_with_gradients_count():
    model = tiny()
    gnt = GenerateAndTest(model, freeze(model), 0.01)
    with torch.no_grad():
        model(torch.randn(3, 6))
    with torch.inference_mode():
        model(torch.randn(3, 6))
    model.eval()
    model(torch.randn(3, 6))
    model.train()
    with pytest.raises(RuntimeError, match="no forward pass through layer '0'"):
        gnt.step()
    model(torch.randn(3, 6))
    gnt.step()
    with pytest.raises(RuntimeError, match="no forward pass"):
        gnt.step()


def test_a_copy_of_the_model_is_not_watched():
    model = tiny()
    gnt = GenerateAndTest(model, freeze(model), 0.01)
    copy.deepcopy(model)(torch.randn(3, 6))
    with pytest.raises(RuntimeError, match="no forward pass"):
        gnt.step()


def test_a_utility_that_is_not_finite_is_reported_and_never_selected():
    model = tiny()
    gnt = GenerateAndTest(model, freeze(model), 0.05, maturity_threshold=5)
    with torch.no_grad():
        model[0].weight[2] = 0.0  # the adaptation utility divides by the sum of its magnitudes
        model[0].bias[2] = 0.5
    x = torch.randn(4, 6)
    selected = set()

    def run():
        for _ in range(200):
            model(x + torch.randn(4, 6))
            selected.update(gnt.step().replaced.get("0", []))

    with pytest.warns(RuntimeWarning, match="not finite"):
        run()
    assert 2 not in selected and len(selected) > 3
    assert gnt.nonfinite["0"] > 0
    model(x)
    assert gnt.step().nonfinite["0"] == 1


def test_not_a_number_as_input_is_reported_and_replaces_nothing():
    model = tiny()
    gnt = GenerateAndTest(model, freeze(model), 0.05, maturity_threshold=5)

    def run():
        for step in range(40):
            model(torch.full((2, 6), float("nan") if step < 3 else 1.0))
            report = gnt.step()
        return report

    with pytest.warns(RuntimeWarning, match="16 of 16 units in layer '0'"):
        report = run()
    assert gnt.replaced == {"0": 0, "2": 0}
    assert report.nonfinite == {"0": 16, "2": 16}


def test_reports_stay_true_after_later_steps():
    model = tiny()
    optimizer = Adam(model.parameters(), lr=0.01)
    gnt = GenerateAndTest(model, optimizer, 0.02, maturity_threshold=10, preset="nature2024")
    reports, seen = [], []
    for step in range(100):
        reports += train(model, optimizer, gnt, 1, start=step)
        seen.append({name: u.clone() for name, u in reports[-1].utilities.items()})
    for report, utilities in zip(reports, seen, strict=True):
        for layer, units in report.replaced.items():
            eligible = report.ages[layer] > 10
            assert float(utilities[layer][units[-1]]) == float(utilities[layer][eligible].sort().values[len(units) - 1])
        for layer in utilities:
            assert torch.equal(report.utilities[layer], utilities[layer])


@settings(max_examples=40, deadline=None)
@given(
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    activation=st.sampled_from(list(MODULES)),
    batch=st.integers(1, 5),
    rate=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    utility=st.sampled_from(UTILITIES),
    preset=st.sampled_from(["paper", "nature2024"]),
    optimizer=st.sampled_from(["sgd", "adam"]),
)
def test_random_networks_equal_the_oracle(widths, activation, batch, rate, utility, preset, optimizer):
    log, expected = compare(
        sizes=[3, *widths, 2],
        optimizer=optimizer,
        batch=batch,
        utility=utility,
        preset=preset,
        steps=45,
        activation=activation,
        rate=rate,
    )
    assert log == expected


ARGUMENTS = [
    ({"replacement_rate": -0.1}, "replacement_rate must be a number in [0, 1], got -0.1"),
    ({"replacement_rate": 1.5}, "replacement_rate"),
    ({"replacement_rate": float("nan")}, "replacement_rate"),
    ({"replacement_rate": "high"}, "replacement_rate"),
    ({"utility": "fame"}, "utility must be one of random, weight_magnitude"),
    ({"decay_rate": 1.0}, "decay_rate must be a number in [0, 1)"),
    ({"maturity_threshold": -1}, "maturity_threshold"),
    ({"maturity_threshold": 1.5}, "maturity_threshold"),
    ({"preset": "science"}, "preset must be one of paper, nature2024"),
    ({"replacement": "sometimes"}, "replacement must be one of"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**64}, "seed must be a whole number from 0 to 18446744073709551615"),
    ({"preset": ["paper"]}, "preset must be one of"),
    ({"init": "zeros"}, "init: must be one of kaiming"),
    ({"init": {"7": Distribution.uniform(1.0)}}, "'7' is not a hidden layer"),
    ({"init": {"0": "kaiming"}}, "must have a Distribution for '0'"),
    ({"init": ["kaiming"]}, "init: must be one of kaiming"),
]


@pytest.mark.parametrize(("arguments", "message"), ARGUMENTS)
def test_bad_arguments_give_one_clear_error(arguments, message):
    model = tiny()
    with pytest.raises(InputError) as error:
        GenerateAndTest(model, freeze(model), **arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_optimizer_of_other_parameters_is_refused():
    with pytest.raises(ValueError, match=r"does not hold the model's parameter '0\.weight'"):
        GenerateAndTest(tiny(), freeze(tiny()))


@pytest.mark.parametrize("optimizer", [None, [], [3], tiny().parameters()])
def test_what_is_not_an_optimizer_is_refused(optimizer):
    with pytest.raises(InputError, match="optimizer: must be a torch optimizer"):
        GenerateAndTest(tiny(), optimizer)


def test_numpys_numbers_are_numbers():
    model = tiny()
    gnt = GenerateAndTest(model, freeze(model), np.float64(0.01), maturity_threshold=np.int64(5), seed=np.int32(3))
    assert gnt.settings == GenerateAndTest(model, freeze(model), 0.01, maturity_threshold=5.0, seed=3).settings


def test_a_state_of_other_settings_or_layers_is_refused():
    model = tiny()
    state = GenerateAndTest(model, freeze(model), 0.01).state_dict()
    with pytest.raises(ValueError, match=r"replacement_rate was 0\.01 when the state was saved and is 0\.02 here"):
        GenerateAndTest(model, freeze(model), 0.02).load_state_dict(state)
    with pytest.raises(InputError, match="the state lacks layers, settings, steps"):
        GenerateAndTest(model, freeze(model)).load_state_dict({})
    other = tiny(hidden=8)
    with pytest.raises(ValueError, match=r"layer '0' had 16 units, this model's has 8"):
        GenerateAndTest(other, freeze(other), 0.01).load_state_dict(state)
