"""Sweeps are checked before they start: every value of every axis."""

import sys
from collections.abc import Callable

import pytest

from tests.config.conftest import Project
from trieye.config import TrieyeConfig
from trieye.exceptions import ConfigurationError

Mistaken = Callable[..., str]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["seed=0,1,-1"], "seed=-1: an integer >= 0 and < 4_294_967_296 is expected, found -1"),
        (["seed=range(-1,3)"], "seed=-1: an integer >= 0"),
        (["seed=1,2", "loop.steps=5,0"], "loop.steps=0: an integer >= 1"),
        (["runtime=local,ray,rya"], "runtime=rya: 'rya' is no option of runtime; did you mean 'ray'?"),
        (["metrics=[core],[dqm]"], "metrics=[dqm]: 'dqm' is no option of metrics; did you mean 'dqn'?"),
        (["run_name=a,b/c"], "run_name 'b/c' is not safe as a directory name"),
        (["+tags.x=1,2", "loop.stps=1,2"], "loop.stps=1: there is no key 'stps' of loop; did you mean 'steps'?"),
        (["stats.metrics.step_ms.name=time/step_ms,eval/return"], "Duplicate metric names found: eval/return ("),
        (["experiment=glob(none*)"], "experiment=glob(none*): there is no value to sweep over"),
        (["seed=interval(-1, 3)"], "seed=-1.0: an integer >= 0"),
    ],
)
def test_every_value_of_every_axis_is_checked(mistaken: Mistaken, typed: list[str], message: str):
    assert mistaken("-m", *typed).startswith(message)


def test_values_that_depend_on_an_axis_are_checked_with_it(project: Project, mistaken: Mistaken):
    project.write("train", (project.conf / "train.yaml").read_text() + "loop:\n  steps: ${seed}\n")
    assert mistaken("-m", "seed=3,2,0").startswith("loop.steps=0: an integer >= 1 or null is expected, found 0")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("seed: 0,1,-1", "seed=-1: an integer >= 0"),
        ("seed: range(-1,3)", "seed=-1: an integer >= 0"),
        ("runtime: local,rya", "runtime=rya: 'rya' is no option of runtime; did you mean 'ray'?"),
        ("loop.stps: 1,2", "loop.stps=1: there is no key 'stps' of loop; did you mean 'steps'?"),
    ],
)
def test_what_a_file_lets_the_sweeper_try_is_checked_like_what_is_typed(
    project: Project, mistaken: Mistaken, params: str, message: str
):
    project.write(
        "train", (project.conf / "train.yaml").read_text() + f"hydra:\n  sweeper:\n    params:\n      {params}\n"
    )
    assert mistaken("-m", "loop.steps=1,2").startswith(message)


class CheckedConfig(TrieyeConfig):
    """A config that knows what its machine has."""

    def check(self) -> None:
        super().check()
        if self.seed == 2:
            raise ConfigurationError(f"seed={self.seed}: {self.run_name} has no such environment")


def test_a_project_refuses_what_its_machine_cannot_run(mistaken: Mistaken):
    typed = {"run_name=x seed=2": "x", "run_name=x -m seed=0,1,2": "x_0", "run_name=x -m loop.steps=1,2 seed=2": "x_0"}
    for words, run_name in typed.items():
        message = mistaken(*words.split(), config_type=CheckedConfig)
        assert message == f"seed=2: {run_name} has no such environment"


@pytest.mark.parametrize("flags", [[], ["-m"]])
@pytest.mark.parametrize(
    ("library", "typed", "message"),
    [
        ("wandb", "sinks=[console,wandb]", "sinks.wandb.enabled=true needs the package wandb, which is not installed"),
        (
            "gcsfs",
            "persistence.mirror=gs://a/b",
            "persistence.mirror=gs://a/b: the package gcsfs is missing; pip insta",
        ),
    ],
)
def test_a_library_that_is_missing_is_known_before_anything_starts(
    mistaken: Mistaken, monkeypatch: pytest.MonkeyPatch, library: str, typed: str, message: str, flags: list[str]
):
    monkeypatch.setitem(sys.modules, library, None)
    assert mistaken(typed, *flags).startswith(message)


@pytest.mark.parametrize("flags", [[], ["-m"]])
@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("frist:best", "app 'tested' has no run 'frist'; did you mean 'first'?"),
        ("first:step:9", "run 'first' has no checkpoint"),
        ("best", "has no checkpoint"),
        ("first:bset", "there is no such checkpoint; did you mean 'first:best'?"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_known_before_anything_starts(
    mistaken: Mistaken, tmp_path_factory: pytest.TempPathFactory, typed: str, message: str, flags: list[str]
):
    root = tmp_path_factory.mktemp("root")
    (root / "tested" / "runs" / "first").mkdir(parents=True)
    typed = f"persistence.load_checkpoint_path={typed}"
    told = mistaken(f"persistence.root_data_dir={root}", typed, *flags)
    assert told.startswith(f"{typed}: ")
    assert message in told


def test_a_wrong_path_is_found_before_anything_runs(mistaken: Mistaken):
    assert mistaken("persistence.root_data_dir=/proc/x").startswith(
        "persistence.root_data_dir=/proc/x: nothing can be written there ("
    )
    assert mistaken("persistence.load_checkpoint_path=none").startswith("persistence.load_checkpoint_path=")
