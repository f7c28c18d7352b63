"""The schema in the ConfigStore is derived from the models."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from pydantic import Field

from trieye.config import TrieyeConfig
from trieye.config.base import Keyed, StrictModel
from trieye.config.hydra.prototype import Prototype
from trieye.config.hydra.schema import register_schema
from trieye.config.sinks import OUR_NAMES


class Layer(StrictModel):
    width: int = 8
    name: str


class Other(StrictModel):
    kind: Literal["other"] = "other"


class Agent(StrictModel):
    lr: float = 1e-3
    first: Layer = Layer(width=3, name="first")
    maybe: Layer | None = None
    net: Layer | Other = Other()
    optional_net: Layer | Other | None = None
    layers: dict[str, Layer] = Field(default_factory=lambda: {"a": Layer(name="a")})
    keyed: Keyed[Layer] = Field(default_factory=list)
    pair: tuple[float, float] = (0.9, 0.999)
    names: list[str] = Field(default_factory=list)


class MyConfig(TrieyeConfig):
    seed: int = 3
    agent: Agent = Agent(lr=0.5)
    steps: int


def _schema() -> dict:
    register_schema(MyConfig, run_name="r1")
    return OmegaConf.to_container(ConfigStore.instance().load("schema.yaml").node)


def test_each_key_has_the_default_of_its_model():
    schema = _schema()
    assert (schema["seed"], schema["run_name"]) == (3, "r1")
    assert (schema["stats"]["processing_interval_seconds"], schema["stats"]["metrics"]) == (1.0, {})
    assert schema["steps"] == "???"
    assert schema["agent"] == {
        "lr": 0.5,
        "first": {"width": 3, "name": "first"},
        "maybe": None,
        "net": {},
        "optional_net": None,
        "layers": {"a": {"width": 8, "name": "a"}},
        "keyed": {},
        "pair": [0.9, 0.999],
        "names": [],
    }


def test_sinks_are_disabled_until_a_config_group_enables_them():
    assert not any(_schema()["sinks"][name]["enabled"] for name in OUR_NAMES)
    in_python = set(TrieyeConfig().sinks.enabled)
    assert in_python == {"mlflow", "tensorboard", "console"}  # sinks that need no account


def test_keys_that_another_key_sets_are_omitted():
    assert not {"run_name", "app_name"} & set(_schema()["persistence"])


def test_schemas_share_no_mutable_list():
    register_schema(MyConfig, run_name="r1")
    first = ConfigStore.instance().load("schema.yaml").node
    first.agent.names.append("x")
    assert _schema()["agent"]["names"] == []


def test_a_prototype_copies_like_deepcopy_but_shares_classes_without_an_importable_name():
    @dataclass
    class Local:
        value: Any
        others: list[Any] = field(default_factory=list)

    config = OmegaConf.structured(Local(1, [{"a": "${value}"}, None]), flags={"struct": False})
    first, second = prototype = Prototype([config, config]).copy()
    assert first is second
    assert first is not config
    assert prototype == deepcopy([config, config])
    assert OmegaConf.get_type(first) is Local
    assert (first.others[0].a, OmegaConf.is_struct(first), first.others._get_parent()) == (1, False, first)
