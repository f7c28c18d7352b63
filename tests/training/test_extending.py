"""The config selects transports and sampling classes of a project as `module:Class`."""

import pytest

import trieye
from trieye.exceptions import ConfigurationError

MODULE = "tests.testing.test_training_contracts"


def test_custom_classes_named_in_the_config_train(train_config):
    chosen = {"sync": {"transport": f"{MODULE}:PlainFiles"}, "sample": {"kind": f"{MODULE}:Newest"}}
    config = train_config(**chosen, explorer={"num": 1}, loop={"steps": 60})
    trieye.train(config)
    run_dir = config.persistence.get_run_base_dir()
    assert len(list((run_dir / "plain").glob("*.pt"))) > 1
    assert trieye.load_checkpoint(run_dir, "latest").objects["experiment"]["state"]["sampling"]["num"] > 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"sync": {"transport": "colective"}, "explorer": {"num": 1}}, "collective"),
        ({"sample": {"kind": "warmpu"}}, "warmup"),
        ({"sample": {"kind": "a.b:C"}, "agent": {"kind": "ppo"}}, "needs an agent with a replay"),
    ],
)
def test_a_name_that_is_neither_builtin_nor_a_class_is_rejected(train_config, overrides, message):
    with pytest.raises(ValueError, match=message):
        train_config(**overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"sync": {"transport": f"{MODULE}:PlainFile"}, "explorer": {"num": 1}},
            r"sync.transport='tests\S+:PlainFile': .*did you mean 'PlainFiles'",
        ),
        ({"sample": {"kind": "tests.nowhere:Newest"}}, r"sample.kind='tests.nowhere:Newest': no module named"),
        (
            {"sample": {"kind": f"{MODULE}:PlainFiles"}},
            r"sample.kind='tests\S+:PlainFiles' has no minibatch\(\); required methods: minibatch, state_dict",
        ),
    ],
)
def test_a_missing_class_is_rejected_with_its_key_before_the_start(train_config, tmp_path, overrides, message):
    with pytest.raises(ConfigurationError, match=message):
        trieye.train(train_config(**overrides, loop={"steps": 5}))
    assert not list(tmp_path.iterdir())
