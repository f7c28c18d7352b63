"""Hydra runs a checked command line without composing again."""

import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from trieye.config import TrieyeConfig
from trieye.config.hydra.schema import BEFORE_1_4


@pytest.fixture
def compositions(monkeypatch):
    """Count the compositions of this process."""
    calls: list[object] = []
    name = "load_configuration" if BEFORE_1_4 else "_load_configuration"  # which jobs of a sweep call, too
    compose = getattr(ConfigLoaderImpl, name)

    def counting(self, *arguments, **options):
        calls.append((arguments, options))
        return compose(self, *arguments, **options)

    monkeypatch.setattr(ConfigLoaderImpl, name, counting)
    return calls


def test_a_plain_start_composes_once(start, compositions):
    (config,) = start("run_name=x", "seed=3", "runtime=local", "+tags.a=b", "hydra.job.chdir=false")
    assert (config.run_name, config.seed, config.tags) == ("x", 3, {"a": "b"})
    assert len(compositions) == 1


@pytest.mark.long
def test_a_plain_start_validates_again_only_values_that_change_when_the_job_starts(start, monkeypatch):
    validated, validate = [], TrieyeConfig.model_validate
    monkeypatch.setattr(TrieyeConfig, "model_validate", lambda values: validated.append(values) or validate(values))
    (config,) = start("seed=3", "runtime=local")
    assert (len(validated), config.seed, config.run_name) == (1, 3, validated[0]["run_name"])
    (config,) = start("run_name=x", "runtime=local", "+tags.directory=${hydra:runtime.output_dir}")
    assert len(validated) == 3
    assert config.tags["directory"] == str(config.persistence.get_run_base_dir())


def test_printing_the_config_composes_once(start, compositions, capsys):
    assert start("--cfg", "job", "seed=3") == []
    assert yaml.safe_load(capsys.readouterr().out)["seed"] == 3
    assert len(compositions) == 1


def test_help_composes_once(start, compositions):
    assert start("--help") == []
    assert len(compositions) == 1


@pytest.mark.parametrize(("launcher", "num"), [("basic", 2), ("trieye hydra.launcher.isolate=none", 1)])
def test_a_job_of_a_sweep_composes_at_most_once(start, compositions, launcher, num):
    configs = start("-m", "seed=0,1", "hydra/sweeper=trieye", *f"hydra/launcher={launcher}".split())
    assert [config.seed for config in configs] == [0, 1]
    assert len(compositions) == 1 + num


@pytest.mark.long
def test_hydras_default_sweeper_and_launcher_print_a_hint_unless_chosen(start, capsys):
    start("-m", "seed=0")
    hint = "add hydra/sweeper=trieye hydra/launcher=trieye to run them in parallel\n"
    assert capsys.readouterr().err.count(hint) == 1
    start("-m", "seed=0", "hydra/launcher=basic")
    assert hint not in capsys.readouterr().err


@pytest.mark.long
def test_a_job_whose_resources_depend_on_its_config_composes_at_most_once(start, compositions):
    arguments = [
        "hydra/sweeper=trieye",
        "hydra/launcher=trieye",
        "hydra.launcher.isolate=none",
        "hydra.launcher.num_cpus=${seed}",
    ]
    configs = start("-m", "seed=1,2", *arguments)
    assert [config.seed for config in configs] == [1, 2]
    assert len(compositions) == 2  # the sweep, and the config that its jobs share


def test_the_hydra_records_of_a_run_equal_those_that_hydra_writes(start, project, monkeypatch):
    monkeypatch.setenv("COPIED", "value")
    arguments = ["run_name=x", "+tags.a=b", "hydra.job.env_copy=[COPIED]", "runtime=local", "seed=3"]
    (config,) = start(*arguments)
    records = config.persistence.get_run_base_dir() / ".hydra"
    assert yaml.safe_load((records / "overrides.yaml").read_text()) == [
        argument for argument in arguments if "hydra" not in argument
    ]
    hydra = yaml.safe_load((records / "hydra.yaml").read_text())["hydra"]
    assert "hydra.job.env_copy=[COPIED]" in hydra["overrides"]["hydra"]
    assert "hydra.mode=RUN" in hydra["overrides"]["hydra"]
    name = "+tags.a=b,run_name=x,runtime=local,seed=3" if BEFORE_1_4 else "${hydra_override_dirname:}"
    assert hydra["job"]["override_dirname"] == name
    assert hydra["job"]["env_set"] == {"COPIED": "value"}
    assert (hydra["job"]["num"], hydra["job"]["id"]) == ("???", "???")
    assert hydra["runtime"]["output_dir"] == str(records.parent)


def test_sweeping_over_a_hydra_key_is_rejected(mistaken):
    assert mistaken("-m", "seed=0,1", "hydra.job.chdir=true,false").startswith("hydra.job.chdir=true,false: ")


@pytest.mark.long
@pytest.mark.parametrize(
    ("typed", "limits", "replaced"),
    [
        ("loop.env_steps=90", (None, 90), "loop.steps=50"),
        ("loop.env_steps=30", (None, 30), "loop.steps=50"),
        ("loop.steps=70 +experiment=short", (70, None), "loop.env_steps=20"),
        ("loop.steps=70 loop.env_steps=90", (70, 90), None),
        ("loop.env_steps=50", (50, 50), None),
        ("loop.env_steps=90 loop.axis=updates", (50, 90), None),
    ],
)
def test_a_typed_limit_replaces_a_limit_of_the_config_in_the_same_unit(
    start, project, compositions, capsys, typed, limits, replaced
):
    project.write("train", (project.conf / "train.yaml").read_text() + "loop:\n  axis: env_steps\n  steps: 50\n")
    project.write("experiment/short", "# @package _global_\nloop:\n  env_steps: 20\n")
    (config,) = start("run_name=x", *typed.replace("+experiment", "experiment").split())
    assert (config.loop.steps, config.loop.env_steps) == limits
    stderr = capsys.readouterr().err
    assert (
        f"trieye: the typed limit replaces {replaced} of the config" in stderr if replaced else "replaces" not in stderr
    )
    assert len(compositions) == 1


@pytest.mark.long
def test_each_job_of_a_sweep_has_its_own_typed_limit(start, project):
    project.write("train", (project.conf / "train.yaml").read_text() + "loop:\n  axis: env_steps\n  steps: 50\n")
    configs = start("-m", "loop.env_steps=30,90")
    assert [(config.loop.steps, config.loop.env_steps) for config in configs] == [(None, 30), (None, 90)]
