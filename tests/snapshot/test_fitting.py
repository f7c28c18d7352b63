"""Warm starts: states that fit in part, under other names, and those that do not fit and change nothing."""

import re

import numpy as np
import pytest
import torch

import trieye
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.snapshot.encode import decode, encode
from trieye.snapshot.fitting import restore_objects


def net(*, actions=2, hidden=8, body="encoder"):
    layers = {body: torch.nn.Linear(4, hidden), "head": torch.nn.Linear(hidden, actions)}
    return torch.nn.ModuleDict(layers)


def trained(model):
    """Return an optimizer with moments of each parameter."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def saved(**objects):
    """Return objects as a checkpoint holds them."""
    return decode(encode(objects))


def values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model, before):
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Agent:
    """Keeps a model, its optimizer and plain data in a state of its own."""

    def __init__(self, **changes):
        self.q = net(**changes)
        self.optimizer = trained(self.q)
        self.seen, self.scale = {}, np.zeros(2)

    def state_dict(self):
        parts = {"q": self.q.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**parts, "seen": self.seen, "scale": self.scale}

    def load_state_dict(self, state):
        self.seen, self.scale = state["seen"], state["scale"]
        self.q.load_state_dict(state["q"])
        self.optimizer.load_state_dict(state["optimizer"])


def test_what_does_not_fit_is_named_with_its_nearest_key_and_nothing_is_changed():
    held = saved(counter={"n": 5}, rng=np.random.default_rng(1), model=net(), other=net())
    model, other, counter, rng = net(body="trunk", actions=3), net(), {"n": 0}, np.random.default_rng(0)
    before, others = values(model), values(other)
    with pytest.raises(CheckpointError) as raised:
        restore_objects(held, {"counter": counter, "rng": rng, "other": other, "model": model}, source="it")
    for said in (
        "missing: model.trunk.weight (is it model.encoder.weight?)",
        "unexpected: model.encoder.weight, model.encoder.bias",
        "model.head.bias is (3,) and was (2,)",
        "strict=False",
        "key_map",
        "nothing is restored",
    ):
        assert said in str(raised.value)
    assert same(model, before)  # torch copies what fits before it raises
    assert same(other, others)
    assert counter == {"n": 0}
    assert rng.random() == np.random.default_rng(0).random()


def test_a_dict_that_was_something_else_is_refused_before_anything_is_changed():
    model = net()
    before = values(model)
    with pytest.raises(CheckpointError, match=r"'counts'.*expected a dict, but the checkpoint has a list"):
        restore_objects(saved(model=net(), counts=[1]), {"model": model, "counts": {}}, source="it")
    assert same(model, before)


def test_an_object_of_ones_own_that_fails_half_way_is_as_it_was():
    held = saved(agent=Agent(actions=3), first=np.random.default_rng(5))
    held["agent"]["seen"] = {"won": 9}
    agent, first = Agent(), np.random.default_rng(0)
    before = values(agent.q)
    with pytest.raises(CheckpointError, match=r"'agent'.*agent\.q\.head\.weight is \(2, 8\) and was \(3, 8\)"):
        restore_objects(held, {"first": first, "agent": agent}, source="it")
    assert same(agent.q, before)
    assert agent.seen == {}
    assert first.random() == np.random.default_rng(0).random()


def test_without_strict_what_fits_is_restored_and_the_rest_is_said():
    old = net()
    model = net(actions=3)
    before = values(model)
    mismatch = restore_objects(saved(model=old), {"model": model, "absent": {}}, source="it", strict=False)
    assert torch.equal(model["encoder"].weight, old["encoder"].weight)
    assert torch.equal(model["head"].weight, before["head.weight"])
    assert str(mismatch) == (
        "missing: absent; of another shape: model.head.weight is (3, 8) and was (2, 8), "
        "model.head.bias is (3,) and was (2,)"
    )


def test_renamed_keys_fit_as_a_whole_and_an_object_may_be_renamed_too():
    old = net()
    held = saved(policy=old)
    for key_map in (
        {"policy": "model", "policy.encoder": "model.trunk"},
        {"policy.": "model.", "policy.encoder.": "model.trunk."},
    ):
        model = net(body="trunk")
        assert not restore_objects(held, {"model": model}, source="it", key_map=key_map)
        assert torch.equal(model["trunk"].weight, old["encoder"].weight)
        assert torch.equal(model["head"].bias, old["head"].bias)
    with pytest.raises(CheckpointError, match=r"missing: model\.trunk"):
        restore_objects(held, {"model": net(body="trunk")}, source="it", key_map={"policy": "model"})
    with pytest.raises(ConfigurationError, match=r"begins with 'encoder'.*name of its object \(policy\)"):
        restore_objects(held, {"policy": net()}, source="it", key_map={"encoder": "trunk"})
    # a run that began so goes on from its own checkpoint, which has the new names
    assert not restore_objects(saved(model=old), {"model": net()}, source="it", key_map={"policy": "model"})


@pytest.mark.parametrize(
    ("changes", "reason"), [({"hidden": 9}, "has a parameter of shape"), ({}, None)], ids=["other shapes", "the same"]
)
def test_an_optimizer_is_restored_as_a_whole_or_not_at_all(changes, reason):
    old = net()
    held = saved(model=old, optimizer=trained(old))
    model = net(**changes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    mismatch = restore_objects(held, {"model": model, "optimizer": optimizer}, source="it", strict=False)
    assert len(optimizer.state) == (0 if reason else 4)
    assert optimizer.param_groups[0]["lr"] == (0.5 if reason else 0.1)
    assert [reason in said for said in mismatch.optimizers] == ([True] if reason else [])
    if reason is None:
        assert not mismatch


def test_an_optimizer_with_another_number_of_parameters_is_refused_or_skipped_by_name():
    held = saved(optimizer=trained(net()))
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], lr=0.5)
    with pytest.raises(CheckpointError, match=r"optimizer \(has groups of 1 parameters and had 4"):
        restore_objects(held, {"optimizer": optimizer}, source="it")
    mismatch = restore_objects(held, {"optimizer": optimizer}, source="it", strict=False)
    assert mismatch.optimizers == ["optimizer (has groups of 1 parameters and had 4)"]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_an_object_of_ones_own_is_restored_in_part_too():
    old = Agent()
    old.seen, old.scale = {"won": 9}, np.ones(2)
    agent = Agent(actions=3)
    mismatch = restore_objects(saved(agent=old), {"agent": agent}, source="it", strict=False)
    assert torch.equal(agent.q["encoder"].weight, old.q["encoder"].weight)
    assert agent.q["head"].weight.shape == (3, 8)
    assert (agent.seen, agent.scale.tolist()) == ({"won": 9}, [1.0, 1.0])
    assert mismatch.optimizers == ["agent.optimizer (not all parameters of the same object fit)"]
    agent.optimizer.step()  # its moments still fit the parameters
    assert not restore_objects(saved(agent=old), {"agent": Agent()}, source="it", strict=False)


def test_a_run_starts_warm_from_another_one_and_then_goes_on_from_its_own_checkpoint(make_config, capfd):
    old, model = net(), net(body="trunk", actions=3)
    with trieye.Run(make_config(run_name="first")) as run:
        run.save(step=100, policy=old, counts={"games": 7})
    config = make_config(run_name="second", persistence={"load_checkpoint_path": "first:latest"})
    key_map = {"policy": "model", "policy.encoder": "model.trunk"}
    counts = {"games": 0}
    with trieye.Run(config) as run:
        with pytest.raises(CheckpointError, match="nothing is restored"):
            run.restore(model=model, counts=counts, key_map=key_map)
        assert (counts, run.step, run.resumed) == ({"games": 0}, 0, False)
        assert run.restore(model=model, counts=counts, key_map=key_map, strict=False)
        assert (counts, run.step) == ({"games": 7}, 100)
        assert torch.equal(model["trunk"].weight, old["encoder"].weight)
        run.save(step=200, model=model, counts=counts)
    assert capfd.readouterr().err.count("fits in part: of another shape: model.head.weight is (3, 8)") == 1
    again = net(body="trunk", actions=3)
    with trieye.Run(config) as run:
        assert run.restore(model=again, counts=counts, key_map=key_map, strict=False)
        assert run.step == 200
    assert same(again, values(model))
    assert "in part" not in capfd.readouterr().err


def test_a_checkpoint_that_was_loaded_restores_objects_in_the_same_way(make_config):
    old, model = net(), net(actions=5)
    with trieye.Run(make_config()) as run:
        run.save(model=old)
    with pytest.raises(
        CheckpointError, match=f"there is no directory {re.escape(str(run.dir))}s; pass a run directory"
    ):
        trieye.load_checkpoint(f"{run.dir}s")
    loaded = trieye.load_checkpoint(run.dir)
    with pytest.raises(CheckpointError, match=r"model\.head\.bias is \(5,\) and was \(2,\)"):
        loaded.restore(model=model)
    loaded.restore(model=model, strict=False)
    assert torch.equal(model["encoder"].weight, old["encoder"].weight)
