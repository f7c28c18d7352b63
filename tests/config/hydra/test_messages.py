"""Error messages contain the key as typed, the value, the allowed values and the closest match."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from trieye.config import TrieyeConfig
from trieye.config.base import StrictModel
from trieye.config.env import EnvConfig
from trieye.config.hydra.compose import compose
from trieye.config.hydra.keys import models_at
from trieye.config.hydra.messages import unknown_key
from trieye.config.names import ClassPath

Mistaken = Callable[..., str]


class BlockConfig(StrictModel):
    width: int = 8


class PhaseConfig(StrictModel):
    epochs: int


class OptimizerConfig(StrictModel):
    lr: float = Field(default=1e-3, gt=0)
    layers: list[int] = Field(default=[64], min_length=1)
    kwargs: dict[str, Any] = {}
    blocks: list[BlockConfig] = []
    phases: list[PhaseConfig] = []
    named_blocks: dict[str, BlockConfig] = {"first": BlockConfig()}


class TrainConfig(TrieyeConfig):
    optimizer: OptimizerConfig = OptimizerConfig()
    betas: tuple[float, float] = (0.9, 0.999)
    way: Literal["local", "files"] | ClassPath = "local"
    positive: list[Annotated[int, Field(ge=1)]] = [1]


CORE = ("metrics=[core]", "")
"""A valid override, which declares `stats.metrics.step_ms` and others."""


@pytest.mark.parametrize(
    "cases",
    [
        [
            CORE,
            ("loop.steps=abc", "an integer >= 1 or null|'abc'"),
            ("seed=-1", "an integer >= 0 and < 4_294_967_296|-1"),
            ("print_config=perhaps", "true or false|'perhaps'"),
            ("loop.time_s=nan", "a number > 0 or null|nan"),
            ("runtime.kind=lokal", "local, ray, cluster|'lokal'|'local'?"),
            ("runtime.namespace=", "not empty|''"),
            ("stats.metrics.step_ms.log_to=[mlflo]", "mlflow, tensorboard, console|'mlflo'|'mlflow'?"),
            ("optimizer.layers=[]", "a list|length >= 1|an integer|[]"),
            ("way=locl", "way=locl: expected one of local, files or text such as my_agent.dqn:DQN|'locl'|'local'?"),
            ("betas=[1]", "a list|length >= 2 and length <= 2|a number|[1]"),
            ("positive=[0]", "a list|an integer >= 1|0"),
            ("optimizer.phases=[{epochs: 1},{}]", "item 1, {}, has no value for epochs"),
            ("optimizer.blocks=[{widht: 3}]", "optimizer.blocks=[{widht: 3}]: unknown key 'widht'|'width'?"),
            ("persistence.mlflow_tracking_uri=foo", "needs a scheme|sqlite:///|http"),
            ("run_name=../x", "'../x'|letters"),
            ("persistence.config_filename=journal.db", "persistence.config_filename=journal.db: each run has a file"),
            ("persistence.runs_dir_name=../up", "persistence.runs_dir_name|'../up'"),
        ],
        [
            CORE,
            ("seed=true", "an integer >= 0|'true'"),
            ("persistence.mlflow_tracking_uri=sqlit:///x", "'sqlit'|'sqlite'?"),
            ("stats.metrics.eval_return.name=time/step_ms", "stats.metrics: |time/step_ms"),
            ("runtime.address=auto", "runtime: address|kind=cluster|local"),
            ("run_name='a\nb'", "'a\\nb'|letters"),
        ],
        [
            CORE,
            ("loop.steps={a: 1}", "an integer >= 1 or null|keys with values"),
            ("stats.metrics.step_ms.aggregation=rate", "stats.metrics.step_ms: |'time/step_ms'|'rate_numerator_event'"),
            ("run_name=", "run_name is empty"),
            ("+seed.x=3", "seed: |keys with values"),
        ],
        [
            ("loop.target=3", "loop: target|loop.evaluate_every_steps"),
            (f"run_name={'x' * 300}", "300 bytes|at most 200"),
        ],
        [
            ("+metric@stats.metrics.y=max", "stats.metrics.y.name|no value|stats.metrics.y.name="),
            ("app_name=???", "no value|app_name=<value>"),
        ],
        [("app_name=${nowhere}", "app_name: |'nowhere'")],
        [
            CORE,
            ("loop.stps=3", "'stps' in loop|'steps'?|background_evaluation, env_steps, evaluate_every_steps, mode"),
            ("replay.alpah=1", "'alpah' in replay|'replay.prioritized.alpha'?"),
            ("steps=3", "'steps'|'loop.steps'?|metrics"),
            ("lr=1e-3", "'lr'|'optimizer.lr'?"),
            ("seed.x=3", "'x' in seed"),
            ("~stats.metrics.stp_ms", "'stp_ms' in stats.metrics|'step_ms'?"),
            ("stats.metrics.step_ms.nam=x", "'nam' in stats.metrics.step_ms|'name'?|aggregation, context_key"),
            ("stats.metrics.r.name=x", "'r' in stats.metrics|episode_return|'+metric@stats.metrics.r=<option>'|max"),
            ("stats.metrics=[{name: a}]", "stats.metrics=[{name: a}]: expected keys with values, found [{'name':"),
            ("stats.metrics=3", "stats.metrics=3: expected keys with values, found 3"),
            ("+seed=3", "Either remove + prefix: 'seed=3'"),
            ("persistence.run_name=x", "type run_name=<value>"),
            ("hydra.sweep.dri=x", "'dri' in hydra.sweep|'dir'?|(keys: dir, subdir)"),
            ("hydra.swep.dir=x", "'swep' in hydra|'sweep'?"),
            ("runtme=local", "'runtme'|'runtime'?|metrics"),
            ("+metrc@stats.metrics.y=max", "unknown group 'metrc'|'metric'?|debug, experiment"),
            ("hydra/lancher=x", "'hydra/lancher'|'hydra/launcher'?"),
            ("hydra.job.env_set.A=3", "'A' in hydra.job.env_set|'+hydra.job.env_set.A=3'"),
            ("hydra.sweeper.params.seed=3", "hydra.sweeper.params.seed=3: "),
        ],
        [("+sead=3", "'sead'|'seed'?|app_name, betas")],
        [("~seed=3", "'seed' is 0 and not 3")],
        [
            ("runtime=lokal", "runtime=lokal: unknown option 'lokal'|'local'?|(options: cluster, local, ray)"),
            ("metrics=[core,reply]", "unknown option 'reply' of metrics|'replay'?|(options: core, replay)"),
            ("sinks=[[mlflow]]", "unknown option|of sinks|console, mlflow"),
            ("loop=3", "unknown option 3 of loop|(options: default)"),
            ("sinks=null", "unknown option None of sinks|console, mlflow"),
            ("+runtime=ray", "already in the defaults list|type runtime=ray"),
        ],
        [("metric=max", "'metric'|+metric=max")],
        [("~metric", "'metric'|No match in the defaults list")],
        [("+metric=max", "'+metric@<key>=<option>'|--help metric")],
        [("+metric@stats.metric.y=max", "'metric' in stats|'metrics'?")],
        [("hydra.searchpath=3", "must be a list")],
        [("hydra.callbacks=3", "hydra.callbacks=3|Cannot assign int")],
        [
            ("seed=1,2", "add -m|or choose one"),
            ("sinks=mlflow,wandb", "add -m|type 'sinks=[mlflow,wandb]'"),
            ("optimizer.layers=8,16", "add -m|type 'optimizer.layers=[8,16]'"),
        ],
        [
            ("seed", "not a valid key=value override"),
            ("loop.steps=a=b", "not a valid key=value override|'loop.steps=\"...\"'"),
            ("seed=rnage(1,3)", "'rnage'|range"),
            ("persistence.root_data_dir=~/a b*", "not a valid key=value override|quote special characters"),
            ("optimizer.lr = 1e-3", "not a valid key=value override|without spaces around ="),
            ("{}", "not a valid key=value override"),
            ("run_name=a\0b", "run_name=a\\x00b: |not a valid key=value override"),
        ],
    ],
    ids=lambda cases: cases[-1][0],
)  # fmt: skip
def test_invalid_overrides_name_the_key_the_value_and_the_allowed_values(mistaken, cases):
    """Those of a group are reported at once, each in its own lines."""
    message = mistaken(*(typed for typed, _ in cases), config_type=TrainConfig)
    for typed, parts in cases:
        key = re.split(r"[.@= ]", typed.lstrip("+~"))[0]
        lines = [line for line in message.splitlines() if key in line or len(cases) == 1]
        assert [part for part in parts.split("|") if not any(part in line for line in lines)] == [], typed
    for word in ("Exception", "KeyError", "full_key", "reference_type", "object_type"):
        assert word not in message


def test_an_override_split_by_spaces_is_explained(mistaken):
    for flags in ([], ["-m"], ["--cfg", "job"]):
        message = mistaken("optimizer.lr", "=", "1e-3", *flags, config_type=TrainConfig)
        assert message.startswith("optimizer.lr: not a valid key=value override")
        assert "without spaces around =" in message


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("--seed=1", "type seed=1"),
        ("-seed=1 runtime=ray", "type seed=1"),
        ("--run-name=x", "type run_name=x"),
        ("--lr 1e-4", "type optimizer.lr=<value>"),
        ("--x 3", "unknown flag (see --help"),
        ("--multirn", "unknown flag; did you mean '--multirun'?"),
    ],
)
def test_a_flag_that_is_a_key_says_what_to_type(mistaken, typed, advice):
    message = mistaken(*typed.split(), config_type=TrainConfig)
    assert message.startswith(f"{typed.split(maxsplit=1)[0]}: ")
    assert advice in message


def test_all_invalid_overrides_are_reported_at_once_and_no_others(mistaken):
    def rejected_keys(*typed: str) -> list[str]:
        return sorted(line.partition(":")[0] for line in mistaken(*typed).splitlines())

    valid = ["sinks=[]", "+tags.a=b", "runtime.namespace=x"]
    invalid_values = ["loop.steps=abc", "replay.capacity=0", "seed=-1"]
    assert rejected_keys(*valid, *invalid_values) == invalid_values
    unknown_keys = ["loop.stps=3", "replay.capasity=4"]
    valid = [*valid, "metrics=[replay]", "stats.metrics.replay_size.log_to=[]", "runtime.namespace="]
    assert rejected_keys(*valid, *unknown_keys) == unknown_keys


def test_an_option_in_a_subfolder_of_a_group_has_a_closest_match(project, mistaken):
    project.write("experiment/atari/pong", "# @package _global_\nseed: 1\n")
    message = mistaken("experiment=atari/pnog")
    assert "unknown option 'atari/pnog' of experiment; did you mean 'atari/pong'?" in message


@pytest.mark.long
@pytest.mark.parametrize(
    ("preset", "parts"),
    [
        ("loop:\n  steps: many\n", "loop.steps=many|an integer >= 1 or null|'many'"),
        ("loop:\n  stps: 3\n", "experiment/wrong|'stps' in loop|'steps'?"),
        ("defaults:\n  - override /runtime: lokal\n", "runtime/lokal|local"),
        ("defaults:\n  - override /runtme: local\n", "experiment/wrong|'runtme'"),
        ("loop: [\n", "wrong.yaml"),
    ],
)
def test_an_error_in_a_file_names_the_file_or_the_key(project, mistaken, preset, parts):
    project.write("experiment/wrong", f"# @package _global_\n{preset}")
    message = mistaken("experiment=wrong")
    assert [part for part in parts.split("|") if part not in message] == []


def test_a_rate_without_a_numerator_is_named_by_its_slug(mistaken):
    message = mistaken("+metric@stats.metrics.y=rate", "stats.metrics.y.name=r")
    assert message.startswith("stats.metrics.y: Metric 'r' has aggregation 'rate'")


def test_an_unreadable_primary_config_is_named(project, mistaken):
    project.write("train", "seed: [\n")
    assert "train.yaml" in mistaken()
    message = mistaken("--config-name=trian")
    assert message.startswith("config_name=trian: ")
    assert f"{project.conf}; did you mean 'train'? (configs: train" in message
    for flag in ("--config-dir", "--config-path"):
        assert "/no/such" in mistaken(f"{flag}=/no/such")


@pytest.mark.parametrize("name", ["train", "experiment/old"])
def test_a_file_that_is_not_saved_as_utf_8_is_named(project, mistaken, name):
    file = project.conf / f"{name}.yaml"
    project.write("experiment/old", "seed: 1\n")
    file.write_bytes("# café\n".encode("latin-1"))
    assert mistaken("experiment=old").startswith(f"{file}: not saved as UTF-8: ")


@pytest.mark.parametrize(
    ("text", "typed"),
    [("", []), ("loop: {steps: 3}", []), ("defaults: [persistence: default, _self_]", ["loop.steps=3"])],
)
def test_a_config_without_the_defaults_of_trieye_is_named_with_the_line_to_add(mistaken, project, text, typed):
    project.write("train", text)
    message = mistaken(*typed)
    assert message.startswith("train.yaml: its defaults list contains neither `trieye` nor `schema`")
    assert "add `defaults: [trieye, _self_]`" in message


def test_values_in_place_of_keys_are_named_with_their_files_and_keys(mistaken, project):
    primary = (project.conf / "train.yaml").read_text()
    project.write("train", f"{primary}\nstats: {{metrics: [a]}}\n")
    project.write("stats/mine", "metrics: [b]\n")
    project.write("experiment/mine", "# @package _global_\ntags: [a, b]\nsinks: {mlflow: true}\nstats: {metrics: 3}\n")
    assert mistaken("experiment=mine", "stats=mine").splitlines() == [
        "stats/mine.yaml: stats.metrics: expected keys with values, found ['b']",
        "experiment/mine.yaml: tags: expected keys with values, found ['a', 'b']",
        "experiment/mine.yaml: stats.metrics: expected keys with values, found 3",
        "experiment/mine.yaml: sinks.mlflow: expected keys with values, found True",
        "train.yaml: stats.metrics: expected keys with values, found ['a']",
    ]


@pytest.mark.parametrize(("typed", "text"), [("experiment=mine", "loop: {steps: 3}"), ("+local=mine", "lr: 3")])
def test_a_preset_without_a_package_line_is_named_with_the_line_to_add(mistaken, project, typed, text):
    file = f"{typed.strip('+').partition('=')[0]}/mine"
    project.write(file, text)
    assert f"a preset needs `# @package _global_` as the first line of {file}.yaml" in mistaken(typed)


@pytest.mark.parametrize(("values", "keys"), [("{1: {a: 2}, b: 3}", ["1"]), ("{true: 3, 1.5: 2}", ["True", "1.5"])])
def test_a_key_that_is_not_text_is_named(mistaken, values, keys):
    message = mistaken(f"optimizer.kwargs={values}", config_type=TrainConfig)
    assert message.splitlines() == [f"optimizer.kwargs: expected text as a key, found {key}" for key in keys]


@pytest.mark.parametrize("text", ["defaults: [mine]", f"tags: {'{a: ' * 2000}{'}' * 2000}"])
def test_a_config_that_includes_itself_or_is_too_deep_is_named(mistaken, project, text):
    project.write("experiment/mine", f"# @package _global_\n{text}")
    message = mistaken("experiment=mine")
    assert message.startswith("train.yaml experiment=mine: a config includes itself through its defaults list, or is ")


@pytest.mark.parametrize("typed", ["+optimizer.named_blocks.last={width: 3}", "optimizer.named_blocks.last.width=3"])
def test_a_new_entry_of_a_dict_of_models_is_answered_with_the_override_that_adds_it(project, mistaken, typed):
    message = mistaken(typed, config_type=TrainConfig)
    assert "unknown key 'last' in optimizer.named_blocks" in message
    advice = message.partition("; add it with '")[2].removesuffix("'")
    config = compose([advice], config_type=TrainConfig, config_path=project.conf)
    assert config.optimizer.named_blocks == {"first": BlockConfig(), "last": BlockConfig(width=3)}


def test_an_unknown_key_of_a_wrapper_is_answered_with_its_keys():
    holders = models_at(EnvConfig, ["wrappers", "bonus"])
    assert unknown_key("wrappers.bonus.training_olny", holders, EnvConfig) == (
        "unknown key 'training_olny' in wrappers.bonus; did you mean 'training_only'? "
        "(keys: kwargs, name, training_only)"
    )
