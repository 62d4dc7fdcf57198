"""A unit is a group: what the networks that people have are made of, and that a replacement reaches all of a unit."""

import copy
import warnings

import naive
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cbp_ray import Adam, Distribution, GenerateAndTest
from cbp_ray.algorithm.network import find_units


class ResidualMLP(nn.Module):
    """Pre-activation blocks on a stream that a layer makes."""

    def __init__(self, width=6, hidden=5, blocks=2, norm=None):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, width)) for _ in range(blocks)
        )
        self.norm = norm(width) if norm else nn.Identity()
        self.out = nn.Linear(width, 2)

    def forward(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = h + block(torch.tanh(h))
        return self.out(self.norm(h))


class PostActivation(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.out(h + torch.relu(self.second(h)))


class Dueling(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.advantage, self.value = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x):
        h = torch.relu(self.body(x))
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(1, keepdim=True)


class Critic(nn.Module):
    """Joins what it makes of the observation with the action."""

    def __init__(self):
        super().__init__()
        self.observation = nn.Linear(3, 8)
        self.q = nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, x):
        return self.q(torch.cat([torch.relu(self.observation(x[:, :3])), x[:, 3:]], 1))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Chunked(nn.Module):
    """SwiGLU with both halves in one layer."""

    def __init__(self):
        super().__init__()
        self.both, self.down = nn.Linear(4, 16), nn.Linear(8, 3)

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class CReLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(10, 2)

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.cat([torch.relu(h), torch.relu(-h)], -1))


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(10, 2)

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.cat([torch.sin(h), h.cos()], dim=1))


class Maxout(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.maximum(h, -0.5 * h))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 2)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 5))

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)) * self.scale)


class Halves(nn.Module):
    """Units of one layer that go different ways."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(2, 3), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(h[:, :2]) + self.c(h[:, 2:])


def images(*modules, inputs=(2, 6, 6)):
    """Reads vectors as images of the given shape."""
    return nn.Sequential(nn.Linear(4, int(np.prod(inputs))), nn.Unflatten(1, inputs), *modules)


class Excited(nn.Module):
    """A depthwise convolution, and squeeze-and-excitation: a unit is a channel with its filter and its gate."""

    def __init__(self):
        super().__init__()
        self.expand, self.depthwise, self.project = nn.Conv2d(2, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 3, 1)
        self.squeeze, self.excite = nn.Conv2d(6, 4, 1), nn.Conv2d(4, 6, 1)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x):
        x = torch.relu(self.norm(self.depthwise(torch.relu(self.expand(x)))))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        return self.project(x * gate).mean((2, 3))


def kinds():
    return {
        "residual, pre-activation": (ResidualMLP(), {"first": 6, "blocks.0.0": 5, "blocks.1.0": 5}),
        "residual, post-activation": (PostActivation(), {"first": 4}),
        "dueling": (Dueling(), {"body": 8}),
        "critic": (Critic(), {"observation": 8, "q.0": 6}),
        "SwiGLU": (SwiGLU(), {"gate": 8}),
        "SwiGLU in one layer": (Chunked(), {"both": 8}),
        "GLU": (nn.Sequential(nn.Linear(4, 12), nn.GLU(), nn.Linear(6, 2)), {"0": 6}),
        "CReLU": (CReLU(), {"a": 5}),
        "sin and cos": (Waves(), {"a": 5}),
        "maxout": (Maxout(), {"a": 5}),
        "a learned scale": (Scaled(), {"a": 5}),
        "halves": (Halves(), {"a:0-1": 2, "a:2-5": 4}),
        "PReLU": (nn.Sequential(nn.Linear(4, 5), nn.PReLU(5), nn.Linear(5, 2)), {"0": 5}),
        "Conv1d": (
            images(nn.Conv1d(2, 5, 3), nn.ReLU(), nn.Conv1d(5, 4, 3), nn.Flatten(), nn.Linear(8, 2), inputs=(2, 6)),
            {"2": 5, "4": 4},
        ),
        "Conv3d": (images(nn.Conv3d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2), inputs=(1, 3, 3, 3)), {"2": 3}),
        "transposed": (
            images(
                nn.ConvTranspose2d(2, 3, 2, stride=2),
                nn.Tanh(),
                nn.ConvTranspose2d(3, 2, 2),
                nn.Flatten(),
                nn.Linear(98, 2),
                inputs=(2, 3, 3),
            ),
            {"2": 3, "4": 2},
        ),
        "depthwise": (
            images(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 6, 3, groups=3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)),
            {"2": 3},
        ),
        "squeeze and excitation": (images(Excited()), {"2.expand": 6, "2.squeeze": 4}),
        "instance norm": (
            images(nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3, affine=True), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 2)),
            {"2": 3},
        ),
        "channels last": (images(nn.Conv2d(2, 3, 3), nn.ReLU(), Last(), nn.Linear(48, 2)), {"2": 3}),
    }


class Last(nn.Module):
    def forward(self, x):
        return x.permute(0, 2, 3, 1).flatten(1)


KINDS = list(kinds())


def made(kind):
    torch.manual_seed(0)
    model, counts = kinds()[kind]
    return model.double(), counts


@pytest.mark.parametrize("kind", KINDS)
def test_units_are_found_in(kind):
    model, counts = made(kind)
    found = find_units(model)
    assert {layer.name: layer.units.count for layer in found.layers if layer.name != "0" or "0" in counts} == counts
    # Where vectors become images, the first layer's units are no channels.
    assert set(found.untreated) <= {"0"}


def quiet_gnt(model, optimizer, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return GenerateAndTest(model, optimizer, **{"replacement_rate": 0.0, "maturity_threshold": 0, **kwargs})


def zero_columns(units, index):
    for part in units.consumers:
        part.tensor.index_fill_(part.dim, part.of(index), 0.0)


def rows_of(units, index):
    """Masks of the weights, by parameter, that make some units, and of those that read them."""
    made_of, read_by = {}, {}
    for part in (*units.producers, *units.followers):
        made_of.setdefault(part.tensor, torch.zeros_like(part.tensor, dtype=torch.bool)).index_fill_(
            part.dim, part.of(index), True
        )
        if part.module.bias is not None:
            mask = made_of.setdefault(part.module.bias, torch.zeros_like(part.module.bias, dtype=torch.bool))
            mask[part.of(index)] = True
    for part in units.norms:
        for parameter in part.module.parameters():
            mask = made_of.setdefault(parameter, torch.zeros_like(parameter, dtype=torch.bool))
            mask.index_fill_(part.dim, part.of(index), True)
    for part in units.scales:
        made_of[part.tensor] = torch.zeros_like(part.tensor, dtype=torch.bool).index_fill_(part.dim, part.of(index), True)
    for part in units.consumers:
        mask = read_by.setdefault(part.tensor, torch.zeros_like(part.tensor, dtype=torch.bool))
        mask.index_fill_(part.dim, part.of(index), True)
    return made_of, read_by


def check_replacement(model, x, layer_number, unit, preset="paper"):
    """Replaces one unit: what must hold of weights, function and optimizer state."""
    optimizer = Adam(model.parameters(), lr=1e-2)
    gnt = quiet_gnt(model, optimizer, preset=preset)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        gnt.step()
    layer = gnt._layers[layer_number % len(gnt._layers)]
    index = torch.tensor([unit % layer.count])
    with torch.no_grad():
        zero_columns(layer.units, index)
        before = model(x)
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        moments = {name: optimizer.state[p]["exp_avg"].clone() for name, p in model.named_parameters() if p in optimizer.state}
        gnt._replace(layer.populations[0], index)
        # Nothing is different: nobody read the unit, and nobody reads the new one.
        torch.testing.assert_close(model(x), before, rtol=1e-12, atol=1e-12)
    made_of, read_by = rows_of(layer.units, index)
    for name, p in model.named_parameters():
        reset = made_of.get(p, torch.zeros_like(p, dtype=torch.bool)) | read_by.get(p, torch.zeros_like(p, dtype=torch.bool))
        assert torch.equal(p.detach()[~reset], weights[name][~reset]), name
        if p in read_by:
            assert not p.detach()[read_by[p]].any(), name
        if name in moments:
            assert torch.all(optimizer.state[p]["exp_avg"][reset] == 0), name
            assert torch.equal(optimizer.state[p]["exp_avg"][~reset], moments[name][~reset]), name
            assert torch.equal(optimizer.time_steps(p) == 0, reset), name
    redrawn = [p for part in layer.units.producers if (p := part.tensor) is not None]
    for p in redrawn:
        own = made_of[p] & ~read_by.get(p, torch.zeros_like(p, dtype=torch.bool))
        assert torch.all(p.detach()[own] != weights[next(n for n, q in model.named_parameters() if q is p)][own])
    # No consumer sees it: the output does not change when the new unit's weights do.
    with torch.no_grad():
        for p, mask in made_of.items():
            p[mask & ~read_by.get(p, torch.zeros_like(mask))] += 0.7
        torch.testing.assert_close(model(x), before, rtol=1e-12, atol=1e-12)
    gnt.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_replacement_reaches_all_of_a_unit_in(kind):
    for layer, unit in ((0, 1), (1, 3), (2, 2)):
        model, _ = made(kind)
        check_replacement(model, torch.randn(7, 4, dtype=torch.float64), layer, unit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", ["paper", "nature2024"])
def test_a_saved_run_goes_on_to_the_last_bit_in(kind, preset):
    def run(model, optimizer, gnt, steps):
        log = []
        for step in steps:
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            optimizer.zero_grad()
            (model(x) - x[:, :1]).square().mean().backward()
            optimizer.step()
            log.append(gnt.step().replaced)
        return log

    def fresh():
        model, _ = made(kind)
        optimizer = Adam(model.parameters(), lr=1e-2)
        return model, optimizer, quiet_gnt(model, optimizer, replacement_rate=0.06, maturity_threshold=3, preset=preset)

    unbroken, first, second = fresh(), fresh(), fresh()
    log = run(*unbroken, range(24))
    start = run(*first, range(12))
    for part, state in zip(second, copy.deepcopy([part.state_dict() for part in first]), strict=True):
        part.load_state_dict(state)
    assert start + run(*second, range(12, 24)) == log
    assert sum(map(bool, log)) > 2
    for a, b in zip(unbroken[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(a, b)


def alone(*rows):
    return [[row] for row in rows]


def by_hand():
    """Networks, with their groups written down: producers (module, rows), and for every tensor read: (columns, readers)."""
    six, five, eight = alone(*range(6)), alone(*range(5)), alone(*range(8))
    return {
        "residual": (
            ResidualMLP,
            [
                (
                    [("first", six), ("blocks.0.2", six), ("blocks.1.2", six)],
                    {"blocks.0.0": (six, ["blocks.0.0"]), "blocks.1.0": (six, ["blocks.1.0"]), "out": (six, ["out"])},
                ),
                ([("blocks.0.0", five)], {"blocks.0.2": (five, ["blocks.0.2"])}),
                ([("blocks.1.0", five)], {"blocks.1.2": (five, ["blocks.1.2"])}),
            ],
        ),
        "gate": (SwiGLU, [([("gate", eight), ("up", eight)], {"down": (eight, ["down"])})]),
        "gate in one layer": (Chunked, [([("both", [[i, i + 8] for i in range(8)])], {"down": (eight, ["down"])})]),
        "critic": (
            Critic,
            [
                ([("observation", eight)], {"q.0": (eight, ["q.0"])}),
                ([("q.0", six)], {"q.2": (six, ["q.2"])}),
            ],
        ),
        "CReLU": (CReLU, [([("a", five)], {"b": ([[i, i + 5] for i in range(5)], ["b"])})]),
        "dueling": (Dueling, [([("body", eight)], {"advantage": (eight, ["advantage", "value"])})]),
    }


@pytest.mark.parametrize("preset", ["paper", "nature2024"])
@pytest.mark.parametrize("kind", list(by_hand()))
def test_groups_equal_the_oracle(kind, preset):
    compare_with_oracle(kind, preset, None, 300 if (kind, preset) == ("residual", "paper") else 120)


@pytest.mark.parametrize(
    "utility", ["weight_magnitude", "contribution", "mean_corrected_contribution", "adaptation", "overall"]
)
@pytest.mark.parametrize("preset", ["paper", "nature2024"])
def test_the_utility_of_a_unit_in_a_residual_stream_is_the_oracles(utility, preset):
    compare_with_oracle("residual", preset, utility, 100)


def compare_with_oracle(kind, preset, utility, steps):
    make, groups = by_hand()[kind]
    torch.manual_seed(0)
    assert len(compare(make().double(), groups, preset, utility, steps)) > 8


def compare(model, groups, preset, utility, steps):
    """Trains a network beside a copy that the oracle treats, and returns what both have replaced."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.uniform_(module.weight, -0.5, 0.5)
            nn.init.zeros_(module.bias)
    init = {name: Distribution.uniform(0.4) for producers, _ in groups for name, _ in producers}
    copied, optimizer = copy.deepcopy(model), Adam(model.parameters(), lr=0.01)
    arguments = {"replacement_rate": 0.02, "maturity_threshold": 10, "decay_rate": 0.9, "preset": preset, "seed": 7}
    gnt = quiet_gnt(model, optimizer, utility=utility, init=init, **arguments)
    parameters = {name: parameter.detach().numpy() for name, parameter in copied.named_parameters()}
    reference_optimizer = naive.Adam(0.01)
    described = [
        naive.Group(
            [(f"{name}.weight", f"{name}.bias", rows, 0.4) for name, rows in producers],
            {site: (columns, [(f"{n}.weight", f"{n}.bias") for n in readers]) for site, (columns, readers) in sites.items()},
            len(producers[0][1]),
        )
        for producers, sites in groups
    ]
    utility = utility or {"paper": "overall", "nature2024": "contribution"}[preset]
    reference = naive.GroupGenerateAndTest(parameters, reference_optimizer, described, utility=utility, **arguments)
    inputs = {}
    for site in {site for _, sites in groups for site in sites}:
        hook = lambda module, args, site=site: inputs.__setitem__(site, args[0].detach().numpy())  # noqa: E731
        copied.get_submodule(site).register_forward_pre_hook(hook)
    log = []
    for step in range(steps):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for network in (model, copied):
            network.zero_grad()
            (network(x) - torch.sin(x[:, :1] + step // 50)).square().mean().backward()
        optimizer.step()
        log += [(step, gnt.layers.index(name), unit) for name, units in gnt.step().replaced.items() for unit in units]
        used = {name: p for name, p in copied.named_parameters() if p.grad is not None}
        reference_optimizer.step({name: parameters[name] for name in used}, {name: p.grad.numpy() for name, p in used.items()})
        reference.step(inputs)
    assert log == reference.log
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), parameters[name], rtol=1e-7, atol=1e-9, err_msg=name)
    return log


def test_batch_normalization_does_for_a_bias_when_means_are_moved():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)
    ).double()
    gnt = GenerateAndTest(model, torch.optim.SGD(model.parameters(), 0.0), 0.02, maturity_threshold=5, preset="nature2024")
    x = torch.randn(64, 4, dtype=torch.float64)
    normalized = []
    model[3].register_forward_hook(lambda module, args, output: normalized.append(output.mean(0).detach()))

    def evaluated():
        model.eval()
        model(x)
        model.train()
        return normalized.pop()

    replaced = {}
    while "0" not in replaced:
        model(x)
        before = evaluated()
        replaced = gnt.step().replaced
    assert model[2].weight[:, replaced["0"]].eq(0).any()
    kept = [i for i in range(5) if i not in replaced.get("2", [])]
    torch.testing.assert_close(evaluated()[kept], before[kept], rtol=1e-9, atol=1e-9)


class RandomNetwork(nn.Module):
    """A network from a list of instructions; each takes tensors made before and makes one more."""

    def __init__(self, program):
        super().__init__()
        torch.manual_seed(len(program))
        widths, self.program, self.layers = [4], [], nn.ModuleList()
        for what, a, b, width in program:
            a, b = a % len(widths), b % len(widths)
            layer, made = nn.Identity(), widths[a]
            if what == "linear":
                layer, made = nn.Linear(widths[a], width), width
            elif what == "norm":
                layer = nn.BatchNorm1d(widths[a])
            elif what == "prelu":
                layer = nn.PReLU(widths[a])
            elif what in ("sum", "product", "maximum") and widths[a] != widths[b]:
                layer = nn.Linear(widths[b], widths[a])
            elif what == "cat":
                made = widths[a] + widths[b]
            elif what == "split" and widths[a] % 2 == 0:
                made = widths[a] // 2
            elif what == "slice":
                made = max(1, widths[a] - 1)
            self.layers.append(layer)
            self.program.append((what, a, b))
            widths.append(made)
        self.out = nn.Linear(widths[-1], 2)

    def forward(self, x):
        tensors = [x]
        for (what, i, j), layer in zip(self.program, self.layers, strict=True):
            a, b = tensors[i], tensors[j]
            if what in ("linear", "norm", "prelu"):
                made = layer(a)
            elif what == "tanh":
                made = torch.tanh(a)
            elif what == "sum":
                made = a + layer(b)
            elif what == "product":
                made = a * torch.sigmoid(layer(b))
            elif what == "maximum":
                made = torch.maximum(a, layer(b))
            elif what == "cat":
                made = torch.cat([a, b], 1)
            elif what == "split" and layer is not None:
                parts = a.chunk(2, dim=-1) if self.even(i) else (a, a)
                made = parts[0] * torch.sin(parts[1])
            else:
                made = a[:, : self.width(i) - 1] if self.width(i) > 1 else a
            tensors.append(made)
        return self.out(tensors[-1])

    def width(self, number):
        widths = [4]
        for (what, a, b), layer in zip(self.program, self.layers, strict=True):
            made = widths[a]
            if what == "linear":
                made = layer.out_features
            elif what == "cat":
                made = widths[a] + widths[b]
            elif what == "split" and widths[a] % 2 == 0:
                made = widths[a] // 2
            elif what == "slice":
                made = max(1, widths[a] - 1)
            widths.append(made)
        return widths[number]

    def even(self, number):
        return self.width(number) % 2 == 0


instruction = st.tuples(
    st.sampled_from(
        ["linear", "linear", "linear", "tanh", "norm", "prelu", "sum", "product", "maximum", "cat", "split", "slice"]
    ),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(2, 5),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(instruction, min_size=2, max_size=9), st.integers(0, 5), st.integers(0, 20))
def test_random_graphs(program, layer, unit):
    program = [("linear", 0, 0, 4), ("tanh", 1, 0, 2), *program]
    model = RandomNetwork(program).double()
    found = find_units(model)
    if found.layers:
        check_replacement(model, torch.randn(6, 4, dtype=torch.float64), layer, unit)


plain_instruction = instruction.filter(lambda each: each[0] not in ("norm", "prelu"))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.lists(plain_instruction, min_size=3, max_size=7), st.sampled_from(["paper", "nature2024"]))
def test_random_graphs_equal_the_oracle(program, preset):
    model = RandomNetwork([("linear", 0, 0, 4), ("tanh", 1, 0, 2), *program]).double()
    groups = []
    for layer in (found.units for found in find_units(model).layers):
        sites = {}
        for site in layer.sites:
            taps = [[tap for tap, owner in enumerate(site.owners) if owner == (layer, unit)] for unit in range(layer.count)]
            sites[site.readers[0].name] = (taps, [reader.name for reader in site.readers])
        groups.append(([(part.name, part.index.tolist()) for part in layer.producers], sites))
    if groups:
        compare(model, groups, preset, None, 40)


class JoinedInput(nn.Module):
    """A sum with a concatenation in which an input of unknown size stands."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.h, self.g = nn.Linear(3, 4), nn.Linear(3, 7), nn.Linear(7, 2), nn.Linear(4, 2)

    def forward(self, x):
        a = self.a(x)
        return self.h(torch.cat([x, a], 1) + self.b(x)) + self.g(a)


def test_a_sum_of_which_the_sizes_are_not_known_is_left_alone():
    found = find_units(JoinedInput())
    assert not found.layers and {"a", "b"} <= set(found.untreated)


class Auxiliary(nn.Module):
    """A second head while it trains, as in GoogLeNet."""

    def __init__(self):
        super().__init__()
        self.e, self.f, self.h, self.aux = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2), nn.Linear(4, 2)

    def forward(self, x):
        e = torch.relu(self.e(x))
        y = self.h(torch.relu(self.f(e)))
        return (y, self.aux(e)) if self.training else y


@pytest.mark.parametrize("training", [True, False])
def test_what_depends_on_training_mode_is_left_alone_in_either_mode(training):
    model = Auxiliary().train(training)
    found = find_units(model)
    assert [layer.name for layer in found.layers] == ["f"] and "training mode" in found.untreated["e"]
    assert all(module.training == training for module in model.modules())
