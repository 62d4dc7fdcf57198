"""The compiled measurements of generate-and-test equal torch's, and leave alone what they are not made for."""

import sys

import pytest
import torch
from torch import nn

from cbp_ray import GenerateAndTest
from cbp_ray.compiled.statistics import CompiledStatistics


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (128, 256), (33, 5)])
def test_averages(shape):
    torch.manual_seed(0)
    h, f_hat = torch.randn(shape), torch.randn(shape[1])
    mean, activity = torch.full((2, shape[1]), torch.nan)
    assert CompiledStatistics().averages(h, f_hat, mean, activity)
    torch.testing.assert_close(mean, h.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(activity, (h - f_hat).abs().mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (8, 256), (256, 256), (5, 33)])
@pytest.mark.parametrize(("wants_rows", "wants_columns"), [(True, True), (True, False), (False, True)])
def test_magnitudes(shape, wants_rows, wants_columns):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(shape))
    rows = torch.full(shape[:1], torch.nan) if wants_rows else None
    columns = torch.full(shape[1:], torch.nan) if wants_columns else None
    assert CompiledStatistics().magnitudes(weight, rows, columns)
    if rows is not None:
        torch.testing.assert_close(rows, weight.detach().abs().sum(1), rtol=1e-5, atol=1e-6)
    if columns is not None:
        torch.testing.assert_close(columns, weight.detach().abs().sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("matrix", [torch.zeros(3, 4, dtype=torch.float64), torch.zeros(4, 3).T, torch.zeros(2, 3, 3, 3)])
def test_the_rest_is_left_to_torch(matrix):
    vectors = torch.full((3, 4), 7.0)
    assert not CompiledStatistics().averages(matrix, *vectors)
    assert not CompiledStatistics().magnitudes(matrix, vectors[0], vectors[1])
    assert (vectors == 7).all()


@pytest.mark.parametrize("utility", ["overall", "contribution", "weight_magnitude", "random"])
@pytest.mark.parametrize("preset", ["paper", "nature2024"])
def test_replacements_are_those_of_torch(utility, preset):
    reports = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        gnt = GenerateAndTest(model, optimizer, 0.01, 5, utility=utility, preset=preset, compiled=compiled)
        replaced = []
        for _ in range(60):
            x = torch.randn(16, 6)
            optimizer.zero_grad()
            (model(x) - x[:, :2]).square().mean().backward()
            optimizer.step()
            report = gnt.step()
            replaced.append(report.replaced)
        reports.append((replaced, report.utilities))
    (expected, utilities), (found, compiled_utilities) = reports
    assert found == expected
    assert sum(map(len, (units for step in found for units in step.values()))) > 10
    for name in utilities:
        torch.testing.assert_close(compiled_utilities[name], utilities[name], rtol=1e-4, atol=1e-6)


def test_without_numba_torch_measures(monkeypatch):
    monkeypatch.setitem(sys.modules, "cbp_ray.compiled.statistics", None)
    model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 2))
    gnt = GenerateAndTest(model, torch.optim.SGD(model.parameters(), 0.01))
    model(torch.randn(16, 6)).sum().backward()
    assert gnt.step().replaced == {}
