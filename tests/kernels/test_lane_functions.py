"""Activations and arithmetic on lanes: their largest errors, stated and checked."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numba import njit

from cbp_ray.algorithm.weights.noise import Noise
from cbp_ray.kernels import bit_stream, compilation, noise
from cbp_ray.kernels.activations import NEAR, NEARER, Activation, Nearness, activate, exp_minus_one, gate
from cbp_ray.kernels.lanes import (
    WIDTH,
    aligned_flat,
    aligned_zeros,
    flush_denormals,
    load,
    restore_denormals,
    square_root,
    store,
)
from cbp_ray.kernels.vectors import VECTOR, load_at, store_at
from cbp_ray.randomness import BYTES_DEVIATION, noise_keys

# Largest |error| of h and dh/dx for x in [-30, 30], in units of the dtype's epsilon (1.2e-7 and 2.2e-16).
# Swish's is relative to max(1, |x|).
LARGEST = {"tanh": (2.0, 4.0), "sigmoid": (1.5, 1.5), "relu": (0, 0), "leaky_relu": (1, 0.5), "elu": (1, 1), "swish": (2, 2)}


@njit
def apply(x, h, derivative, activation):
    for row in range(x.shape[0]):
        value, slope = activate(load(x, row), activation)
        store(h, row, value)
        store(derivative, row, slope)


@njit
def apply_exp(x, y):
    for row in range(x.shape[0]):
        store(y, row, exp_minus_one(load(x, row)))


@njit
def apply_gate(x, y, nearness):
    for row in range(x.shape[0]):
        store(y, row, gate(load(x, row), nearness))


@njit
def quotient_and_root(x, quotient, root):
    for row in range(x.shape[0]):
        a = load(x, row)
        store(quotient, row, 3.0 / a)
        store(root, row, square_root(a))


@njit
def product_with_denormals_off(x, y):
    before = flush_denormals()
    for row in range(x.shape[0]):
        store(y, row, load(x, row) * 0.5)
    restore_denormals(before)


def grid(dtype, low=-30.0, high=30.0, rows=20_000):
    x = aligned_zeros(rows, dtype)
    x[...] = np.linspace(low, high, rows * WIDTH).reshape(rows, WIDTH)
    return x


def references(x):
    """In long double: 64 bits of mantissa."""
    e = np.exp(-x)
    positive = x > 0
    return {
        "tanh": (np.tanh(x), 1 - np.tanh(x) ** 2),
        "sigmoid": (1 / (1 + e), e / (1 + e) ** 2),
        "relu": (np.where(positive, x, 0), np.where(positive, 1, 0)),
        "leaky_relu": (np.where(positive, x, x / 100), np.where(positive, 1, np.longdouble(1) / 100)),
        "elu": (np.where(positive, x, np.expm1(x)), np.where(positive, 1, np.exp(x))),
        "swish": (x / (1 + e), (1 + e + x * e) / (1 + e) ** 2),
    }


@pytest.mark.parametrize(("dtype", "largest"), [(np.float32, 3e-7), (np.float64, 3e-16)])
@pytest.mark.parametrize(
    ("nearness", "end"),
    [(Nearness.UNKNOWN, 40.0), (Nearness.NEAR, NEAR), (Nearness.NEARER, NEARER)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_largest_error_of_the_gate(nearness, end, dtype, largest):
    """Also where float32 clamps, at 2^±24, and where the caller knows that all arguments are small."""
    x = grid(dtype, -end, end, rows=20_000 if nearness == Nearness.UNKNOWN else 1_000)
    y = np.empty_like(x)
    apply_gate(x, y, int(nearness))
    assert float(np.abs(y - 1 / (1 + np.exp2(x.astype(np.longdouble)))).max()) <= largest


@pytest.mark.parametrize("has_products", [True, False])
def test_noise_is_that_of_torch_on_processors_of_either_kind(has_products, monkeypatch):
    """With the instruction that adds products of bytes, where there is one, and without."""
    if not has_products:
        monkeypatch.setattr(noise, "has_feature", lambda name: False)
    rows, units, seed, step = 4, 2 * VECTOR, 11, 7
    out = aligned_flat(rows * units, np.float32)
    keys = np.array(noise_keys(seed, step), dtype=np.uint32)

    @njit
    def write(keys, out):
        for i in range(0, units, VECTOR):
            a, b, c, d = noise.four_noises_at(keys, i, 1, load_at(out, i))
            store_at(out, i, a)
            store_at(out, units + i, b)
            store_at(out, 2 * units + i, c)
            store_at(out, 3 * units + i, d)

    write(keys, out)
    # In torch, a row is a unit's.
    (expected,) = Noise([torch.zeros(units, rows)], seed).at(step, [torch.zeros(units, rows, dtype=torch.float64)])
    found = out.reshape(rows, units).T.astype(np.float64)
    np.testing.assert_array_equal(found, np.rint(expected.numpy() * BYTES_DEVIATION))
    assert len(np.unique(found)) > rows * units / 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", LARGEST)
def test_largest_error_of_activations(name, dtype):
    x = grid(dtype)
    h, derivative = np.empty_like(x), np.empty_like(x)
    apply(x, h, derivative, int(Activation[name.upper()]))
    exact = x.astype(np.longdouble)
    scale = np.maximum(1, np.abs(exact)) if name == "swish" else 1
    for comp, ref, bound in zip((h, derivative), references(exact)[name], LARGEST[name], strict=True):
        assert float((np.abs(comp - ref) / scale).max()) <= bound * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_largest_relative_error_of_exp_minus_one(dtype):
    limit = 86.0 if dtype == np.float32 else 700.0
    for x in (grid(dtype, -limit, limit), grid(dtype, -1e-3, 1e-3)):
        y = np.empty_like(x)
        apply_exp(x, y)
        ref = np.expm1(x.astype(np.longdouble))
        assert float((np.abs(y - ref) / np.abs(ref)).max()) <= 1.5 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_largest_relative_error_of_division_and_root(dtype):
    x = grid(dtype, 1e-6, 50.0)
    quotient, root = np.empty_like(x), np.empty_like(x)
    quotient_and_root(x, quotient, root)
    exact = x.astype(np.longdouble)
    for comp, ref in ((quotient, 3 / exact), (root, np.sqrt(exact))):
        assert float((np.abs(comp - ref) / ref).max()) <= 1.5 * np.finfo(dtype).eps


@pytest.mark.parametrize("name", LARGEST)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinite_and_undefined_inputs(name, dtype):
    x = aligned_zeros(1, dtype)
    x[0] = 0
    x[0, :5] = [np.inf, -np.inf, np.nan, 1e30, -1e30]
    h, derivative = np.empty_like(x), np.empty_like(x)
    apply(x, h, derivative, int(Activation[name.upper()]))
    assert np.isnan(h[0, 2]) or name == "relu"
    if name in ("tanh", "sigmoid"):
        np.testing.assert_allclose(h[0, [0, 1, 3, 4]], [1, -1 if name == "tanh" else 0] * 2, atol=1e-30)
        np.testing.assert_allclose(derivative[0, [0, 1, 3, 4]], 0, atol=1e-30)


def test_denormals_are_flushed_and_the_mode_restored():
    x = aligned_zeros(1, np.float32)
    x[...] = 1.5 * np.finfo(np.float32).tiny
    y = np.empty_like(x)
    product_with_denormals_off(x, y)
    assert (y == 0).all()
    assert (x * np.float32(0.5) > 0).all()


def test_a_read_only_installation_compiles_without_a_cache(monkeypatch):
    from numba.core import caching

    from cbp_ray.kernels.compilation import compile_cached

    def refuse(self):
        raise OSError("read-only file system")

    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", refuse)
    assert compile_cached(lambda x: x + 1)(1) == 2


@pytest.fixture
def copied_sources(tmp_path, monkeypatch):
    """Copies of all that is compiled, for tests to change."""
    for name in ("KERNELS", "COMPILED"):
        source = getattr(compilation, name)
        copy = shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.setattr(compilation, name, copy)
    monkeypatch.setattr(compilation, "LEAVES", [Path(shutil.copy(leaf, tmp_path)) for leaf in compilation.LEAVES])
    monkeypatch.setattr(compilation, "source_fingerprint", compilation.source_fingerprint.__wrapped__)
    return tmp_path


@pytest.mark.parametrize(
    "changed",
    [
        "kernels/lanes.py",
        "kernels/bit_stream.py",
        "kernels/lane_step.py",
        "kernels/rules.py",
        "compiled/adam.py",
        "randomness.py",
    ],
)
def test_every_compiled_source_is_part_of_the_fingerprint(copied_sources, changed):
    before = compilation.source_fingerprint()
    assert compilation.source_fingerprint() == before
    with open(copied_sources / changed, "a") as file:
        file.write("# changed\n")
    assert compilation.source_fingerprint() != before


def test_the_fingerprint_is_part_of_every_cache_key(copied_sources):
    from numba.core.registry import cpu_target

    from cbp_ray.kernels.lane_step import unspecialised_learner

    compiled = [f for f in vars(bit_stream).values() if hasattr(f, "py_func") and f.py_func.__module__ == bit_stream.__name__]
    compiled += [unspecialised_learner()]
    assert len(compiled) == 7
    codegen = cpu_target.target_context.codegen()
    before = [f._cache._index_key((), codegen) for f in compiled]
    assert [f._cache._index_key((), codegen) for f in compiled] == before
    with open(copied_sources / "randomness.py", "a") as file:
        file.write("# changed\n")
    assert all(f._cache._index_key((), codegen) != key for f, key in zip(compiled, before, strict=True))


def test_kernel_engine_does_not_load_torch_or_ray():
    """A worker of the kernel engine starts in a second, not in five."""
    import subprocess
    import sys

    code = "import sys, cbp_ray.experiments.engines.lane_bit_flipping; sys.exit(bool({'torch', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
