"""How arguments of `save_training_state` reach the actor without being unpickled there."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import ray
import torch

import trieye
from trieye.checkpoints.directory import load_state
from trieye.compat.actor_arguments import LIGHT_BYTES, resolved
from trieye.compat.events import SentEvents
from trieye.snapshot.decode import decode

LARGE = LIGHT_BYTES // 4 + 1
"""Numbers in a tensor that is too large for the actor to unpickle."""


@pytest.fixture(scope="module")
def actor(ray_cluster, tmp_path_factory):
    root = tmp_path_factory.mktemp("arguments")
    config = trieye.TrieyeConfig(run_name="run", sinks={}, persistence={"root_data_dir": str(root)})
    actor = trieye.TrieyeActor.remote(config=config)
    yield actor
    ray.kill(actor)


def save_and_load(actor, step, *states, **more):
    """Save by position or by name, and return the content of the checkpoint; the actor itself loads nothing."""
    ray.get(actor.save_training_state.remote(*states, global_step=step, episodes_played=0, **more), timeout=120)
    run_dir = Path(ray.get(actor.get_run_base_dir_str.remote()))
    return decode(load_state(run_dir / "checkpoints" / f"checkpoint_step_{step}", allow_pickle=True))


@pytest.mark.canary
@pytest.mark.slow
def test_tensors_and_references_arrive_without_being_unpickled_by_the_actor(actor):
    weights = torch.arange(float(LARGE))
    model, optimizer = torch.nn.BatchNorm1d(3), {"state": {0: {"exp_avg": weights, "step": torch.tensor(3.0)}}}
    by_position = save_and_load(actor, 1, {"w": weights, "tied": weights}, optimizer, [], total_simulations_run=0)
    assert torch.equal(by_position["model_state_dict"]["w"], weights)
    assert by_position["model_state_dict"]["tied"].data_ptr() == by_position["model_state_dict"]["w"].data_ptr()
    assert by_position["optimizer_state_dict"]["state"][0]["step"].item() == 3.0
    references = {"nn_state_dict": ray.put({"w": weights}), "optimizer_state_dict": {"now": ray.put({"w": weights})}}
    by_name = save_and_load(actor, 2, **references, buffer_content=[], total_simulations_run=0)
    assert torch.equal(by_name["model_state_dict"]["w"], weights)
    assert torch.equal(by_name["optimizer_state_dict"]["now"]["w"], weights)
    stored = save_and_load(actor, 3, model, {}, [], total_simulations_run=0, user_data={"model": model.state_dict()})
    assert torch.equal(stored["model_state_dict"]["running_var"], torch.ones(3))
    assert stored["user_data"]["model"]._metadata == model.state_dict()._metadata
    pid = ray.get(actor.health.remote())["pid"]
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def test_a_class_of_named_tuples_is_a_value_not_a_container():
    state = {"kind": SentEvents, "items": [1.0]}
    assert resolved(state) == state


@pytest.mark.parametrize("blob", ["x" * 1_000_000, b"x" * 1_000_000, np.zeros(1_000_000), {"deep": ["x" * 1_000_000]}])
def test_a_context_above_the_limit_is_dropped_and_its_value_is_sent(blob):
    large = trieye.RawMetricEvent(name="reward", value=1.0, global_step=1, context={"score": 2.0, "frames": blob})
    small = trieye.RawMetricEvent(name="reward", value=3.0, global_step=1, context={"score": 4.0, "text": "x" * 1000})
    sent = SentEvents.of([large, small])
    assert [(name, value, context) for name, value, _, _, context in sent.rows] == [
        ("reward", 1.0, None),
        ("reward", 3.0, small.context),
    ]
    assert sent.drops == [("context_too_large", "reward", 1)]
    assert len(pickle.dumps(sent)) < 5000
