"""Values that the models refuse: the message names the key as typed, the value and what is allowed."""

from collections.abc import Callable
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from tests.config.conftest import Project
from trieye.config import STRICT, TrieyeConfig
from trieye.config.base import StrictModel
from trieye.config.hydra.complaints import complaints

Mistaken = Callable[..., str]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("loop.steps=abc", "loop.steps=abc: an integer >= 1 or null is expected, found 'abc'"),
        ("loop.steps=1.5", "loop.steps=1.5: an integer >= 1 or null is expected, found 1.5"),
        ("loop.steps=0", "loop.steps=0: an integer >= 1 or null is expected, found 0"),
        ("seed=-1", "seed=-1: an integer >= 0 and < 4_294_967_296 is expected, found -1"),
        ("print_config=perhaps", "print_config=perhaps: true or false is expected, found 'perhaps'"),
        ("loop.time_s=nan", "loop.time_s=nan: a number > 0 or null is expected, found nan"),
        ("runtime.kind=lokal", "runtime.kind=lokal: one of local, ray, cluster is expected, found 'lokal'; did you"),
        ("runtime.namespace=", "runtime.namespace=: text that is not empty is expected, found ''"),
        ("'loop.steps={a: 1}'", "loop.steps: an integer >= 1 or null is expected, found keys with values"),
        (
            "stats.metrics.step_ms.log_to=[mlflo]",
            "stats.metrics.step_ms.log_to=[mlflo]: a list of mlflow, tensorboard, console is expected, found 'mlflo'",
        ),
        ("seed=true", "seed=true: an integer >= 0 and < 4_294_967_296 is expected, found 'true'"),
        ("loop.time_s=false", "loop.time_s=false: a number > 0 or null is expected, found 'false'"),
        ("persistence.mlflow_tracking_uri=foo", "persistence.mlflow_tracking_uri=foo: an MLflow store begins with "),
        ("persistence.mlflow_tracking_uri=sqlit:///x", "persistence.mlflow_tracking_uri=sqlit:///x: 'sqlit' is no sch"),
        ("+loop.stps=3", "loop.stps: there is no key 'stps' of loop; did you mean 'steps'? (keys: env_steps, "),
        ("+persistence.root=3", "persistence.root: there is no key 'root' of persistence; did you mean 'root_data_dir"),
        ("+sead=3", "sead: there is no key 'sead'; did you mean 'seed'? (keys: app_name, loop,"),
        ("+stats.metrics.step_ms.nam=x", "stats.metrics.step_ms.nam: there is no key 'nam' of stats.metrics.step_ms;"),
        ("loop.target=3", "loop: target needs evaluations on the way; set loop.evaluate_every_steps"),
        ("runtime.address=auto", "runtime: address is only for kind=cluster, and kind is local"),
        (
            "stats.metrics.step_ms.aggregation=rate",
            "stats.metrics.step_ms: Metric 'time/step_ms' has aggregation 'rate' but 'rate_numerator_event' is not set",
        ),
        ("+metric@stats.metrics.y=max", "stats.metrics.y.name has no value; give it one with stats.metrics.y.name="),
        ("app_name=???", "app_name has no value; give it one with app_name=<value>"),
        ("app_name=${nowhere}", "app_name: Interpolation key 'nowhere' not found"),
        ("run_name=../x", "run_name '../x' is not safe as a directory name; allowed are letters"),
        ("run_name=a/b", "run_name 'a/b' is not safe as a directory name"),
        ("run_name='a\nb'", "run_name 'a\\nb' is not safe as a directory name"),
        ("run_name='a\0b'", "run_name 'a\\x00b' is not safe as a directory name"),
        ("run_name=", "run_name is empty; give it a name such as 'first_try'"),
        (f"run_name={'x' * 300}", f"run_name '{'x' * 57}...' has 300 bytes; at most 200 are allowed"),
        ("app_name=..", "app_name '..' is not safe as a directory name"),
        ("persistence.runs_dir_name=../up", "persistence.runs_dir_name '../up' is not safe as a directory name"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_allowed_is_named_with_what_is(mistaken: Mistaken, typed: str, message: str):
    assert mistaken(typed.strip("'") if typed.startswith("'") else typed).startswith(message)


def test_metrics_of_the_same_name_are_named_by_their_slugs(mistaken: Mistaken):
    message = mistaken("stats.metrics.eval_return.name=time/step_ms")
    assert message == ("Duplicate metric names found: time/step_ms (stats.metrics.eval_return, stats.metrics.step_ms)")


def test_a_rate_without_numerator_among_other_metrics_is_found_under_its_slug(mistaken: Mistaken):
    message = mistaken("~stats.metrics.env_steps_per_sec", "+metric@stats.metrics.y=rate", "stats.metrics.y.name=r")
    assert message.startswith("stats.metrics.y: Metric 'r' has aggregation 'rate'")


def test_all_wrong_values_are_reported_at_once(mistaken: Mistaken):
    lines = mistaken("loop.steps=abc", "seed=-1", "replay.capacity=0").splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == ["loop.steps=abc", "replay.capacity=0", "seed=-1"]


def test_a_wrong_value_from_a_file_is_shown_with_its_key(project: Project, mistaken: Mistaken):
    project.write("experiment/wrong", "# @package _global_\nloop:\n  steps: many\n")
    message = mistaken("experiment=wrong")
    assert message == "loop.steps=many: an integer >= 1 or null is expected, found 'many'"


class Mlp(StrictModel):
    kind: Literal["mlp"] = "mlp"
    width: int = Field(default=8, ge=1)


class Cnn(StrictModel):
    kind: Literal["cnn"] = "cnn"
    filters: int = Field(default=8, ge=1)


class NetConfig(TrieyeConfig):
    net: Mlp | Cnn = Field(default=Mlp(), discriminator="kind")
    lr: float = Field(gt=0)
    layers: dict[str, Mlp] = Field(default_factory=dict)


class ListsConfig(TrieyeConfig):
    sizes: list[int] = Field(default=[64], min_length=1)
    rates: list[float] = Field(default=[0.1, 0.2], min_length=2, max_length=3)
    betas: tuple[float, float] = (0.9, 0.999)
    positive: list[Annotated[int, Field(ge=1)]] = [1]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("sizes=[]", "a list of integers, at least one item is expected, found []"),
        ("rates=[1]", "a list of numbers, at least 2 items, at most 3 items is expected, found [1]"),
        ("betas=[a,1]", "a list of numbers, exactly 2 items is expected, found 'a'"),
        ("positive=[0]", "a list of integers >= 1 is expected, found 0"),
    ],
)
def test_a_list_is_described_with_its_items_and_its_length(mistaken: Mistaken, typed: str, expected: str):
    assert mistaken(typed, config_type=ListsConfig) == f"{typed}: {expected}"


def test_an_unknown_key_of_a_union_is_answered_with_the_keys_of_the_member_that_is_meant():
    values = {"lr": 1, "net": {"kind": "mlp", "widht": 3}}
    with pytest.raises(ValidationError) as caught:
        NetConfig.model_validate(values, context=STRICT)
    assert complaints(caught.value, NetConfig, values, []) == [
        "net.widht: there is no key 'widht' of net; did you mean 'width'? (keys: kind, width)"
    ]


def test_keys_of_a_project_are_named_like_those_of_trieye():
    values = {"net": {"kind": "cnn", "filters": 0}, "layers": {"first": {"width": "x"}}}
    with pytest.raises(ValidationError) as caught:
        NetConfig.model_validate(values, context=STRICT)
    assert sorted(complaints(caught.value, NetConfig, values, ["net.filters=0"])) == [
        "layers.first.width=x: an integer >= 1 is expected, found 'x'",
        "lr has no value; give it one with lr=<value>, a number > 0",
        "net.filters=0: an integer >= 1 is expected, found 0",
    ]
