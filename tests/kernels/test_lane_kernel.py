"""The lane kernel against the oracle and the torch engine, in float64; block invariance; denormals.

The oracle takes a second or more for 20,000 examples even of a tiny network. So the full cross algorithm × optimizer ×
activation is compared with the oracle at 4 inputs and 3 units, with the kernel compiled *once* for all choices
(`unspecialised_learner`). Torch takes half a millisecond per example, so it goes through the same cross over few examples in
which much happens. The version that is compiled for constant choices, which is what users run, is then compared with the
unspecialised one bit for bit in one case per choice, and with torch in a few long cases at the paper's size.
"""

import functools
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from online_reference import NaiveRun

from cbp_ray.experiments import run_online
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.kernel_settings import kernel_settings
from cbp_ray.experiments.engines.lane_bit_flipping import LaneEngine
from cbp_ray.experiments.engines.torch_bit_flipping import make_engine
from cbp_ray.kernels.lane_state import unit_parameters, unit_rows
from cbp_ray.kernels.lane_step import specialised_learner, unspecialised_learner
from cbp_ray.kernels.lanes import WIDTH

HERE = Path(__file__).parent
ACTIVATIONS = ("tanh", "sigmoid", "relu", "leaky_relu", "elu", "swish")
CBP = {"name": "cbp", "replacement_rate": 3e-3, "maturity_threshold": 20}
ALGORITHMS = {
    "bp": {"name": "bp"},
    "l2": {"name": "l2", "weight_decay": 1e-3},
    "online_norm": {"name": "online_norm", "alpha_forward": 0.999, "alpha_backward": 0.99},
    "cbp": CBP,
}
OPTIMIZERS = {"sgd": {"name": "sgd", "step_size": 0.01}, "adam": {"name": "adam", "step_size": 0.003}}
TINY = {"inputs": 4, "flipping_bits": 2, "flip_period": 400, "target_units": 10}
UTILITIES = ("random", "weight_magnitude", "contribution", "mean_corrected_contribution", "adaptation", "overall")


def make_config(algorithm, optimizer="sgd", activation="tanh", examples=3_000, dtype="float64", **problem):
    step = OPTIMIZERS[optimizer]
    if algorithm == "online_norm":
        # At larger steps OnlineNorm is chaotic here: the oracle parts from itself after a change of 1e-15 in one weight.
        step = step | {"step_size": 0.1 * step["step_size"]}
    return OnlineConfig.make(
        {
            "problem": problem or TINY,
            "network": {"hidden": [3], "activation": activation},
            "algorithm": ALGORITHMS.get(algorithm, algorithm) if isinstance(algorithm, str) else algorithm,
            "optimizer": step,
            "examples": examples,
            "bin_size": 1_000,
            "dtype": dtype,
        }
    )


every_choice = pytest.mark.long
"""Tests with the kernel that is compiled for all choices at once, which takes over a minute. `make test` has the numbers of
specialised kernels, in the golden test, and some of them against the oracle and torch."""


def compare_with_oracle(config, seed=5, learner=unspecialised_learner):
    oracle, kernel = NaiveRun(config, seed), LaneEngine(config, [seed], learner and learner())
    for _ in range(config.bins):
        ref = oracle.advance(config.bin_size).mean()
        comp = kernel.advance(config.bin_size)
        # Rounding differences of 1e-16 grow while the network learns; replacement at a different step would show at 1e-2.
        assert comp["error"][0] == pytest.approx(ref, rel=1e-9)
    block = kernel._blocks[0]
    units = unit_parameters(block.state.parameters, block.shape)[:, :, 0]
    m = config.problem.inputs
    rows = unit_rows(0, m)
    np.testing.assert_allclose(units[:, :m], oracle.network.weights[0], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(units[:, rows.bias], oracle.network.biases[0], rtol=1e-7, atol=1e-9)
    if len(oracle.network.weights) > 1:
        np.testing.assert_allclose(units[:, rows.out], oracle.network.weights[1][0], rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(block.state.parameters[-1, 0], oracle.network.biases[1][0], rtol=1e-7, atol=1e-9)
    if oracle.gnt is not None:
        assert oracle.gnt.replaced[0] > 20
        assert block.state.replaced[0, 0] == oracle.gnt.replaced[0]
        np.testing.assert_array_equal(block.state.age[:, 0], oracle.gnt.age[0])
        # Selection looks at the order of utilities only, so the values are compared as well.
        np.testing.assert_allclose(block.state.utility[:, 0], oracle.gnt.u[0], rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(block.state.activation[:, 0], oracle.gnt.f[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "activation"),
    [("bp", "sgd", "tanh"), ("cbp", "sgd", "tanh"), ("cbp", "adam", "relu"), ("online_norm", "sgd", "tanh")],
)
def test_specialised_kernels_equal_oracle(algorithm, optimizer, activation):
    compare_with_oracle(make_config(algorithm, optimizer, activation), learner=None)


@every_choice
@pytest.mark.parametrize(
    ("algorithm", "optimizer", "activation"),
    [
        pytest.param(*case, marks=pytest.mark.long if case[1] == "adam" and case[2] not in ("tanh", "relu") else ())
        for case in itertools.product(ALGORITHMS, OPTIMIZERS, ACTIVATIONS)
    ],
)
def test_kernel_equals_oracle(algorithm, optimizer, activation):
    compare_with_oracle(make_config(algorithm, optimizer, activation))


@every_choice
@pytest.mark.parametrize(
    "activation",
    ["tanh", "relu", *(pytest.param(name, marks=pytest.mark.long) for name in ACTIVATIONS if name not in ("tanh", "relu"))],
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "linear"])
def test_kernel_equals_torch(algorithm, optimizer, activation):
    """Every metric in both bins; the second one's weights and errors depend on all that happened before."""
    settings = {"linear": {"name": "linear"}, "cbp": CBP | {"replacement_rate": 0.02}}
    config = make_config(settings.get(algorithm, algorithm), optimizer, activation, **TINY | {"flip_period": 60})
    torch, kernel = make_engine(config, [5], "cpu"), LaneEngine(config, [5], unspecialised_learner())
    replaced = 0
    for examples in (150, 130):
        ref, comp = torch.advance(examples), kernel.advance(examples)
        replaced += ref["replacements"][0]
        for name in ref:
            # Rounding differences only: a replacement or flip at another step would show at 1e-2.
            np.testing.assert_allclose(comp[name], ref[name], rtol=1e-9, err_msg=name)
    assert replaced >= 10 or algorithm != "cbp"


@every_choice
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_linear_tracker_equals_oracle(optimizer):
    compare_with_oracle(make_config({"name": "linear"}, optimizer))


@every_choice
@pytest.mark.parametrize(("utility", "preset"), list(itertools.product(UTILITIES, ("paper", "nature2024"))))
def test_utilities_equal_oracle(utility, preset):
    compare_with_oracle(make_config(CBP | {"utility": utility, "preset": preset}, "adam"))


@every_choice
@pytest.mark.parametrize("preset", ["paper", "nature2024"])
def test_bernoulli_equals_oracle(preset):
    compare_with_oracle(make_config(CBP | {"preset": preset, "replacement": "bernoulli"}))


@every_choice
def test_several_replacements_in_one_step_equal_oracle():
    compare_with_oracle(make_config(CBP | {"replacement_rate": 0.4, "weight_decay": 1e-3}))


@every_choice
@pytest.mark.parametrize(
    ("algorithm", "optimizer", "activation"),
    [
        ("cbp", "sgd", "tanh"),
        ("online_norm", "adam", "sigmoid"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("bp", "sgd", "relu"),
                ("l2", "sgd", "swish"),
                ("cbp", "adam", "leaky_relu"),
                ({"name": "linear"}, "sgd", "tanh"),
                (CBP | {"preset": "nature2024", "replacement": "bernoulli", "weight_decay": 1e-4}, "adam", "elu"),
            )
        ),
    ],
)
def test_specialised_kernel_equals_unspecialised_one(algorithm, optimizer, activation):
    config = make_config(algorithm, optimizer, activation)
    unspecialised, special = LaneEngine(config, range(3), unspecialised_learner()), LaneEngine(config, range(3))
    for _ in range(config.bins):
        ref, comp = unspecialised.advance(config.bin_size), special.advance(config.bin_size)
        for name in ref:
            np.testing.assert_array_equal(comp[name], ref[name])
    ref, comp = unspecialised.state(), special.state()
    for name in ref:
        np.testing.assert_array_equal(comp[name], ref[name])


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "examples"),
    [
        ("cbp", "sgd", 6_000),
        pytest.param(CBP | {"preset": "nature2024", "utility": "overall"}, "adam", 20_000, marks=pytest.mark.long),
        pytest.param("online_norm", "sgd", 4_000, marks=pytest.mark.long),
        pytest.param(CBP | {"utility": "random", "replacement": "bernoulli"}, "sgd", 4_000, marks=pytest.mark.long),
    ],
)
def test_engines_agree(algorithm, optimizer, examples):
    """The paper's problem, every metric. Torch needs half a millisecond per example, so one case is enough of the longest."""
    config = make_config(algorithm, optimizer, inputs=20, examples=examples).model_copy(update={"bin_size": examples // 2})
    ref, comp = run_online(config, [3], engine="torch"), run_online(config, [3], engine="kernel")
    assert algorithm == "online_norm" or ref["replacements"].sum() >= 10
    for name in ref.metrics:
        np.testing.assert_allclose(comp[name], ref[name], rtol=1e-8, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize(
    ("algorithm", "optimizer", "activation"),
    [("bp", "sgd", "tanh"), ("cbp", "sgd", "tanh"), ("cbp", "adam", "tanh"), ("bp", "sgd", "relu"), ("cbp", "adam", "relu")],
)
def test_float32_stays_within_the_standard_error_of_float64(algorithm, optimizer, activation):
    """Single runs part after a while, as in any float32 training; the curve over the seeds must not notice."""
    config = make_config(algorithm, optimizer, activation, inputs=20, flip_period=2_000, flipping_bits=15, examples=100_000)
    single = config.model_copy(update={"dtype": "float32"})
    # The unspecialised learner: no compilation per case.
    ref, comp = (np.array(list(errors(c, range(2 * WIDTH)))).T for c in (config, single))
    standard_error = ref.std(axis=0, ddof=1) / np.sqrt(len(ref))
    assert (np.abs(comp.mean(axis=0) - ref.mean(axis=0)) < standard_error).all()
    np.testing.assert_allclose(comp[:, 0], ref[:, 0], rtol=1e-3)


def errors(config, seeds):
    """[seeds], bin by bin."""
    engine = LaneEngine(config, seeds, unspecialised_learner())
    for _ in range(config.bins):
        yield engine.advance(config.bin_size)["error"]


@functools.cache
def block_of_runs(dtype):
    return run_online(invariance_config(dtype), range(40, 40 + WIDTH + 7))


def invariance_config(dtype):
    return make_config("cbp", dtype=dtype, examples=15_000, inputs=7, flipping_bits=3, flip_period=900)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seeds", [[41], [46, 45, 44, 43, 42, 41, 40], [40 + WIDTH + 2, 41], [*range(50, 50 + WIDTH), 40, 41]])
def test_a_run_does_not_depend_on_its_block(seeds, dtype):
    """Alone, in another order, at another place, in a larger or smaller block: the same bits."""
    ref = block_of_runs(dtype)
    comp = run_online(invariance_config(dtype), seeds)
    for row, seed in enumerate(seeds):
        if seed in ref.seeds:
            for name in ref.metrics:
                np.testing.assert_array_equal(comp[name][row], ref[name][ref.seeds.index(seed)])


@pytest.mark.long
def test_a_run_does_not_depend_on_the_width_of_a_block(tmp_path):
    """The same in a process whose vectors are half as wide, compiled anew."""
    script = tmp_path / "narrow.py"
    script.write_text(
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "import cbp_ray.kernels.lanes as lanes\n"
        f"lanes.WIDTH = {WIDTH // 2}\n"
        "import numpy as np\n"
        "from test_lane_kernel import invariance_config, run_online\n"
        "np.save(sys.argv[1], run_online(invariance_config('float32'), range(40, 60)).error)\n"
    )
    out = tmp_path / "error.npy"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    folders = [HERE, HERE.parent / "support"]
    subprocess.run([sys.executable, script, out, *folders], env=environment, check=True)
    np.testing.assert_array_equal(np.load(out), block_of_runs("float32").error[:20])


@pytest.mark.parametrize(
    ("hidden", "problem"), [(1, {"inputs": 1, "flipping_bits": 0}), (9, {"inputs": 33, "flipping_bits": 20})]
)
def test_other_sizes_equal_torch(hidden, problem):
    """Also: no flipping bits at all, and too many random bits (13) for a table of targets."""
    config = make_config("cbp", examples=600, flip_period=100, **problem)
    config = config.model_copy(update={"network": config.network.model_copy(update={"hidden": (hidden,)})})
    ref, comp = run_online(config, [1], engine="torch"), run_online(config, [1], engine="kernel")
    np.testing.assert_allclose(comp.error, ref.error, rtol=1e-9)
    assert ref["replacements"].sum() == comp["replacements"].sum() > 0 or hidden == 1


def test_dead_network_is_not_slower():
    """Averages and moments of dead units decay into denormals. Unflushed, they make each example several times as
    long, also in networks that live, as Adam's moments of inputs that are 0 decay too: hence the comparison with fresh ones."""
    config = make_config(CBP | {"replacement_rate": 0}, "adam", "relu", dtype="float32", inputs=20)

    def warmed_up():
        engine = LaneEngine(config, range(WIDTH))
        engine.advance(100)
        return engine

    def seconds(engine):
        start = time.thread_time()
        engine.advance(500)
        return time.thread_time() - start

    dead = warmed_up()
    for block in dead._blocks:
        unit_parameters(block.state.parameters, block.shape)[:, unit_rows(0, 20).bias] = -1000
    dead.advance(20_000)  # Adam's first moments shrink by 0.9 per example, the averages by 0.99
    assert dead.advance(1_000)["dead"].min() == 1
    assert min(seconds(dead) for _ in range(9)) < 2.5 * min(seconds(warmed_up()) for _ in range(9))


@every_choice
def test_large_seeds_are_the_same_seeds_in_torch():
    """Up to 2**64 - 1 in each stream: problem, initial weights, new units, random utilities, Bernoulli draws."""
    algorithm = CBP | {"replacement_rate": 0.02, "utility": "random", "replacement": "bernoulli"}
    config = make_config(algorithm, **TINY | {"flip_period": 60})
    seeds = [2**63, 2**64 - 1]
    ref, comp = make_engine(config, seeds, "cpu").advance(200), LaneEngine(config, seeds, unspecialised_learner()).advance(200)
    assert ref["replacements"].min() > 3
    for name in ref:
        np.testing.assert_allclose(comp[name], ref[name], rtol=1e-9, err_msg=name)


def test_rate_zero_is_backprop_bit_for_bit():
    cbp, bp = make_config(CBP | {"replacement_rate": 0}), make_config("bp")
    np.testing.assert_array_equal(run_online(cbp, range(2)).error, run_online(bp, range(2)).error)


@every_choice
def test_the_unspecialised_learner_is_what_the_table_of_choices_says():
    """A choice that the kernel ignored would make the comparisons above compare nothing."""
    errors = {
        (algorithm, optimizer, activation): LaneEngine(
            make_config(algorithm, optimizer, activation), [5], unspecialised_learner()
        ).advance(2_000)["error"][0]
        for algorithm, optimizer, activation in itertools.product(ALGORITHMS, OPTIMIZERS, ACTIVATIONS)
    }
    assert len(set(errors.values())) == len(errors)


def test_kernel_refuses_deep_networks():
    config = make_config("bp").model_dump() | {"network": {"hidden": (3, 3)}}
    with pytest.raises(ValueError, match=r"^network\.hidden: .*engine: torch$"):
        run_online(config, [0])


def test_specialised_learners_are_made_once():
    choices = kernel_settings(make_config("bp"))[0]
    assert specialised_learner(choices) is specialised_learner(choices)
