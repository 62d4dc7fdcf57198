"""Which networks generate-and-test understands, how it resets their units, and which it refuses by name."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cbp_ray import Adam, Distribution, GenerateAndTest, HiddenLayer, OnlineNorm, initialize
from cbp_ray.algorithm import find_hidden_layers
from cbp_ray.errors import InputError


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.hidden = nn.Linear(4 * 9, 6)
        self.policy = nn.Linear(6, 2)
        self.value = nn.Linear(6, 1)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = torch.tanh(self.hidden(x.view(x.size(0), -1)))
        return self.policy(x), self.value(x)


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


def gnt_of(model, optimizer=None, **kwargs):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.0)
    kwargs = {"replacement_rate": 0.5, "maturity_threshold": 1, **kwargs}
    return GenerateAndTest(model, optimizer, **kwargs)


def test_nested_sequentials_are_read_through():
    model = nn.Sequential(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.1), nn.ELU()), nn.Linear(5, 1)
    )
    assert find_hidden_layers(model) == [
        HiddenLayer("0.0", ("1.0",), (), "tanh"),
        HiddenLayer("1.0", ("2",), (), "elu"),
    ]


def test_functions_convolutions_flatten_and_two_heads_are_read_through():
    assert find_hidden_layers(Functional()) == [
        HiddenLayer("conv", ("hidden",), (), "relu"),
        HiddenLayer("hidden", ("policy", "value"), (), "tanh"),
    ]


def test_an_activation_written_as_a_product_keeps_units_apart():
    model = nn.Sequential(nn.Linear(3, 4), Swish(), nn.Linear(4, 1))
    assert find_hidden_layers(model) == [HiddenLayer("0", ("2",), (), None)]
    with pytest.raises(InputError, match="no gain is known for the activation None"):
        gnt_of(model, init="kaiming")


def test_a_channel_is_a_unit_and_all_its_outgoing_weights_are_zeroed():
    torch.manual_seed(0)
    model = Functional()
    optimizer = Adam(model.parameters(), lr=1e-3)
    gnt = gnt_of(model, optimizer, replacement_rate=0.1)
    replaced = {}
    for _ in range(8):
        optimizer.zero_grad()
        policy, value = model(torch.randn(3, 1, 8, 8))
        (policy.square().sum() + value.square().sum()).backward()
        optimizer.step()
        replaced = gnt.step().replaced
        for channel in replaced.get("conv", []):
            # A unit of the next layer that was replaced in the same step has new weights from everyone.
            kept = [i for i in range(6) if i not in replaced.get("hidden", [])]
            assert torch.all(model.hidden.weight.view(6, 4, 9)[kept, channel] == 0)
            assert torch.all(optimizer.time_steps(model.hidden.weight).view(6, 4, 9)[:, channel] == 0)
            assert torch.all(optimizer.state[model.conv.weight]["exp_avg"][channel] == 0)
        for unit in replaced.get("hidden", []):
            assert torch.all(model.policy.weight[:, unit] == 0)
            assert torch.all(model.value.weight[:, unit] == 0)
            assert torch.all(optimizer.time_steps(model.policy.weight)[:, unit] == 0)
    assert gnt.replaced["conv"] > 1 and gnt.replaced["hidden"] > 1


def test_the_utility_of_a_channel_averages_over_positions_and_sums_over_all_outgoing_weights():
    torch.manual_seed(0)
    model = Functional().double()
    gnt = gnt_of(model, utility="contribution", preset="nature2024", replacement_rate=0.0)
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    model(x)
    utilities = gnt.step().utilities
    h = F.max_pool2d(F.relu(model.conv(x)), 2)
    expected = h.abs().mean((0, 2, 3)) * model.hidden.weight.view(6, 4, 9).abs().mean((0, 2))
    torch.testing.assert_close(utilities["conv"], expected.detach())
    h = torch.tanh(model.hidden(h.flatten(1)))
    outgoing = torch.cat([model.policy.weight, model.value.weight]).abs().mean(0)
    torch.testing.assert_close(utilities["hidden"], (h.abs().mean(0) * outgoing).detach())


def test_conv_to_conv_resets_input_channels_of_the_next():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4, 2))
    gnt = gnt_of(model, replacement_rate=0.12)
    for _ in range(5):
        model(torch.randn(2, 2, 6, 6))
        replaced = gnt.step().replaced
        for channel in replaced.get("0", []):
            kept = [i for i in range(4) if i not in replaced.get("2", [])]
            assert torch.all(model[2].weight[kept, channel] == 0)
    assert gnt.replaced["0"] > 0 and gnt.replaced["2"] > 0


@pytest.mark.parametrize(
    ("norm", "buffers"),
    [
        (nn.LayerNorm(5), {}),
        (nn.BatchNorm1d(5), {"running_mean": 0.0, "running_var": 1.0}),
        (OnlineNorm(5), {"mean": 0.0, "variance": 1.0, "control_u": 0.0, "control_v": 0.0}),
    ],
    ids=["LayerNorm", "BatchNorm", "OnlineNorm"],
)
def test_a_norm_between_unit_and_activation_is_reset_with_the_unit(norm, buffers):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), norm, nn.Tanh(), nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gnt = gnt_of(model, optimizer, replacement_rate=0.1)
    assert find_hidden_layers(model) == [HiddenLayer("0", ("3",), ("1",), "tanh")]
    checked = 0
    for _ in range(12):
        optimizer.zero_grad()
        (model(torch.randn(6, 3) + 2) - 3).square().mean().backward()
        optimizer.step()
        for unit in gnt.step().replaced.get("0", []):
            checked += 1
            others = [i for i in range(5) if i != unit]
            for name, value in {"weight": 1.0, "bias": 0.0, **buffers}.items():
                tensor = getattr(norm, name)
                assert tensor[unit].item() == value, name
                assert torch.all(tensor[others] != value), name
            assert float(optimizer.state[norm.weight]["momentum_buffer"][unit]) == 0
    assert checked >= 3


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.out(h + torch.relu(self.second(h)))


class ResidualFromInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(x + torch.relu(self.first(x)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.cell(torch.tanh(self.cell(x)))))


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.head(h), h


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x))) if x.sum() > 0 else self.head(self.body(x))


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    model[2].weight = model[0].weight
    return model


def parametrized():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    nn.utils.parametrizations.weight_norm(model[0])
    return model


class SharedNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.b(torch.relu(self.norm(self.a(x)))))))


class Scrambled(Residual):
    def forward(self, x):
        return self.out(torch.tanh(self.first(x)).view(4, -1).reshape(-1, 4))


REFUSED = [
    (SharedNorm, r"'norm' is used more than once"),
    (Scrambled, r"'view' reshapes the outputs of 'first' to \(4, -1\)"),
    (lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Linear(8, 3)), r"'2' reads the width of the images"),
    (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(2), nn.Linear(64, 3)), r"flattens dimensions 2 to -1"),
    (
        lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.LayerNorm(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 3)),
        r"'1' normalizes \(8,\), not the channels and positions of '0'",
    ),
    (ResidualFromInput, r"combines the outputs of 'first' and x"),
    (Recurrent, r"'cell' is used more than once"),
    (Features, r"the units of 'body' feed 'head' and are also an output"),
    (Branching, r"torch\.fx can't trace Branching"),
    (tied, r"0\.weight and 2\.weight are one tensor"),
    (parametrized, r"the weight of '0' is computed"),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 1)), r"'1' \(Softmax\) after '0'"),
    (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2)), r"'2' takes .* groups"),
    (lambda: nn.Sequential(nn.Linear(4, 6), nn.GLU(), nn.Linear(4, 1)), r"'2' takes 4 inputs, which don't divide into the 3"),
    (lambda: nn.GRU(4, 4), r"torch\.fx can't trace|is recurrent"),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(3), nn.Linear(4, 1)), r"'1' normalizes 3 features, but '0' has 4"),
    (lambda: nn.Linear(4, 1), r"Linear has no hidden layer"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_it_cannot_handle_is_refused_by_name(make, message):
    with pytest.raises(InputError, match=message) as error:
        gnt_of(make())
    assert "\n" not in str(error.value)


def test_layers_given_explicitly_serve_a_network_that_cannot_be_traced():
    model = Branching()
    gnt = gnt_of(model, layers=[HiddenLayer("body", ("head",))], replacement_rate=0.1)
    for _ in range(6):
        model(torch.randn(3, 4).abs())
        gnt.step()
    assert gnt.replaced["body"] > 0


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([HiddenLayer("body", ("tail",))], "'tail' must be a Linear or convolution of the model, it is missing"),
        ([HiddenLayer("body", ())], "no outgoing module"),
        ([HiddenLayer("body", ("head",))] * 2, "given twice"),
        ([HiddenLayer("head", ("body",))], "which don't divide into the 1 units of 'head'"),
        ([HiddenLayer("body", ("head",), norms=("head",))], "must be a norm layer"),
        ([], "no hidden layer"),
    ],
)
def test_wrong_explicit_layers_are_refused(layers, message):
    with pytest.raises(InputError, match=message):
        gnt_of(Branching(), layers=layers)


def test_bias_transfer_needs_a_bias():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))
    gnt_of(model)
    with pytest.raises(InputError, match="into the bias of '2', which has none"):
        gnt_of(model, preset="nature2024")


SCHEMES = {
    "kaiming": 5 / 3 * math.sqrt(3 / 30),
    "lecun": math.sqrt(3 / 30),
    "xavier": math.sqrt(6 / (30 + 400)),
    "pytorch": 1 / math.sqrt(30),
}


@pytest.mark.parametrize(("scheme", "bound"), SCHEMES.items())
def test_new_units_come_from_the_distribution_of_their_layer(scheme, bound):
    model = nn.Sequential(nn.Linear(30, 400), nn.Tanh(), nn.Linear(400, 1))
    initialize(model, scheme, activation="tanh")
    initial = model[0].weight.detach().clone()
    gnt = gnt_of(model, replacement_rate=1.0)
    for _ in range(2):
        model(torch.randn(2, 30))
        gnt.step()
    fresh = model[0].weight.detach()
    assert gnt.replaced["0"] == 400
    assert not torch.any(fresh == initial)
    for weights in (initial, fresh):
        assert 0.99 * bound < float(weights.abs().max()) <= bound
        assert abs(float(weights.std()) / (bound / math.sqrt(3)) - 1) < 0.02
        assert abs(float(weights.mean())) < 4 * bound / math.sqrt(3 * weights.numel())
    assert bool(torch.any(model[0].bias != 0)) == (scheme == "pytorch")


def test_normal_distributions_can_be_given():
    model = nn.Sequential(nn.Linear(30, 400), nn.Tanh(), nn.Linear(400, 1))
    gnt = gnt_of(model, replacement_rate=1.0, init={"0": Distribution.normal(2.0)})
    for _ in range(2):
        model(torch.randn(2, 30))
        gnt.step()
    assert abs(model[0].weight.detach().std().item() - 2) < 0.05
    assert torch.all(model[0].bias == 0)


def test_an_unknown_gain_is_not_guessed():
    model = nn.Sequential(nn.Linear(30, 40), nn.GELU(), nn.Linear(40, 1))
    with pytest.raises(InputError, match="no gain is known for the activation 'gelu'"):
        gnt_of(model, init="kaiming")


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.long)])
def test_a_compiled_model_makes_the_same_replacements(backend):
    def run(compiled):
        torch.manual_seed(0)
        torch.compiler.reset()
        model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 1)).double()
        call = torch.compile(model, backend=backend) if compiled else model
        optimizer = Adam(model.parameters(), lr=1e-2)
        gnt = GenerateAndTest(call, optimizer, 0.01, maturity_threshold=10)
        log = []
        for step in range(120):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            optimizer.zero_grad()
            for part in x.split(2) if step % 7 == 0 else [x]:
                (call(part) - part.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            log.append(gnt.step().replaced)
        return log

    log = run(True)
    assert log == run(False)
    assert sum(bool(entry) for entry in log) > 10


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, False), (torch.float64, False), (torch.bfloat16, False), (torch.float32, True)]
)
def test_any_dtype_and_autocast(dtype, autocast):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2)).to(dtype)
    optimizer = Adam(model.parameters(), lr=1e-2)
    gnt = GenerateAndTest(model, optimizer, 0.01, maturity_threshold=10, init="pytorch")
    for _ in range(100):
        optimizer.zero_grad()
        x = torch.randn(4, 6, dtype=dtype)
        with torch.autocast("cpu", enabled=autocast):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        report = gnt.step()
    assert gnt.replaced["0"] > 5
    assert report.utilities["0"].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert model[0].weight.dtype == dtype


def test_many_forwards_of_a_compiled_model_compile_it_a_few_times_only():
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    call = torch.compile(model, backend="eager")
    gnt = gnt_of(model, replacement_rate=0.1)
    for _ in range(3):
        for _ in range(15):
            call(torch.randn(2, 6))
        assert len(gnt._layers[0].pending) <= 1
        gnt.step()
    assert gnt.replaced["0"] > 0
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] < 8


def test_a_consumer_called_by_keyword_and_an_empty_batch():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(input=torch.tanh(self.body(x)))

    model = Keyword()
    gnt = gnt_of(model, replacement_rate=0.0)
    model(torch.randn(3, 4))
    model(torch.randn(0, 4))
    assert gnt.step().nonfinite == {"body": 0}
    model(torch.randn(0, 4))
    with pytest.raises(RuntimeError, match="no forward pass"):
        gnt.step()


def test_state_follows_the_model_to_another_device():
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    gnt = gnt_of(model, init="pytorch")
    for units in gnt._layers:
        units.weight = units.weight.to("meta")  # the one other device that every machine has
    gnt._follow_device()
    for tensor in (gnt._correction, gnt._average_utility, gnt._average_activation, gnt._magnitudes.incoming):
        assert tensor.device.type == "meta"


def test_layers_of_several_dtypes_are_refused():
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4).double(), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"layer '2' is torch\.float64 on cpu, layer '0' is torch\.float32"):
        gnt_of(model)
