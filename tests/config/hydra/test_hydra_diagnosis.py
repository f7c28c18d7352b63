"""Overrides that do not compose: the message says what one would want to know."""

from collections.abc import Callable

import pytest
from pydantic import Field

from tests.config.conftest import Project
from trieye.config import TrieyeConfig
from trieye.config.base import StrictModel

Mistaken = Callable[..., str]

LOOP = "env_steps, evaluate_every_steps, mode, objective, steps, target, time_s"
CORE = "env_steps_per_sec, env_steps, episode_return, episode_length, eval_return, step_ms"
ADD_R = "'+metric@stats.metrics.r=latest' 'stats.metrics.r.name=<value>'"
METRIC = (
    "'name'? (keys: aggregation, context_key, ema_alpha, log_frequency_seconds, log_frequency_steps, log_to, name, "
    "quantile, rate_numerator_event, "
    "raw_event_name, source, x_axis)"
)


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("runtme=local", "there is no key and no group 'runtme'; did you mean 'runtime'? (keys and groups: app_name, "),
        ("runtime=lokal", "'lokal' is no option of runtime; did you mean 'local'? (options: cluster, local, ray)"),
        ("metrics=[core,dqm]", "'dqm' is no option of metrics; did you mean 'dqn'? (options: core, dqn, replay)"),
        ("experiment=none/such", "'none/such' is no option of experiment (options: example)"),
        ("loop.stps=3", f"there is no key 'stps' of loop; did you mean 'steps'? (keys: {LOOP})"),
        ("replay.alpah=1", "there is no key 'alpah' of replay; did you mean 'replay.prioritized.alpha'?"),
        ("loop=3", "3 is no option of loop (options: default)"),
        ("stats.metrics.evl_return.name=x", "there is no key 'evl_return' of stats.metrics; did you mean 'eval_retur"),
        ("stats.metrics.r.name=x", f"there is no key 'r' of stats.metrics (keys: {CORE}); add it with {ADD_R}"),
        ("stats.metrics.step_ms.nam=x", f"there is no key 'nam' of stats.metrics.step_ms; did you mean {METRIC}"),
        ("+stats.metrics.r={name: R}", f"keys in braces cannot be added here; type {ADD_R}"),
        ("stats.metrics=3", f"stats.metrics holds keys and is no value itself (keys: {CORE})"),
        ("steps=3", "there is no key and no group 'steps'; did you mean 'loop.steps'? (keys and groups: app_name, "),
        ("+metric=max", "metric holds templates; say which item to make: '+metric@stats.metrics.<name>=max'"),
        ("+metric@stats.metric.y=max", "there is no key 'metric' of stats; did you mean 'metrics'? (keys: metrics, "),
        ("seed.x=3", "seed is a value and has no keys"),
        ("+seed=3", "this key exists already; type seed=3"),
        ("~stats.metrics.stp_ms", "there is no key 'stp_ms' of stats.metrics; did you mean 'step_ms'?"),
        ("+runtime=ray", "runtime is in the defaults list already; type runtime=ray"),
        ("metric=max", "metric is not in the defaults list; add it with '+metric@stats.metrics.<name>=max'"),
        ("~metric", "metric is not chosen, so there is nothing to delete; did you mean 'metrics'?"),
        ("+metrc@stats.metrics.y=max", "there is no group 'metrc'; did you mean 'metric'? (groups: debug, "),
        ("seed=1,2", "this is more than one value; add -m to run a job for each, or choose one"),
        ("sinks=mlflow,wandb", "this is more than one value; add -m to run a job for each, or type 'sinks=[ml"),
        ("sinks=null", "sinks takes a list; type sinks=[] for none (options: console, mlflow, tensorboard, wandb)"),
        ("hydra.sweep.dri=x", "there is no key 'dri' of hydra.sweep; did you mean 'dir'? (keys: dir, subdir)"),
        ("hydra.swep.dir=x", "there is no key 'swep' of hydra; did you mean 'sweep'? (keys: "),
        ("hydra/lancher=x", "there is no key and no group 'hydra/lancher'; did you mean 'hydra/launcher'?"),
        ("resume=true", "there is no key and no group 'resume'; did you mean 'persistence.auto_resume_latest' or "),
        ("runtime=local,ray", "this is more than one value; add -m to run a job for each, or choose one"),
        ("seed=range(0,3)", "this is more than one value; add -m"),
        ("loop.steps=a=b", "this is not key=value; quote values with special characters, as in 'loop.steps=\"...\"'"),
        ("seed", "this is not key=value"),
        ("persistence.run_name=x", "persistence.run_name is set by run_name; type run_name=<value>"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_override_is_named_with_what_is_allowed(mistaken: Mistaken, typed: str, reason: str):
    assert mistaken(typed).startswith(f"{typed}: {reason}")


class OptimizerConfig(StrictModel):
    lr: float = Field(default=1e-3, gt=0)
    layers: list[int] = Field(default=[64], min_length=1)


class TrainConfig(TrieyeConfig):
    optimizer: OptimizerConfig = OptimizerConfig()


def test_several_values_of_a_key_are_a_list_only_where_it_takes_one(mistaken: Mistaken):
    assert "or type 'optimizer.layers=[8,16]'" in mistaken("optimizer.layers=8,16", config_type=TrainConfig)
    for typed in ("optimizer.lr=0.1,1", "optimizer.layers=range(1,3)"):
        assert mistaken(typed, config_type=TrainConfig).endswith("add -m to run a job for each, or choose one")


def test_an_option_in_a_folder_of_a_group_has_a_nearest_match(project: Project, mistaken: Mistaken):
    project.write("experiment/atari/pong", "# @package _global_\nseed: 1\n")
    message = mistaken("experiment=atari/pnog")
    assert "'atari/pnog' is no option of experiment; did you mean 'atari/pong'? (options: " in message


def test_a_key_of_a_group_without_its_group_is_found(mistaken: Mistaken):
    message = mistaken("lr=1e-3", config_type=TrainConfig)
    assert message.startswith("lr=1e-3: there is no key and no group 'lr'; did you mean 'optimizer.lr'? (keys and ")


@pytest.mark.parametrize(
    "typed",
    [
        ["optimizer.lr", "=", "1e-3"],
        ["optimizer.lr", "=1e-3"],
        ["optimizer.lr=", "1e-3"],
        ["optimizer.lr = 1e-3"],
        ["optimizer.lr =1e-3"],
        ["optimizer.lr= 1e-3"],
    ],
)
def test_spaces_around_the_equals_sign_are_one_mistake(mistaken: Mistaken, typed: list[str]):
    for flags in ([], ["-m"], ["--help"], ["--cfg", "job"]):
        message = mistaken(*typed, *flags, config_type=TrainConfig)
        assert message == "no spaces around =: type optimizer.lr=1e-3"


def test_an_empty_value_before_another_override_is_no_space(mistaken: Mistaken):
    lines = mistaken("runtime.namespace=", "~stats.metrics.nothing", "seed=-1").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["~stats.metrics.nothing"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--seed=1"], "--seed=1: keys are typed without dashes; type seed=1"),
        (["--seed", "1"], "--seed: keys are typed without dashes; type seed=1"),
        (["--seed"], "--seed: keys are typed without dashes; type seed=<value>"),
        (["-seed=1", "runtime=ray"], "-seed=1: keys are typed without dashes; type seed=1"),
        (["--run-name=x"], "--run-name=x: keys are typed without dashes; type run_name=x"),
        (["--loop.steps=3"], "--loop.steps=3: keys are typed without dashes; type loop.steps=3"),
        (["--lr", "1e-4"], "--lr: keys are typed without dashes; type optimizer.lr=1e-4"),
        (["-lr=1e-4"], "-lr=1e-4: keys are typed without dashes; type optimizer.lr=1e-4"),
        (["--x", "3"], "--x: there is no such flag (--help lists them)"),
        (["--multirn"], "--multirn: there is no such flag; did you mean '--multirun'? (--help lists them)"),
    ],
)
def test_a_flag_that_is_a_key_is_answered_with_what_to_type(mistaken: Mistaken, typed: list[str], message: str):
    assert mistaken(*typed, config_type=TrainConfig) == message


@pytest.mark.parametrize(
    "typed",
    ["seed=~", "seed=[1", "seed={", "persistence.root_data_dir=~/a b*", "a b=3", "+metric=max", "tags={a", "{}"],
)
def test_no_message_speaks_of_the_parser(mistaken: Mistaken, typed: str):
    message = mistaken(typed)
    for word in ("Exception", "KeyError", "full_key", "reference_type", "object_type"):
        assert word not in message


@pytest.mark.parametrize(("letter", "shown"), [("\n", "\\n"), ("\0", "\\x00")])
def test_a_control_character_is_shown_and_not_printed(mistaken: Mistaken, letter: str, shown: str):
    assert mistaken(f"run_name=a{letter}b").startswith(f"run_name=a{shown}b: this is not key=value")


def test_all_unknown_keys_are_reported_at_once(mistaken: Mistaken):
    lines = mistaken("loop.stps=3", "replay.capasity=4").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["loop.stps=3", "replay.capasity=4"]


def test_sound_overrides_beside_a_mistake_are_not_reported(mistaken: Mistaken):
    message = mistaken("metrics=[core,dqn]", "sinks=[]", "stats.metrics.q_mean.log_to=[]", "+tags.a=b", "loop.stps=1")
    assert message.splitlines() == [
        f"loop.stps=1: there is no key 'stps' of loop; did you mean 'steps'? (keys: {LOOP})"
    ]


def test_an_unknown_key_of_hydra_keeps_the_words_of_hydra(mistaken: Mistaken):
    assert "hydra.run.dirr" in mistaken("hydra.run.dirr=x")


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("loop:\n  stps: 3\n", "there is no key 'stps' of loop; did you mean 'steps'?"),
        ("defaults:\n  - override /runtime: lokal\n", "lokal"),
        ("defaults:\n  - override /runtme: local\n", "runtme"),
        ("loop: [\n", "wrong.yaml"),
    ],
)
def test_a_mistake_in_a_file_is_named(project: Project, mistaken: Mistaken, preset: str, expected: str):
    project.write("experiment/wrong", f"# @package _global_\n{preset}")
    assert expected in mistaken("experiment=wrong")


def test_a_primary_config_that_is_no_yaml_is_named(project: Project, mistaken: Mistaken):
    project.write("train", "seed: [\n")
    assert "train.yaml" in mistaken()


def test_a_missing_primary_config_is_named_with_those_that_are_there(project: Project, mistaken: Mistaken):
    message = mistaken("--config-name=trian")
    assert message == f"config_name=trian: {project.conf} has no trian.yaml; did you mean 'train'? (there: train)"


def test_a_missing_config_directory_is_named(mistaken: Mistaken):
    assert mistaken("--config-dir=/no/such") == "--config-dir=/no/such: there is no such directory"
    assert mistaken("--config-path=/no/such") == "config_path=/no/such: there is no such directory"
