"""Env runners on two nodes of a cluster: the numbers of one node with as many runners."""

from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from rllib_help import assert_same

from cbp_ray.sweeps import cluster
from rllib_ext import ContinualPPOConfig
from rllib_ext.ant.episode_returns import finished_episodes

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(120)]


def train() -> tuple[set[str], Any, Any]:
    """Nodes of the env runners, episodes that ended in two iterations, and the weights after them."""
    config = (
        ContinualPPOConfig()
        .environment("SlipperyAnt-v0", env_config={"friction": {"period": 150}})
        .env_runners(num_env_runners=2, num_cpus_per_env_runner=1)
        .rl_module(model_config={"fcnet_hiddens": [16, 16]})
        .training(train_batch_size_per_learner=200, minibatch_size=100, num_epochs=2)
        .continual_backprop(replacement_rate=1e-2, maturity_threshold=2)
        .debugging(seed=4, log_level="ERROR")
    )
    algorithm = config.build_algo()
    ended = [finished_episodes(algorithm.train()) for _ in range(2)]
    group: Any = algorithm.env_runner_group
    nodes = group.foreach_env_runner(lambda _: ray.get_runtime_context().get_node_id(), local_env_runner=False)
    reasons = group.foreach_env_runner(lambda runner: runner.slow_reason(), local_env_runner=False)
    weights = algorithm.learner_group.get_weights()  # type: ignore[union-attr]
    assert len(nodes) == 2 and reasons == [None, None]
    algorithm.stop()
    return set(nodes), ended, weights


@pytest.mark.long
def test_runners_on_two_nodes_give_the_numbers_of_one() -> None:
    with cluster.connected(None):
        one = train()
    cluster.use_token()
    ray.shutdown()  # RLlib, in tests before, connects by itself
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=1)
        nodes.wait_for_nodes()
        with cluster.connected(nodes.address):
            two = train()
    finally:
        nodes.shutdown()
    assert (len(one[0]), len(two[0])) == (1, 2)
    assert one[1] == two[1]
    assert_same(one[2], two[2])
