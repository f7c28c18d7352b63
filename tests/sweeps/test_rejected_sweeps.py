"""Sweeps that cannot run are rejected before a job starts and before their directory exists."""

import sys

import pytest
from hydra.errors import InstantiationException

from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError

SEARCH = "hydra.sweeper.kind=optuna"
RANDOM = "hydra.sweeper.kind=random"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["whta=1,2"], r"job 0 \(whta=1\): Could not override 'whta'. To append to your"),
        (["whta=1,2", SEARCH], r"job 0 \(whta=\d\): Could not override 'whta'. To append to your"),
        (["what=1,2", "hydra.launcher.num_cpus=${cpuz}"], r"hydra\.launcher: Interpolation key 'cpuz' not found"),
        (["cpus=1,2", "hydra.launcher.only=[0,1,2]"], "only=0-2: out of range; the sweep has the jobs 0 to 1"),
        (["cpus=1,2,3", RANDOM, "hydra.sweeper.num_trials=2", "hydra.launcher.only=[2]"], "only=2: out of range"),
        (["what=a,b", "hydra.sweeper.seeds=2"], "seeds=2 varies the key seed, which the config does not"),
        (["+x=interval(0,1)", SEARCH, "hydra.sweeper.pruner=median"], r"pruner=median: .* has no loop\.objective"),
        (["+x=1,2", "+hydra/sweeper/sampler=tpe", RANDOM], r"another plugin; set hydra\.sweeper\.sampler=tpe"),
        (["+api_key=sk-1,sk-2", "+x=interval(0,1)", SEARCH], r"\+api_key: a search cannot vary a secret"),
        (["+api_key=interval(0,1)", SEARCH], r"\+api_key: a search cannot vary a secret"),
    ],
)
def test_a_sweep_that_cannot_run_is_rejected(sweep, words, message):
    with pytest.raises(ConfigurationError, match=message):
        sweep.search(lambda _: 1, *words)
    assert not sweep.directory.exists()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("launcher.n_jobs=2", r"hydra\.launcher\.n_jobs=2: unknown key 'n_jobs'; did you mean 'num_jobs'\?"),
        ("launcher.slurm.hous=2", r"unknown key 'hous' in slurm; did you mean 'hours'\?"),
        ("launcher.num_gpus=1.5", "num_gpus=1.5: above 1, only whole GPUs"),
        ("sweeper.mode=minimize", "mode=minimize: expected one of min, max or "),
        ("sweeper.when={depth: tree}", r"when\.depth=tree: expected keys with values, found 'tree'"),
        ("sweeper.direction=minimize", r"direction=minimize: unknown key 'direction' \(keys: .*mode, "),
    ],
)
def test_an_invalid_option_is_rejected_with_the_right_option(sweep, word, message):
    with pytest.raises((InstantiationException, ConfigurationError), match=message):  # in Hydra 1.3, and in Hydra 1.4
        sweep.search(lambda _: 1, "+x=1,2", f"hydra.{word}")
    assert not sweep.directory.exists()


@pytest.mark.parametrize(
    ("subdir", "message"),
    [
        ("${cpus}", r"subdir=\$.cpus.: job 0 would write to the directory of job 1; add a prefix, such as run_\$"),
        ("${hydra.job.num}/output", "contains output of trieye; choose another name .*status.json, output.log"),
        ("${hydra.job.num}/run/x", "contains run of trieye"),
        ("same", "jobs 0 and 1 would share the output directory"),
    ],
)
def test_an_output_directory_of_several_jobs_or_among_their_files_is_rejected(sweep, subdir, message):
    with pytest.raises(ConfigurationError, match=message):
        sweep.search(lambda _: 1, "cpus=1,2", f"hydra.sweep.subdir='{subdir}'")
    assert not sweep.directory.exists()


@pytest.mark.parametrize("option", ["+hydra.launcher.resources.special=1", "hydra.launcher.address=auto"])
def test_custom_resources_and_addresses_need_ray(sweep, option):
    sweep.backend = "local"
    with pytest.raises(ConfigurationError, match=r"need.* hydra\.launcher\.backend=ray"):
        sweep.launch(lambda _: 1, ["what=x"], option)


def test_a_sampler_with_a_missing_package_is_rejected(sweep, monkeypatch):
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ConfigurationError, match=r"sampler=cmaes needs cmaes, .*: pip install 'trieye\[optuna\]'"):
        sweep.search(lambda _: 1, "+x=interval(0,1)", SEARCH, "hydra.sweeper.sampler=cmaes")
    assert not sweep.directory.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "random", "seeds": 3}, "seeds is only for kind=grid"),
        ({"kind": "random", "pruner": "median"}, "pruner is only for kind=optuna"),
        ({"kind": "optuna", "pruner": "asha", "grace_steps": -1}, "grace_steps"),
        ({"kind": "optuna", "sampler": "tpee"}, "sampler"),
        ({"mode": ["max", "min"], "objective": "last"}, "objective=last needs a single objective, but mode has 2"),
        ({"mode": ["max", "min"], "kind": "optuna", "pruner": "asha"}, "pruner=asha needs a single objective"),
        ({"mode": ["max", "min"], "kind": "optuna", "sampler": "cmaes"}, "use tpe, gp or random with several"),
        ({"mode": ["max"]}, "at least 2 items"),
        ({"objective": "mean(5)"}, "mean:"),
        ({"objective": "mean:0"}, "mean:"),
    ],
)
def test_incompatible_options_of_the_sweeper_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        SweeperConfig.model_validate(options)
