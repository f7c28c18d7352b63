"""Overrides that do not compose: the message says what one would want to know."""

from collections.abc import Callable

import pytest

from tests.config.conftest import Project

Mistaken = Callable[..., str]

LOOP = "env_steps, evaluate_every_steps, mode, objective, steps, target, time_s"
CORE = "env_steps_per_sec, env_steps, episode_return, episode_length, eval_return, step_ms"
ADD_R = "'+metric@stats.metrics.r=latest' 'stats.metrics.r.name=<value>'"
METRIC = (
    "'name'? (keys: aggregation, context_key, log_frequency_seconds, log_frequency_steps, log_to, name, "
    "rate_numerator_event, "
    "raw_event_name, source, x_axis)"
)


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("runtme=local", "there is no key and no group 'runtme'; did you mean 'runtime'? (keys and groups: app_name, "),
        ("runtime=lokal", "'lokal' is no option of runtime; did you mean 'local'? (options: cluster, local, ray)"),
        ("metrics=[core,dqm]", "'dqm' is no option of metrics; did you mean 'dqn'? (options: core, dqn)"),
        ("experiment=none/such", "'none/such' is no option of experiment (options: )"),
        ("loop.stps=3", f"there is no key 'stps' of loop; did you mean 'steps'? (keys: {LOOP})"),
        ("loop=3", "3 is no option of loop (options: default)"),
        ("stats.metrics.evl_return.name=x", "there is no key 'evl_return' of stats.metrics; did you mean 'eval_retur"),
        ("stats.metrics.r.name=x", f"there is no key 'r' of stats.metrics (keys: {CORE}); add it with {ADD_R}"),
        ("stats.metrics.step_ms.nam=x", f"there is no key 'nam' of stats.metrics.step_ms; did you mean {METRIC}"),
        ("+stats.metrics.r={name: R}", f"keys in braces cannot be added here; type {ADD_R}"),
        ("stats.metrics=3", f"stats.metrics holds keys and is no value itself (keys: {CORE})"),
        ("tags.note=x", "there is no key 'note' of tags (keys: none); add it with '+tags.note=x'"),
        ("seed.x=3", "seed is a value and has no keys"),
        ("+seed=3", "this key exists already; type seed=3"),
        ("~stats.metrics.stp_ms", "there is no key 'stp_ms' of stats.metrics; did you mean 'step_ms'?"),
        ("+runtime=ray", "runtime is in the defaults list already; type runtime=ray"),
        ("metric=max", "metric is not in the defaults list; add it with '+metric@stats.metrics.<name>=max'"),
        ("~metric", "metric is not chosen, so there is nothing to delete; did you mean 'metrics'?"),
        ("+metrc@stats.metrics.y=max", "there is no group 'metrc'; did you mean 'metric'? (groups: debug, "),
        ("seed=1,2", "this is more than one value; add -m to run a job for each, or type 'seed=[1,2]' for a list"),
        ("runtime=local,ray", "this is more than one value; add -m to run a job for each, or choose one"),
        ("seed=range(0,3)", "this is more than one value; add -m"),
        ("loop.steps=a=b", "this is not key=value; quote values with special characters, as in 'loop.steps=\"...\"'"),
        ("seed", "this is not key=value"),
        ("persistence.run_name=x", "persistence.run_name is set by run_name; type run_name=<value>"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_override_is_named_with_what_is_allowed(mistaken: Mistaken, typed: str, reason: str):
    assert mistaken(typed).startswith(f"{typed}: {reason}")


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
