"""The sparse MLP kernel against the oracle and the torch engine, in float64; resuming; Σ|w|; denormals; real MNIST.

As in `test_lane_kernel`: the cross of choices goes through the kernel compiled *once* for all of them, and the version that
users run, compiled for constant choices, is compared with that one bit for bit.
"""

import functools
import itertools
import time

import numpy as np
import pytest
from cbp_ray_benchmarks import mnist as benchmark
from long_tests import first
from mnist_help import NaiveMnistRun, general_engine, make_config, small_images

from cbp_ray.experiments import iterate_online, load_checkpoint, run_online, save_checkpoint
from cbp_ray.experiments.engines import mlp_permuted_mnist
from cbp_ray.experiments.engines.mlp_permuted_mnist import MlpEngine
from cbp_ray.experiments.engines.torch_permuted_mnist import MnistRun
from cbp_ray.kernels.mlp_replacement import SMALL
from cbp_ray.kernels.mlp_state import State, matrix, of_level
from cbp_ray.kernels.mlp_step import FAR, FETCHED, REFRESH
from cbp_ray.problems import mnist_files

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
every_choice = pytest.mark.long
"""Tests in float64, most of them with the kernel that is compiled for all choices at once: two minutes. `make test` has the
numbers of specialised kernels in float32, in the golden test, and some of them against the oracle."""
ACTIVATIONS = ("tanh", "sigmoid", "relu", "leaky_relu", "elu", "swish")
CBP = {"name": "cbp", "replacement_rate": 3e-3, "maturity_threshold": 20}
ALGORITHMS = {
    "bp": {"name": "bp"},
    "l2": {"name": "l2", "weight_decay": 0.03},
    "online_norm": {"name": "online_norm", "alpha_forward": 0.99, "alpha_backward": 0.9},
    "cbp": CBP,
}
OPTIMIZERS = {"sgd": {"name": "sgd", "step_size": 0.03}, "adam": {"name": "adam", "step_size": 0.003}}
UTILITIES = ("random", "weight_magnitude", "contribution", "mean_corrected_contribution", "adaptation", "overall")


def compare_with_oracle(config, seed=5, least_replaced=20):
    images = small_images()
    oracle, kernel = NaiveMnistRun(config, seed, images), general_engine(config, [seed])
    for _ in range(config.bins):
        accuracy, loss = oracle.advance(config.bin_size)
        comp = kernel.advance(config.bin_size)
        assert comp["accuracy"][0] == accuracy
        # Rounding differences of 1e-16 grow while the network learns; a replacement at a different step would show at 1e-2.
        assert comp["loss"][0] == pytest.approx(loss, rel=1e-8)
    (run,) = kernel.runs
    for layer, (w, b) in enumerate(zip(oracle.network.weights, oracle.network.biases, strict=True)):
        np.testing.assert_allclose(run.weights(layer), w.T, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(of_level(run.state.bias, run.layout, layer + 1), b, rtol=1e-6, atol=1e-8)
    if oracle.gnt is not None:
        assert min(oracle.gnt.replaced) >= least_replaced
        assert run.state.replaced[1:-1].tolist() == oracle.gnt.replaced
        for level in range(1, run.layers):
            ages = run.state.steps[0] - of_level(run.state.birth, run.layout, level)
            np.testing.assert_array_equal(ages, oracle.gnt.age[level - 1])
            # Selection looks at the order of utilities only, so the values are compared as well.
            for comp_array, ref in ((run.state.utility, oracle.gnt.u), (run.state.activation, oracle.gnt.f)):
                np.testing.assert_allclose(of_level(comp_array, run.layout, level), ref[level - 1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "activation"),
    first(
        3,
        [
            ("bp", "sgd", "relu"),
            ("cbp", "adam", "relu"),
            ("online_norm", "sgd", "tanh"),
            ("l2", "sgd", "relu"),
            (CBP | {"utility": "mean_corrected_contribution"}, "sgd", "relu"),
            (CBP | {"preset": "nature2024"}, "sgd", "elu"),
        ],
    ),
)
def test_specialised_kernels_in_float32_stay_close_to_the_oracle(algorithm, optimizer, activation):
    """Those of the golden test, which are compiled for it; a replacement at a different step would show at 1e-2."""
    settings = ALGORITHMS.get(algorithm, algorithm) if isinstance(algorithm, str) else algorithm
    config = make_config(settings, OPTIMIZERS[optimizer], activation=activation, examples=300, bin_size=150, dtype="float32")
    oracle = NaiveMnistRun(config.model_copy(update={"dtype": "float64"}), 5, small_images())
    kernel = MlpEngine(config, [5], small_images())
    for _ in range(config.bins):
        accuracy, loss = oracle.advance(config.bin_size)
        comp = kernel.advance(config.bin_size)
        assert comp["accuracy"][0] == pytest.approx(accuracy, abs=1 / config.bin_size + 1e-9)
        assert comp["loss"][0] == pytest.approx(loss, rel=1e-3)
    (run,) = kernel.runs
    if oracle.gnt is not None:
        assert min(oracle.gnt.replaced) >= 3 and run.state.replaced[1:-1].tolist() == oracle.gnt.replaced


@every_choice
@pytest.mark.parametrize(("algorithm", "optimizer", "activation"), list(itertools.product(ALGORITHMS, OPTIMIZERS, ACTIVATIONS)))
def test_kernel_equals_oracle(algorithm, optimizer, activation):
    long = optimizer == "sgd" and activation in ("relu", "leaky_relu")
    examples = 1_000 if long else 300  # the oracle's Adam takes 1 ms per example
    settings = CBP | {"replacement_rate": 0.01 if long else 0.02} if algorithm == "cbp" else ALGORITHMS[algorithm]
    compare_with_oracle(
        make_config(settings, OPTIMIZERS[optimizer], activation=activation, examples=examples, bin_size=examples // 2)
    )


@every_choice
@pytest.mark.parametrize(("utility", "preset"), list(itertools.product(UTILITIES, ("paper", "nature2024"))))
def test_utilities_equal_oracle(utility, preset):
    compare_with_oracle(make_config(CBP | {"utility": utility, "preset": preset}))


@every_choice
@pytest.mark.parametrize("preset", ["paper", "nature2024"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_many_replacements_with_weight_decay_and_bernoulli_equal_oracle(preset, optimizer):
    """Also: several units at once in one layer, and layers that replace in the same step."""
    settings = CBP | {"preset": preset, "replacement": "bernoulli", "replacement_rate": 0.2, "weight_decay": 0.03}
    compare_with_oracle(make_config(settings, OPTIMIZERS[optimizer], examples=300, bin_size=150))


@every_choice
@pytest.mark.parametrize("hidden", [(1,), (40,), (3, 17, 5), (33, 2, 2, 18)])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_other_sizes_equal_oracle(hidden, activation):
    settings = CBP | {"replacement_rate": 0.02}
    examples = 600 if activation == "relu" else 400
    config = make_config(settings, hidden=hidden, activation=activation, examples=examples, bin_size=examples // 2)
    compare_with_oracle(config, least_replaced=5)


@every_choice
def test_linear_network_equals_oracle():
    for optimizer in OPTIMIZERS.values():
        compare_with_oracle(make_config({"name": "linear"}, optimizer, examples=300, bin_size=150))


@every_choice
def test_strong_weight_decay_equals_oracle():
    """The scale of the weights falls from 1 to 1/16 every 92 examples, and then goes back into them."""
    decay = {"weight_decay": 1.0}
    for algorithm in ({"name": "l2"} | decay, CBP | decay, {"name": "online_norm"} | decay):
        compare_with_oracle(make_config(algorithm, activation="tanh"))


@every_choice
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("algorithm", [*ALGORITHMS.values(), CBP | {"preset": "nature2024"}, {"name": "linear"}], ids=str)
def test_kernel_equals_torch(algorithm, optimizer):
    """Every metric in both bins; the second one's depend on all that happened before."""
    rate = {"replacement_rate": 0.01} if algorithm["name"] == "cbp" else {}
    config = make_config(algorithm | rate, OPTIMIZERS[optimizer], hidden=(30, 20, 20), task_length=100)
    torch, kernel = MnistRun(config, 3, small_images()), general_engine(config, [3])
    for examples in (170, 130):
        ref, comp = torch.advance(examples), kernel.advance(examples)
        assert list(comp) == list(config.metrics) and set(ref) == set(comp)
        for name in ref:
            # The small singular values come from the square of the matrix, which doubles their rounding errors.
            tolerance = 1e-5 if "rank" in name else 1e-9
            np.testing.assert_allclose(comp[name][0], ref[name], rtol=tolerance, err_msg=name)
    assert ref["replacements"] > 10 or not rate


@every_choice
@pytest.mark.parametrize("hidden", [(7,), (30, 20, 20)])
def test_kernel_equals_torch_over_thousands_of_examples(hidden):
    config = make_config(CBP, hidden=hidden, activation="leaky_relu")
    torch, kernel = MnistRun(config, 3, small_images()), general_engine(config, [3])
    replaced = 0.0
    for _ in range(3):
        ref, comp = torch.advance(1_000), kernel.advance(1_000)
        assert comp["accuracy"][0] == ref["accuracy"]
        np.testing.assert_allclose(comp["loss"][0], ref["loss"], rtol=1e-7)
        assert comp["replacements"][0] == ref["replacements"]
        replaced += ref["replacements"]
    assert replaced > 50


@every_choice
def test_wide_networks_equal_torch():
    """Rows of more than a block, matrices that are fetched ahead, and sums that replacements do not measure anew."""
    config = make_config(CBP | {"replacement_rate": 1e-3}, hidden=(600, 520))
    torch, kernel = MnistRun(config, 3, small_images()), general_engine(config, [3])
    (run,) = kernel.runs
    widest = int(run.layout.stride[1])
    assert widest > FETCHED and 600 * widest > max(FAR, SMALL)
    for examples in (120, 130):
        ref, comp = torch.advance(examples), kernel.advance(examples)
        for name in ref:
            tolerance = 1e-5 if "rank" in name else 1e-8
            np.testing.assert_allclose(comp[name][0], ref[name], rtol=tolerance, err_msg=name)
        assert ref["replacements"] > 50


@every_choice
@pytest.mark.parametrize("algorithm", [{"name": "bp"}, CBP | {"replacement_rate": 1e-2}], ids=lambda a: a["name"])
def test_engines_agree_on_real_mnist(algorithm):
    config = make_config(algorithm, {"name": "sgd", "step_size": 0.01}, hidden=(50, 40, 30), task_length=250)
    config = config.model_copy(update={"examples": 600, "bin_size": 300})
    ref, comp = run_online(config, [1], engine="torch"), run_online(config, [1], engine="kernel")
    for name in ref.metrics:
        np.testing.assert_allclose(comp[name], ref[name], rtol=1e-5 if "rank" in name else 1e-8, err_msg=name)
    assert ref["accuracy"].max() > 0.3


@every_choice
@pytest.mark.parametrize(
    ("algorithm", "optimizer", "dtype"),
    [
        ("cbp", "sgd", "float32"),
        # Each of the others is compiled for half a minute.
        pytest.param("cbp", "sgd", "float64", marks=pytest.mark.long),
        pytest.param("l2", "sgd", "float32", marks=pytest.mark.long),
        pytest.param("online_norm", "sgd", "float32", marks=pytest.mark.long),
        pytest.param("online_norm", "adam", "float64", marks=pytest.mark.long),
    ],
)
def test_specialised_kernel_equals_unspecialised_one(algorithm, optimizer, dtype):
    config = make_config(ALGORITHMS[algorithm], OPTIMIZERS[optimizer], dtype=dtype)
    unspecialised, special = general_engine(config, [0, 1]), MlpEngine(config, [0, 1], small_images())
    for _ in range(config.bins):
        ref, comp = unspecialised.advance(config.bin_size), special.advance(config.bin_size)
        for name in ref:
            np.testing.assert_array_equal(comp[name], ref[name])
    ref, comp = unspecialised.state(), special.state()
    for name in ref:
        np.testing.assert_array_equal(comp[name], ref[name])


@every_choice
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threshold", [20, 10**7])
def test_sums_of_magnitudes_do_not_drift(dtype, threshold):
    """Kept up to date for `REFRESH` steps at most: each update of a sum is off by half a unit of the last place.

    Without replacements, which measure anew what they touch, the sums get as old as they can.
    """
    algorithm = CBP | {"weight_decay": 1e-3, "maturity_threshold": threshold}
    engine = general_engine(make_config(algorithm, hidden=(40, 30, 20), dtype=dtype), [0])
    (run,) = engine.runs
    engine.advance(REFRESH // 2)
    # An error as large as the sums themselves, which only a refresh can mend.
    run.state.incoming[:] *= 2
    run.state.outgoing[:] *= 2
    engine.advance(3 * REFRESH - REFRESH // 2)
    assert run.state.steps[0] % REFRESH == 0  # the sums are as old as they get
    for level in range(1, run.layers):
        incoming = np.abs(matrix(run.state.weights, run.layout, level - 1), dtype=np.float64).sum(axis=0)
        outgoing = np.abs(matrix(run.state.weights, run.layout, level), dtype=np.float64).sum(axis=1)
        tolerance = 0.1 * REFRESH * np.finfo(dtype).eps
        np.testing.assert_allclose(of_level(run.state.incoming, run.layout, level), incoming, rtol=tolerance)
        np.testing.assert_allclose(of_level(run.state.outgoing, run.layout, level), outgoing, rtol=tolerance, atol=tolerance)


@every_choice
def test_float32_stays_close_to_float64():
    config = make_config(CBP, hidden=(40, 30), task_length=1000, examples=3_000)
    ref, comp = (general_engine(c, range(4)).advance(3_000) for c in (config, config.model_copy(update={"dtype": "float32"})))
    np.testing.assert_allclose(comp["loss"], ref["loss"], rtol=1e-2)
    np.testing.assert_allclose(comp["accuracy"], ref["accuracy"], atol=0.01)


@every_choice
def test_the_accuracy_is_that_of_the_prediction_before_the_update():
    """One image over and over: at this step size, the first update makes it right for good."""
    images = small_images()._replace(images=small_images().images[:1], labels=small_images().labels[:1])
    config = make_config({"name": "bp"}, {"name": "sgd", "step_size": 0.5}, task_length=50)
    seeds = range(12)
    first = general_engine(config, seeds, images).advance(1)["accuracy"]
    assert 0 < first.sum() < 12
    for accuracy in (
        general_engine(config, seeds, images).advance(10)["accuracy"],
        np.array([MnistRun(config, seed, images).advance(10)["accuracy"] for seed in seeds]),
    ):
        np.testing.assert_allclose(accuracy, (9 + first) / 10)


@every_choice
def test_rate_zero_is_backprop_bit_for_bit():
    cbp, bp = (general_engine(make_config(a), [0]).advance(1_000) for a in (CBP | {"replacement_rate": 0}, {"name": "bp"}))
    for name in bp:
        np.testing.assert_array_equal(cbp[name], bp[name])


@every_choice
@pytest.mark.parametrize("engine", ["kernel", "torch"])
@pytest.mark.parametrize(("algorithm", "optimizer"), [("cbp", "sgd"), ("cbp", "adam"), ("online_norm", "sgd"), ("l2", "sgd")])
def test_resumed_run_equals_unbroken_run_bit_for_bit(tmp_path, engine, algorithm, optimizer):
    if engine == "kernel":

        def make(config):
            return general_engine(config, [4, 2])
    else:

        def make(config):
            return MnistRun(config, 4, small_images())

    config = make_config(ALGORITHMS[algorithm], OPTIMIZERS[optimizer], dtype="float32", task_length=130)
    whole, half, rest = make(config), make(config), make(config)
    for examples in (200, 150):
        whole.advance(examples)
    half.advance(200)
    rest.load_state(half.state(), 200)
    ref, comp = whole.advance(170), (rest.advance(150), rest.advance(170))[1]
    for name in ref:
        np.testing.assert_array_equal(comp[name], ref[name])


def test_real_mnist_runs_resume_from_files(tmp_path):
    config = make_config(CBP, hidden=(20,), dtype="float32", task_length=100, examples=500, bin_size=100)
    whole = list(iterate_online(config, [7]))
    half = iterate_online(config, [7])
    next(half)
    save_checkpoint(tmp_path / "run.npz", next(half).checkpoint())
    rest = list(iterate_online(config, [7], state=load_checkpoint(tmp_path / "run.npz")))
    assert [point.index for point in rest] == [2, 3, 4]
    for name in config.metrics:
        np.testing.assert_array_equal(rest[-1].metrics[name], whole[-1].metrics[name])
    assert set(whole[-1].checkpoint()) == set(rest[-1].checkpoint())
    assert f"state/0/{State._fields[0]}" in rest[-1].checkpoint()


@every_choice
def test_dead_network_is_not_slower():
    """Averages and moments of dead units decay into denormals, which take several times as long where they are not flushed."""
    config = make_config(CBP | {"replacement_rate": 0}, OPTIMIZERS["adam"], hidden=(60, 60), dtype="float32", task_length=9_000)

    def seconds(engine):
        start = time.perf_counter()
        engine.runs[0].advance(300)
        return time.perf_counter() - start

    fresh, dead = general_engine(config, [0]), general_engine(config, [0])
    fresh.advance(100), dead.advance(100)
    of_level(dead.runs[0].state.bias, dead.runs[0].layout, 1)[...] = -1000
    dead.advance(4_000)
    assert dead.advance(100)["dead_1"][0] == 1
    assert min(seconds(dead) for _ in range(7)) < 1.5 * min(seconds(fresh) for _ in range(7))


def test_too_strong_weight_decay_is_refused():
    config = make_config({"name": "l2", "weight_decay": 100})
    with pytest.raises(ValueError, match=r"algorithm\.weight_decay: times optimizer\.step_size, must be at most 0\.9"):
        run_online(config, [0])


@pytest.mark.long
def test_the_benchmark_reports_both_engines_in_every_case(monkeypatch):
    monkeypatch.setattr(mlp_permuted_mnist, "MlpEngine", functools.partial(general_engine, images=mnist_files.load("mnist")))
    monkeypatch.setattr(benchmark, "EXAMPLES", {8: (20, 5), 16: (20, 5)})
    monkeypatch.setattr(benchmark, "REPEATS", 2)
    result = benchmark.run()
    assert [(c["width"], c["algorithm"]) for c in result["cases"]] == [(w, a) for w in (8, 16) for a in ("bp", "cbp")]
    assert all(c["torch_us"] > 0 and c["kernel_us"] > 0 and c["speedup"] > 0 for c in result["cases"])
    assert {c["algorithm"] for c in result["kernel_only"]} == {"l2", "online_norm"}
    assert benchmark.render(result).count("\n") == 2 * 4 + 2
