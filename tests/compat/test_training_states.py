"""`save_training_state`: accepted arguments, failures, and the key that signs."""

import threading
import uuid
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from statistics import LinearRegression  # a named tuple that the actor can import, too

import numpy as np
import pytest
import ray
import torch

import trieye
from tests.drop_in import training_state
from trieye.checkpoints.directory import load_state
from trieye.compat.actor import get_or_create
from trieye.compat.actor_arguments import LIGHT_BYTES
from trieye.compat.actor_logic import ActorLogic
from trieye.compat.serializer import Serializer
from trieye.exceptions import CheckpointError, UntrustedPickleError
from trieye.snapshot.decode import decode
from trieye.snapshot.signing import Trust

LARGE = LIGHT_BYTES // 4 + 1
"""Numbers in a tensor that is too large for the actor to unpickle."""


def arguments(step=3, **changes):
    return training_state(step, **{"nn_state_dict": {"w": np.ones(2)}, "save_buffer": True, **changes})


@pytest.fixture
def logic(make_config):
    logic = ActorLogic(make_config()).open()
    yield logic
    logic.shutdown("KILLED")


def saved_names(logic):
    paths = logic.files.paths
    return sorted(path.name for folder in (paths.checkpoint_dir, paths.buffer_dir) for path in folder.iterdir())


@pytest.mark.parametrize("step", [4, np.int64(4), np.int32(4)])
def test_numpy_numbers_are_accepted_as_numbers(logic, step):
    logic.save_training_state(**arguments(step, episodes_played=np.int64(7)))
    loaded = logic.load_initial_state()
    assert (loaded.checkpoint_data.global_step, loaded.checkpoint_data.episodes_played) == (4, 7)
    assert loaded.buffer_step == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffer_content": 5}, "buffer_content is a int; give a list or another iterable"),
        ({"buffer_content": {"a": 1}}, "buffer_content is a dict"),
        ({"buffer_content": np.array(1.0)}, "iterat"),
        ({"global_step": -4}, "global_step"),
        ({"nn_state_dict": [1]}, "nn_state_dict must be a dict or have a state_dict"),
        ({"user_data": 7}, "user_data"),
        ({"buffer_content": [threading.Lock()]}, "lock"),
    ],
)
def test_an_unsavable_state_writes_nothing(logic, changes, message):
    logic.save_training_state(**arguments(2))
    before = saved_names(logic)
    with pytest.raises(CheckpointError, match=message):
        logic.save_training_state(**arguments(**changes))
    assert saved_names(logic) == before
    assert logic.status.health()["save_failures"] == 1


def test_a_failed_checkpoint_leaves_no_buffer_behind(logic):
    paths = logic.files.paths
    paths.checkpoint_dir.rename(paths.checkpoint_dir.with_name("away"))
    paths.checkpoint_dir.write_text("a file in the way")
    with pytest.raises(CheckpointError, match="could not be saved"):
        logic.save_training_state(**arguments(3))
    assert not list(paths.buffer_dir.iterdir())
    paths.checkpoint_dir.unlink()
    logic.save_training_state(**arguments(3))
    assert logic.load_initial_state().buffer_step == 3


def test_buffers_are_retained_while_a_checkpoint_loads_with_them(make_config):
    logic = ActorLogic(make_config(persistence={"keep_last": 2, "keep_best": 0})).open()
    for step, with_buffer in ((1, True), (2, True), (3, False), (4, True), (5, False), (6, False)):
        logic.save_training_state(**arguments(step, save_buffer=with_buffer))
    assert saved_names(logic)[:3] == ["buffer.pkl", "buffer_step_2", "buffer_step_4"]
    logic.save_training_state(**arguments(7))
    assert saved_names(logic)[:3] == ["buffer.pkl", "buffer_step_4", "buffer_step_7"]
    assert logic.load_initial_state().buffer_step == 7
    logic.shutdown("KILLED")


def test_the_hub_signs_and_verifies_with_the_passed_key(make_config, monkeypatch):
    serializer = Serializer(key=b"the key of the driver")
    logic = ActorLogic(make_config(), serializer=serializer).open()
    monkeypatch.setenv("TRIEYE_KEY", "the key of the node of the hub")
    logic.save_training_state(**arguments(user_data={"range": range(3)}, buffer_content=[range(2)]))
    loaded = logic.load_initial_state()
    assert loaded.checkpoint_data.user_data == {"range": range(3)}
    path = logic.files.paths.get_checkpoint_path(3)
    logic.shutdown("KILLED")
    with pytest.raises(UntrustedPickleError):
        load_state(path)
    assert load_state(path, key=b"the key of the driver").objects


def test_a_substitute_serializer_is_accepted(make_config):
    from unittest.mock import create_autospec

    logic = ActorLogic(make_config(), serializer=create_autospec(Serializer, instance=True)).open()
    assert logic.load_initial_state().checkpoint_data is None
    logic.shutdown("KILLED")


def test_the_trust_of_a_process_has_its_key_and_its_permission(monkeypatch):
    monkeypatch.setenv("TRIEYE_KEY", "0123456789abcdef")
    mine = Trust.of_this_process()
    assert mine == (b"0123456789abcdef", None)
    assert "0123456789abcdef" not in repr(mine)
    monkeypatch.setenv("TRIEYE_ALLOW_PICKLE", "1")
    monkeypatch.setenv("TRIEYE_KEY", "short")
    assert Trust.of_this_process() == (None, True)


@pytest.fixture(scope="module")
def actor(ray_cluster, tmp_path_factory):
    root = tmp_path_factory.mktemp("drop_in")
    name = f"run_{uuid.uuid4().hex[:8]}"
    config = trieye.TrieyeConfig(run_name=name, sinks={}, persistence={"root_data_dir": str(root)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIEYE_KEY", "driver-key-0123456789")
        actor = get_or_create(config)
        ray.get(actor.health.remote())
    yield actor
    ray.kill(actor)


@pytest.mark.canary
@pytest.mark.slow
def test_tensors_and_references_arrive_without_being_unpickled_by_the_actor(actor):
    """It comes before tests that load tensors in the actor."""
    weights = torch.arange(float(LARGE))
    model, optimizer = torch.nn.BatchNorm1d(3), {"state": {0: {"exp_avg": weights, "step": torch.tensor(3.0)}}}
    by_position = save_and_load_here(actor, 1, {"w": weights, "tied": weights}, optimizer, [])
    assert torch.equal(by_position["model_state_dict"]["w"], weights)
    assert by_position["model_state_dict"]["tied"].data_ptr() == by_position["model_state_dict"]["w"].data_ptr()
    assert by_position["optimizer_state_dict"]["state"][0]["step"].item() == 3.0
    references = {"nn_state_dict": ray.put({"w": weights}), "optimizer_state_dict": {"now": ray.put({"w": weights})}}
    by_name = save_and_load_here(actor, 2, **references, buffer_content=[])
    assert torch.equal(by_name["model_state_dict"]["w"], weights)
    assert torch.equal(by_name["optimizer_state_dict"]["now"]["w"], weights)
    stored = save_and_load_here(actor, 3, model, {}, [], user_data={"model": model.state_dict()})
    assert torch.equal(stored["model_state_dict"]["running_var"], torch.ones(3))
    assert stored["user_data"]["model"]._metadata == model.state_dict()._metadata
    pid = ray.get(actor.health.remote())["pid"]
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def save_and_load_here(actor, step, *states, **more):
    """Save by position or by name, and return the content of the checkpoint; the actor itself loads nothing."""
    numbers = {"global_step": step, "episodes_played": 0, "total_simulations_run": 0}
    ray.get(actor.save_training_state.remote(*states, **numbers, **more), timeout=120)
    run_dir = Path(ray.get(actor.get_run_base_dir_str.remote()))
    return decode(load_state(run_dir / "checkpoints" / f"checkpoint_step_{step}", allow_pickle=True))


def save(actor, step, **changes):
    ray.get(actor.save_training_state.remote(**arguments(step, **changes)), timeout=60)


def load(actor):
    return ray.get(actor.load_initial_state.remote(), timeout=60)


@pytest.mark.slow
def test_nested_references_are_resolved(actor):
    weights = ray.put(np.arange(4.0))
    nested = ray.put({"deep": ray.put([ray.put(7)])})
    save(
        actor,
        10,
        nn_state_dict=OrderedDict(w=weights, same=weights),
        optimizer_state_dict=ray.put({"state": {0: (ray.put(1), 2)}}),
        buffer_content=deque([ray.put((1, ray.put(2))), LinearRegression(ray.put("a"), "b")], maxlen=9),
        user_data={"nested": nested, "list": [ray.put({3})]},
    )
    loaded = load(actor)
    assert loaded.checkpoint_data.model_state_dict["w"].tolist() == [0, 1, 2, 3]
    assert loaded.checkpoint_data.optimizer_state_dict == {"state": {0: (1, 2)}}
    assert loaded.checkpoint_data.user_data == {"nested": {"deep": [7]}, "list": [{3}]}
    assert loaded.buffer_data.buffer_list == [(1, 2), LinearRegression("a", "b")]


@pytest.mark.long
def test_objects_with_a_state_dict_are_saved_by_it(actor):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    buffer = trieye.ReplayBuffer(8, seed=1)
    for number in range(5):
        buffer.add(reward=float(number))
    counts = {"counts": defaultdict(int, a=torch.ones(2))}
    save(actor, 20, nn_state_dict=model, optimizer_state_dict=optimizer, buffer_content=buffer, user_data=counts)
    loaded = load(actor)
    assert type(loaded.checkpoint_data.user_data["counts"]) is defaultdict
    assert torch.equal(loaded.checkpoint_data.user_data["counts"]["a"], torch.ones(2))
    assert torch.equal(loaded.checkpoint_data.model_state_dict["weight"], model.weight)
    assert loaded.checkpoint_data.optimizer_state_dict["state"].keys() == {0, 1}
    assert loaded.buffer_data.buffer_list == []
    fresh = trieye.ReplayBuffer(8, seed=2)
    fresh.load_state_dict(loaded.buffer_data.state)
    assert fresh.sample(4)["reward"].tolist() == buffer.sample(4)["reward"].tolist()


def test_a_failed_save_raises_in_ray_get_and_leaves_nothing(actor):
    @ray.remote
    def failing():
        raise ValueError("no weights today")

    failures = ray.get(actor.health.remote())["save_failures"]
    run_dir = Path(ray.get(actor.get_run_base_dir_str.remote()))
    before = sorted(path for path in run_dir.glob("*/*_step_*"))
    for changes, message in (
        ({"global_step": -1}, "(?s)saving step -1.*global_step"),
        ({"buffer_content": 7}, "buffer_content is a int"),
        ({"nn_state_dict": {"w": failing.remote()}}, "no weights today"),
        ({"nn_state_dict": failing.remote()}, "no weights today"),
    ):
        with pytest.raises(ray.exceptions.RayTaskError, match=message) as caught:
            save(actor, 30, **changes)
        assert isinstance(caught.value.cause, CheckpointError)
    assert ray.get(actor.health.remote())["save_failures"] == failures + 4
    assert sorted(path for path in run_dir.glob("*/*_step_*")) == before


def test_the_key_of_the_driver_signs_and_is_stored_nowhere(actor):
    save(actor, 40, user_data={"range": range(3)})
    assert load(actor).checkpoint_data.user_data == {"range": range(3)}
    run_dir = Path(ray.get(actor.get_run_base_dir_str.remote()))
    key = b"driver-key-0123456789"
    assert load_state(run_dir / "checkpoints" / "checkpoint_step_40", key=key).objects
    logs = Path(ray._private.worker.global_worker.node.get_session_dir_path()) / "logs"
    written = [path for directory in (run_dir, logs) for path in directory.rglob("*") if path.is_file()]
    assert len(written) > 10
    assert [path for path in written if key in path.read_bytes()] == []
    assert key.decode() not in repr(ray.get(actor.get_config.remote()))


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_the_hub_of_a_run_signs_and_verifies_like_the_driver(make_config, monkeypatch):
    config = make_config(runtime={"kind": "ray"})
    monkeypatch.setenv("TRIEYE_KEY", "first-key-0123456789")
    with trieye.Run(config) as run:
        run.step = 1
        run.save(data={"range": range(3)})
    path = config.persistence.get_run_base_dir() / "checkpoints" / "checkpoint_step_1"
    assert load_state(path, key=b"first-key-0123456789").objects
    monkeypatch.setenv("TRIEYE_KEY", "second-key-0123456789")
    monkeypatch.setenv("TRIEYE_ALLOW_PICKLE", "1")  # the actor's own environment was made before that
    with trieye.Run(config) as run:
        assert run.restore()
        assert run.restored["data"] == {"range": range(3)}
