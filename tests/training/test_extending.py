"""The config selects transports and sampling classes of a project as `module:Class`."""

import pytest

import trieye
from trieye.exceptions import ConfigurationError

HOME = "tests.testing.test_training_contracts"


def test_classes_of_a_project_are_named_in_the_config_and_train(train_config):
    chosen = {"sync": {"transport": f"{HOME}:PlainFiles"}, "sample": {"kind": f"{HOME}:Newest"}}
    config = train_config(**chosen, explorer={"num": 1}, loop={"steps": 60})
    trieye.train(config)
    run_dir = config.persistence.get_run_base_dir()
    assert len(list((run_dir / "plain").glob("*.pt"))) > 1
    assert trieye.load_checkpoint(run_dir, "latest").objects["experiment"]["state"]["sampling"]["num"] > 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sync": {"transport": "colective"}, "explorer": {"num": 1}}, "collective"),
        ({"sample": {"kind": "warmpu"}}, "warmup"),
        ({"sample": {"kind": "a.b:C"}, "agent": {"kind": "ppo"}}, "needs an agent with a replay"),
    ],
)
def test_a_name_that_is_neither_known_nor_a_class_is_refused(train_config, given, told):
    with pytest.raises(ValueError, match=told):
        train_config(**given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"sync": {"transport": f"{HOME}:PlainFile"}, "explorer": {"num": 1}},
            r"sync.transport='tests\S+:PlainFile': .*did you mean 'PlainFiles'",
        ),
        ({"sample": {"kind": "tests.nowhere:Newest"}}, r"sample.kind='tests.nowhere:Newest': no module named"),
        (
            {"sample": {"kind": f"{HOME}:PlainFiles"}},
            r"sample.kind='tests\S+:PlainFiles' has no minibatch\(\); required methods: minibatch, state_dict",
        ),
    ],
)
def test_a_class_that_is_not_there_is_refused_with_its_key_before_anything_starts(train_config, tmp_path, given, told):
    with pytest.raises(ConfigurationError, match=told):
        trieye.train(train_config(**given, loop={"steps": 5}))
    assert not list(tmp_path.iterdir())
