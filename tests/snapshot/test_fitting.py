"""Warm starts: partially matching states, renamed keys, and mismatches that change nothing."""

import copy
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import trieye
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.snapshot.encode import decode, encode
from trieye.snapshot.fitting import needed_key_map, restore_objects


def make_net(*, actions=2, hidden=8, body="encoder"):
    layers = {body: torch.nn.Linear(4, hidden), "head": torch.nn.Linear(hidden, actions)}
    return torch.nn.ModuleDict(layers)


def trained_optimizer(model, kind=torch.optim.Adam):
    """Return an optimizer with moments of each parameter, by name."""
    optimizer = kind(model.named_parameters(), lr=0.1)
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimizer.step(lambda: torch.ones(()))
    optimizer.zero_grad()
    return optimizer


def saved_state(**objects):
    """Return objects as a checkpoint stores them."""
    return decode(encode(objects))


def copied_values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def has_values(model, before):
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Agent:
    """An object with `state_dict`: a model, its optimizer and plain data."""

    def __init__(self, **changes):
        self.q = make_net(**changes)
        self.optimizer = trained_optimizer(self.q)
        self.seen, self.scale = {}, np.zeros(2)

    def state_dict(self):
        parts = {"q": self.q.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**parts, "seen": self.seen, "scale": self.scale}

    def load_state_dict(self, state):
        self.seen, self.scale = state["seen"], state["scale"]
        self.q.load_state_dict(state["q"])
        self.optimizer.load_state_dict(state["optimizer"])


def test_mismatches_are_named_with_the_closest_key_and_change_nothing():
    state = saved_state(counter={"n": 5}, rng=np.random.default_rng(1), model=make_net(), other=make_net())
    model, other, counter, rng = make_net(body="trunk", actions=3), make_net(), {"n": 0}, np.random.default_rng(0)
    before, others = copied_values(model), copied_values(other)
    with pytest.raises(CheckpointError) as raised:
        restore_objects(state, {"counter": counter, "rng": rng, "other": other, "model": model}, source="it")
    for fragment in (
        "missing: model.trunk.weight (is it model.encoder.weight?)",
        "unexpected: model.encoder.weight, model.encoder.bias",
        "model.head.bias is (3,) and was (2,)",
        "strict=False",
        "key_map",
        "nothing is restored",
    ):
        assert fragment in str(raised.value)
    assert has_values(model, before)  # torch copies what fits before it raises
    assert has_values(other, others)
    assert counter == {"n": 0}
    assert rng.random() == np.random.default_rng(0).random()


def test_a_type_mismatch_is_rejected_before_any_object_changes():
    model = make_net()
    before = copied_values(model)
    with pytest.raises(CheckpointError, match="counts is dict and was list"):
        restore_objects(saved_state(model=make_net(), counts=[1]), {"model": model, "counts": {}}, source="it")
    assert has_values(model, before)


def test_a_custom_object_that_fails_to_load_is_rolled_back():
    state = saved_state(agent=Agent(actions=3), first=np.random.default_rng(5))
    state["agent"]["seen"] = {"won": 9}
    agent, first = Agent(), np.random.default_rng(0)
    before = copied_values(agent.q)
    with pytest.raises(CheckpointError, match=r"'agent'.*agent\.q\.head\.weight is \(2, 8\) and was \(3, 8\)"):
        restore_objects(state, {"first": first, "agent": agent}, source="it")
    assert has_values(agent.q, before)
    assert agent.seen == {}
    assert first.random() == np.random.default_rng(0).random()


def test_key_map_renames_objects_and_their_prefixes():
    old = make_net()
    state = saved_state(policy=old)
    for key_map in (
        {"policy": "model", "policy.encoder": "model.trunk"},
        {"policy.": "model.", "policy.encoder.": "model.trunk."},
    ):
        model = make_net(body="trunk")
        assert not restore_objects(state, {"model": model}, source="it", key_map=key_map)
        assert torch.equal(model["trunk"].weight, old["encoder"].weight)
        assert torch.equal(model["head"].bias, old["head"].bias)
    with pytest.raises(CheckpointError, match=r"missing: model\.trunk"):
        restore_objects(state, {"model": make_net(body="trunk")}, source="it", key_map={"policy": "model"})
    # a fork of a run that renamed its keys has the new ones already
    assert not restore_objects(saved_state(model=old), {"model": make_net()}, source="it", key_map={"policy": "model"})
    with pytest.raises(ConfigurationError, match=r"begins with 'encoder'.*name of its object \(policy\)"):
        restore_objects(state, {"policy": make_net()}, source="it", key_map={"encoder": "trunk"})


def test_key_map_adds_and_removes_a_prefix_below_the_name_of_an_object():
    old, bare, key_map = make_net(), make_net(), {"model": "model.module"}
    for state in (saved_state(model=old), saved_state(model=torch.nn.ModuleDict({"module": old}))):
        wrapped = torch.nn.ModuleDict({"module": make_net()})  # the keys of DistributedDataParallel
        needed = needed_key_map(state, {"model": wrapped}, key_map)
        assert not restore_objects(state, {"model": wrapped}, source="it", key_map=needed)
        assert has_values(wrapped["module"], copied_values(old))
    key_map = {"model.module": "model"}
    assert needed_key_map(state, {"model": bare}, key_map) == key_map
    assert not restore_objects(state, {"model": bare}, source="it", key_map=key_map)
    assert has_values(bare, copied_values(old))
    with pytest.raises(CheckpointError, match=r"has no 'model' \(it has: policy\)"):
        restore_objects(state, {"model": bare}, source="it", key_map={"model": "policy"})


@pytest.mark.parametrize(
    ("saved", "own", "reason"),
    [
        (np.array([1.5, 2.5]), np.zeros(2, int), "int64 and was float64"),
        (np.array(["abc", "de"]), np.array(["z", "z"]), "<U1 and was <U3"),
        (np.array([2**40, 1]), np.zeros(2, np.int32), "int32 and was int64"),
        (torch.tensor([1.5, 2.5]), torch.zeros(2, dtype=torch.int64), r"torch\.int64 and was torch\.float32"),
        (torch.tensor([2**40, 1]), torch.zeros(2, dtype=torch.int32), r"torch\.int32 and was torch\.int64"),
        (torch.ones(2, dtype=torch.bfloat16), np.zeros(2), r"float64 and was torch\.bfloat16"),
        (np.ones(3), np.zeros(2), r"\(2,\) and was \(3,\)"),
        (np.array([1.5, 2.5]), np.zeros(2, np.float32), None),
        (torch.tensor([1.5, 2.5]), torch.zeros(2, dtype=torch.bfloat16), None),
        (torch.tensor([1, 2]), np.zeros(2), None),
        (np.array([True, False]), np.zeros(2, int), None),
    ],
)
def test_arrays_are_cast_only_if_no_value_changes_beyond_float_precision(saved, own, reason):
    state, before = saved_state(w=saved), own.tolist()
    if reason is None:
        assert not restore_objects(state, {"w": own}, source="it")
        assert own.tolist() == saved.tolist()
        return
    with pytest.raises(CheckpointError, match=f"of another shape or type: w is {reason}"):
        restore_objects(state, {"w": own}, source="it")
    assert restore_objects(state, {"w": own}, source="it", strict=False).other_shape
    assert own.tolist() == before


def nested_objects(seed):
    """Return a dict with objects, arrays and plain data."""
    torch.manual_seed(seed)
    net = make_net()
    inner = {"rng": np.random.default_rng(seed), "counts": {"games": seed}, "buffer": np.full(3, float(seed))}
    return {"net": net, "optimizer": trained_optimizer(net), "inner": inner, "step": seed, "best": torch.ones(2) * seed}


@pytest.mark.parametrize("options", [{}, {"strict": False}, {"key_map": {"old": "agents"}}], ids=str)
def test_objects_and_arrays_in_dicts_are_restored_in_place(options):
    old, new = nested_objects(1), nested_objects(2)
    before, inner = dict(new), dict(new["inner"])
    state = saved_state(**{"old" if "key_map" in options else "agents": old})
    assert not restore_objects(state, {"agents": new}, source="it", **options)
    assert all(new[name] is before[name] for name in ("net", "optimizer", "inner", "best"))
    assert all(new["inner"][name] is inner[name] for name in inner)
    assert has_values(new["net"], copied_values(old["net"]))
    assert len(new["optimizer"].state) == 4
    assert new["inner"]["rng"].random() == np.random.default_rng(1).random()
    assert (new["step"], new["inner"]["counts"], inner["buffer"].tolist()) == (1, {"games": 1}, [1.0] * 3)
    assert new["best"].tolist() == [1.0, 1.0]


def test_a_dict_with_an_object_that_does_not_fit_is_refused_as_a_whole_or_restored_in_part():
    state, new = saved_state(agents=nested_objects(1)), nested_objects(2)
    new["net"], new["inner"]["buffer"] = make_net(actions=3), np.zeros(3)
    before = copied_values(new["net"])
    with pytest.raises(CheckpointError, match=r"'agents\.net'.*agents\.net\.head\.bias is \(3,\) and was \(2,\)"):
        restore_objects(state, {"agents": new}, source="it")
    del state["agents"]["inner"]["rng"]
    with pytest.raises(CheckpointError, match=r"missing: agents\.inner\.rng"):
        restore_objects(state, {"agents": new}, source="it")
    assert has_values(new["net"], before)
    assert (new["step"], new["inner"]["counts"], new["inner"]["buffer"].tolist()) == (2, {"games": 2}, [0.0] * 3)
    mismatch = restore_objects(state, {"agents": new}, source="it", strict=False)
    assert "agents.inner.rng" in mismatch.missing
    assert torch.equal(new["net"]["head"].weight, before["head.weight"])
    assert (new["step"], new["inner"]["counts"], new["inner"]["buffer"].tolist()) == (1, {"games": 1}, [1.0] * 3)


def test_objects_in_lists_and_without_load_state_dict_are_refused_instead_of_replaced():
    class Saved:
        def state_dict(self):
            return {"n": 1}

    for item, reason in (
        ([make_net()], r"d\.item is a list with a ModuleDict"),
        (Saved(), r"d\.item=.*: a Saved has no"),
    ):
        own = {"item": item}
        with pytest.raises(ConfigurationError, match=reason):
            restore_objects(saved_state(d=own), {"d": own}, source="it")
        assert own["item"] is item


def test_an_object_that_does_not_exist_fits_a_saved_none():
    assert not restore_objects(saved_state(scheduler=None), {"scheduler": None}, source="it")
    state = saved_state(scheduler={"last_epoch": 1})
    with pytest.raises(CheckpointError, match="scheduler is None and was dict"):
        restore_objects(state, {"scheduler": None}, source="it")
    assert restore_objects(state, {"scheduler": None}, source="it", strict=False).other_shape


def test_a_saved_none_fits_no_object():
    scheduler = torch.optim.lr_scheduler.StepLR(trained_optimizer(make_net()), 1)
    for own in (scheduler, Agent(), np.random.default_rng(), {"inner": scheduler}):
        state = saved_state(own={"inner": None} if isinstance(own, dict) else None)
        with pytest.raises(CheckpointError, match=r"type: own(\.inner)? is \w+ and was None; restore"):
            restore_objects(state, {"own": own}, source="it")
        assert restore_objects(state, {"own": own}, source="it", strict=False).other_shape


def test_a_saved_none_fits_an_object_whose_state_is_none_or_cannot_be_read_yet():
    for read in (lambda: None, lambda: 1 / 0):
        own = SimpleNamespace(state_dict=read, load_state_dict=(loaded := []).append)
        assert not restore_objects(saved_state(own=None), {"own": own}, source="it")
        assert loaded == [None]


def test_arrays_in_dicts_that_cannot_be_filled_are_replaced():
    first = np.zeros(2)  # the best array is still the current one, and was a copy at the save
    own = {"now": first, "alias": first, "best": first, "constant": np.broadcast_to(0.0, (2,))}
    own |= {"past": [np.zeros(1)], "none": None, "history": np.zeros(0), "net": {"sizes": np.zeros(1, np.int64)}}
    saved = {"now": np.array([1, np.nan]), "alias": np.array([1, np.nan]), "best": np.full(2, 2.0)}
    saved |= {"constant": np.ones(2), "past": [], "none": np.ones(1)}
    saved |= {"history": np.ones(3), "net": {"sizes": np.full(1, 0.5)}}
    assert not restore_objects(saved_state(d=saved), {"d": own}, source="it")
    assert own["now"] is own.pop("alias") is first
    assert str(own.pop("now")) == "[ 1. nan]"
    assert (own.pop("net")["sizes"], own.pop("history").tolist()) == ([0.5], [1.0] * 3)
    assert {name: np.asarray(value).tolist() for name, value in own.items()} == {
        "best": [2.0, 2.0], "constant": [1.0, 1.0], "past": [], "none": [1.0]
    }  # fmt: skip


@pytest.mark.parametrize("shape", [3, len], ids=["number", "method"])
def test_values_whose_shape_is_no_tuple_are_plain_data(shape):
    own = {"task": SimpleNamespace(shape=None), "w": np.zeros(2)}
    state = saved_state(d={"task": SimpleNamespace(shape=shape), "w": np.ones(2)})
    assert not restore_objects(state, {}, source="it")
    assert not restore_objects(state, {"d": own}, source="it")
    assert (own["task"].shape, own["w"].tolist()) == (shape, [1.0, 1.0])


@pytest.mark.parametrize("nested", [False, True], ids=["on its own", "in a dict"])
@pytest.mark.parametrize(
    ("saved", "own"),
    [
        (np.array([np.nan, 1.0]), np.zeros(2)),
        (torch.tensor([torch.nan, 1.0]), torch.zeros(2)),
        (torch.ones(2).to(torch.float8_e4m3fn), torch.zeros(2).to(torch.float8_e4m3fn)),
        (torch.eye(2).to_sparse(), torch.zeros(2, 2).to_sparse()),
        (np.array([np.ones(2), np.ones(3)], object), np.array([np.zeros(2), np.zeros(3)], object)),
    ],
    ids=["nan", "nan tensor", "float8", "sparse", "arrays of arrays"],
)
def test_arrays_of_every_kind_are_restored_in_place(saved, own, nested):
    own = copy.deepcopy(own)
    target = {"x": own} if nested else own
    state = saved_state(target={"x": saved} if nested else saved)
    assert not restore_objects(state, {"target": target}, source="it")
    assert (target["x"] if nested else target) is own
    assert str(own) == str(saved)


def test_sparse_tensors_that_cannot_be_filled_are_refused_or_kept():
    own = torch.zeros(2, 2).to_sparse()
    state = saved_state(w=torch.eye(2))
    with pytest.raises(CheckpointError, match=r"of another shape or type: w cannot be filled: .*sparse"):
        restore_objects(state, {"w": own}, source="it")
    assert restore_objects(state, {"w": own}, source="it", strict=False).other_shape
    assert not own.to_dense().any()


@pytest.mark.parametrize("own", [torch.zeros(1).expand(2), np.broadcast_to(0.0, (2,))], ids=["tensor", "array"])
def test_arrays_that_share_memory_or_are_read_only_are_refused_or_kept(own):
    state = saved_state(w=copy.deepcopy(own) + 1)
    with pytest.raises(CheckpointError, match=r"w is (expanded|read-only).*: pass a c(lone|opy)\(\)"):
        restore_objects(state, {"w": own}, source="it")
    assert restore_objects(state, {"w": own}, source="it", strict=False).other_shape
    assert own.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("saved", [{"w": 1}, {"w": 1, "q": np.ones(2)}], ids=["plain", "with array"])
@pytest.mark.parametrize("array", [{}, {"q": np.zeros(2)}], ids=["into plain", "into array"])
def test_keys_that_the_checkpoint_lacks_are_refused_or_kept(saved, array):
    own = {"w": 0, "new": 5, **array}
    with pytest.raises(CheckpointError, match=r"missing: (state\.q, )?state\.new; .*strict=False"):
        restore_objects(saved_state(state=saved), {"state": own}, source="it")
    assert (own["w"], own["new"]) == (0, 5)
    mismatch = restore_objects(saved_state(state=saved), {"state": own}, source="it", strict=False)
    assert set(mismatch.missing) == {"state.new", *(f"state.{name}" for name in array if name not in saved)}
    assert (own["w"], own["new"]) == (1, 5)
    assert not array or own["q"] is array["q"]


@pytest.mark.parametrize("rest", [{}, {"rng": np.random.default_rng(0)}], ids=["plain", "with object"])
def test_keys_that_the_checkpoint_lacks_are_kept_in_nested_dicts(rest):
    own = {"visits": {"room_a": 3, "room_b": 0}, "games": {}, "lr": {"start": 1.0}, **rest}
    state = saved_state(state={"visits": {"room_b": 1, "room_c": 2}, "lr": 0.5, **rest, "n": 4})
    with pytest.raises(CheckpointError, match=r"missing: state\.visits\.room_a, state\.games; "):
        restore_objects(state, {"state": own}, source="it")
    mismatch = restore_objects(state, {"state": own}, source="it", strict=False)
    assert str(mismatch) == "missing: state.visits.room_a, state.games"
    visits = {"room_b": 1, "room_c": 2, "room_a": 3}
    assert own == {"visits": visits, "lr": 0.5, **rest, "n": 4, "games": {}}


@pytest.mark.parametrize("strict", [True, False])
def test_an_empty_dict_receives_all_items(strict):
    saved = {"room": 1, "q": np.ones(2), "inner": {1: "a"}}
    own, nested = {}, {}
    state = saved_state(own=saved, outer={"nested": saved})
    assert not restore_objects(state, {"own": own, "outer": {"nested": nested}}, source="it", strict=strict)
    for filled in (own, nested):
        assert list(filled) == ["room", "q", "inner"]
        assert (filled["q"].tolist(), filled["inner"]) == ([1.0, 1.0], {1: "a"})


@pytest.mark.parametrize("strict", [True, False])
def test_keys_with_equal_paths_are_restored_separately(strict):
    saved = {1: np.array([1.0]), "1": np.array([2.0]), "a.b": np.array([3.0]), "a": {"b": np.array([4.0])}}
    state = decode(encode({"": np.ones(2), "table": saved}))
    own, array = {1: np.zeros(1), "1": np.zeros(1), "a.b": np.zeros(1), "a": {"b": np.zeros(1)}}, np.zeros(2)
    assert not restore_objects(state, {"": array, "table": own}, source="it", strict=strict)
    assert own == saved
    assert array.tolist() == [1.0, 1.0]
    with pytest.raises(ConfigurationError, match=r"table\.a and another key .* both become table\.1"):
        restore_objects(state, {}, source="it", key_map={"table.a": "table.1"})


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("changes", "reason"), [({"hidden": 9}, "has a parameter of shape"), ({}, None)], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.LBFGS])
def test_an_optimizer_is_restored_completely_or_not_at_all(kind, changes, reason, strict):
    old, model = make_net(), make_net(**changes)
    state = saved_state(model=old, optimizer=trained_optimizer(old, kind))
    optimizer = kind(model.parameters(), lr=0.5)
    objects = {"model": model, "optimizer": optimizer}
    if strict and reason:
        with pytest.raises(CheckpointError, match=rf"model\.encoder\.weight is .*optimizer \({reason}"):
            restore_objects(state, objects, source="it")
    else:
        mismatch = restore_objects(state, objects, source="it", strict=strict)
        assert [reason in description for description in mismatch.optimizers] == ([True] if reason else [])
        assert reason or not mismatch
    assert bool(optimizer.state) is not bool(reason)
    assert optimizer.param_groups[0]["lr"] == (0.5 if reason else 0.1)


def test_an_optimizer_with_parameters_in_another_order_is_refused_unless_they_are_renamed():
    old, model = make_net(), make_net(body="trunk")
    state = saved_state(model=old, optimizer=trained_optimizer(old))
    optimizer = torch.optim.Adam(reversed(list(old.named_parameters())), lr=0.5)
    with pytest.raises(CheckpointError, match="its parameters have other names"):
        restore_objects(state, {"optimizer": optimizer}, source="it")
    optimizer, key_map = torch.optim.Adam(model.named_parameters()), {"model.encoder": "model.trunk"}
    assert not restore_objects(state, {"model": model, "optimizer": optimizer}, source="it", key_map=key_map)
    assert len(optimizer.state) == 4


def test_an_optimizer_with_another_parameter_count_is_rejected_or_skipped_by_name():
    state = saved_state(optimizer=trained_optimizer(make_net()))
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], lr=0.5)
    with pytest.raises(CheckpointError, match=r"optimizer \(has groups of 1 parameters and had 4"):
        restore_objects(state, {"optimizer": optimizer}, source="it")
    mismatch = restore_objects(state, {"optimizer": optimizer}, source="it", strict=False)
    assert mismatch.optimizers == ["optimizer (has groups of 1 parameters and had 4)"]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_custom_objects_are_partially_restored_too():
    old = Agent()
    old.seen, old.scale = {"won": 9}, np.ones(2)
    agent = Agent(actions=3)
    mismatch = restore_objects(saved_state(agent=old), {"agent": agent, "absent": {}}, source="it", strict=False)
    assert str(mismatch).startswith(
        "missing: absent; of another shape or type: agent.q.head.weight is (3, 8) and was (2, 8), "
        "agent.q.head.bias is (3,) and was (2,)"
    )
    assert torch.equal(agent.q["encoder"].weight, old.q["encoder"].weight)
    assert agent.q["head"].weight.shape == (3, 8)
    assert (agent.seen, agent.scale.tolist()) == ({"won": 9}, [1.0, 1.0])
    assert mismatch.optimizers == ["agent.optimizer (not all parameters of the same object fit)"]
    agent.optimizer.step()  # its moments still fit the parameters
    assert not restore_objects(saved_state(agent=old), {"agent": Agent()}, source="it", strict=False)


def test_a_warm_started_run_resumes_from_its_own_checkpoint(make_config, capfd):
    old, model = make_net(), make_net(body="trunk", actions=3)
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
    assert capfd.readouterr().err.count("fits in part: of another shape or type: model.head.weight is (3, 8)") == 1
    resumed_model = make_net(body="trunk", actions=3)
    with trieye.Run(config) as run:
        assert run.restore(model=resumed_model, counts=counts, key_map=key_map, strict=False)
        assert run.step == 200
    assert has_values(resumed_model, copied_values(model))
    assert "in part" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("names", "key_map", "expected"),
    [
        (["actor", "critic"], {"actor": "critic", "critic": "actor"}, [2.0, 1.0]),
        (["model", "actor"], {"actor": "model"}, [1.0, 0.0]),
        (["policy", "critic"], {"actor": "policy"}, [1.0, 2.0]),
    ],
    ids=["swapped", "reused", "renamed"],
)
def test_key_map_applies_once_to_a_warm_started_run(names, key_map, expected, make_config):
    with trieye.Run(make_config(run_name="first")) as run:
        run.save(step=1, actor={"w": np.ones(1)}, critic={"w": np.full(1, 2.0)})
    config = make_config(run_name="second", persistence={"load_checkpoint_path": "first:latest"})
    for step in (2, 3):
        objects = {name: {"w": np.zeros(1)} for name in names}
        with trieye.Run(config) as run:
            assert run.restore(**objects, key_map=key_map, strict=False)
            run.save(step=step, **objects)
        assert [item["w"].item() for item in objects.values()] == expected
    added = {"extra": {"w": np.zeros(1)}}
    with trieye.Run(config) as run, pytest.raises(CheckpointError, match=r"has no 'extra'"):
        run.restore(**objects, **added, key_map=key_map)


def test_load_checkpoint_restores_objects_in_the_same_way(make_config):
    old, model = make_net(), make_net(actions=5)
    with trieye.Run(make_config()) as run:
        run.save(model=old)
    missing = f"{run.dir}s"
    with pytest.raises(CheckpointError, match=f"there is no directory {re.escape(missing)}; pass a run directory"):
        trieye.load_checkpoint(missing)
    loaded = trieye.load_checkpoint(run.dir)
    with pytest.raises(CheckpointError, match=r"model\.head\.bias is \(5,\) and was \(2,\)"):
        loaded.restore(model=model)
    loaded.restore(model=model, strict=False)
    assert torch.equal(model["encoder"].weight, old["encoder"].weight)
