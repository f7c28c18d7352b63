"""Checks before anything is created: every value of every axis of a sweep, libraries, checkpoints, paths."""

import sys
from collections.abc import Callable

import pytest

from trieye.config import PersistenceConfig, TrieyeConfig
from trieye.config.hydra.compose import compose
from trieye.config.hydra.loader import quoted
from trieye.config.hydra.preflight import check_paths
from trieye.config.hydra.sampled_jobs import SampledJobs
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError

Mistaken = Callable[..., str]


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        ("loop.steps=5 seed=range(-1,3)", "seed=-1: |>= 0"),
        ("seed=interval(-1,3)", "seed=-1.0: |>= 0"),
        ("metrics=[core],[reply]", "metrics=[reply]: |'replay'?"),
        ("run_name=a,b/c", "run_name|'b/c'"),
        ("+tags.x=1,2 loop.stps=1,2", "loop.stps=1: |'steps'?"),
        ("metrics=[core] stats.metrics.step_ms.name=time/step_ms,eval/return", "stats.metrics: |eval/return"),
        ("experiment=glob(none*)", "experiment=glob(none*): |no value"),
    ],
)
def test_each_value_of_each_axis_is_checked(mistaken, typed, parts):
    message = mistaken("-m", *typed.split())
    assert [part for part in parts.split("|") if part not in message] == []


@pytest.mark.long
def test_values_that_depend_on_an_axis_are_checked_with_it(project, mistaken):
    project.write("train", (project.conf / "train.yaml").read_text() + "loop:\n  steps: ${seed}\n")
    assert mistaken("-m", "seed=3,2,0").startswith("loop.steps=0: expected an integer >= 1 or null, found 0")


def test_texts_in_a_file_that_yaml_reads_as_other_numbers_are_rejected(project, mistaken):
    primary = (project.conf / "train.yaml").read_text()
    texts = {"version": ("1.10", "1.1"), "build": ("010", "8"), "date": ("20240101_120000", "20240101120000")}
    tags = "".join(f"  {name}: {text}\n" for name, (text, _) in texts.items())
    project.write("train", f"{primary}# version: 1.1, or version: - x\ntags:\n  note: '1.10'\n{tags}")
    first_line = len(primary.splitlines()) + 4
    assert mistaken("seed=1").splitlines() == [
        f"tags.{name} is a text, but YAML reads {text} as the number {number}; write {name}: '{text}' in "
        f"{project.conf}/train.yaml, line {line}"
        for line, (name, (text, number)) in enumerate(texts.items(), first_line)
    ]


def test_a_text_among_sweeper_params_that_yaml_reads_as_another_number_is_rejected(project, mistaken):
    primary = (project.conf / "train.yaml").read_text()
    project.write("train", f"{primary}hydra:\n  sweeper:\n    params:\n      tags.version: 1.10\n      seed: 1\n")
    assert mistaken("-m", "hydra/sweeper=trieye").startswith(
        "tags.version is a text, but YAML reads 1.10 as the number "
    )


@pytest.mark.parametrize(
    ("typed", "quoted_text"),
    [
        ("1e3, 010,'a b'", "'1e3','010','a b'"),
        ("choice(1e3,x)", "'1e3',x"),
        ("choice('1','2')", "'1','2'"),
        ("range(1, 7,3)", "'1','4'"),
        ("choice(x,y)", "choice(x,y)"),
        ("shuffle(x,y)", "shuffle(x,y)"),
        ("range(0,0)", "range(0,0)"),
    ],
)
def test_each_value_of_a_text_in_a_sweep_is_quoted_if_hydra_would_read_a_number(typed, quoted_text):
    assert quoted(f"run_name={typed}", TrieyeConfig) == f"run_name={quoted_text}"
    assert quoted("seed=range(0,2)", TrieyeConfig) == "seed=range(0,2)"


def test_a_boolean_in_a_file_is_not_a_text(project, mistaken):
    project.write("train", (project.conf / "train.yaml").read_text() + "tags:\n  nightly: yes\n")
    assert mistaken("seed=1") == "tags.nightly=True: expected text, found True"


def test_values_of_inactive_keys_are_skipped_at_once(monkeypatch):
    keys = [f"{agent}.k{number}" for agent in "abc" for number in range(9)]
    words = [["agent=a"], *([f"{key}={value}" for value in range(4)] for key in keys)]
    jobs = SampledJobs(["agent", *keys], words, SweeperConfig(when={key: {"agent": key[0]} for key in keys}))
    calls, active = [], SampledJobs._active
    monkeypatch.setattr(SampledJobs, "_active", lambda jobs, positions: calls.append(1) or active(jobs, positions))
    samples = [jobs.with_value(index, 3) for index in range(1, len(keys) + 1)]
    assert [sample is not None for sample in samples] == [True] * 9 + [False] * 18
    assert len(calls) == 9


def test_values_of_large_sweeps_are_checked_in_a_job_with_them():
    seeds = [f"seed={seed}" for seed in range(20_000)]
    words = [["a=0", "a=1"], seeds, ["b=1", "b=2"]]
    conditional = SampledJobs(["a", "seed", "b"], words, SweeperConfig(when={"b": {"seed": 19_000}}))
    assert conditional.with_value(2, 1) == ["a=0", "seed=19000", "b=2"]
    excluding = SampledJobs(["a", "seed", "b"], words, SweeperConfig(exclude=[{"a": 0}, {"a": 1, "seed": 0}]))
    assert excluding.first() == ["a=1", "seed=1", "b=1"]
    assert excluding.with_value(2, 1) == ["a=1", "seed=1", "b=2"]
    assert excluding.with_value(0, 0) is None


def test_values_whose_condition_reads_a_seed_of_the_sweeper_are_checked(mistaken):
    words = ["hydra/sweeper=trieye", "hydra.sweeper.seeds=2", "hydra.sweeper.when={loop.steps:{seed:1}}"]
    assert mistaken("-m", *words, "loop.steps=1,0").startswith("loop.steps=0: ")


def test_a_number_written_as_it_is_shown_is_a_text_whatever_other_files_contain(project):
    primary = (project.conf / "train.yaml").read_text()
    project.write("unused", "tags:\n  version: 1.10\n")
    project.write("train", f"{primary}tags:\n  version: 1.1\n  copied: ${{seed}}\n")
    assert compose(["seed=1"], config_path=project.conf).tags == {"version": "1.1", "copied": "1"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("seed: 0,1,-1", "seed=-1: "),
        ("runtime: local,rya", "runtime=rya: "),
    ],
)
def test_sweeper_params_in_a_file_are_checked_like_typed_axes(project, mistaken, params, message):
    primary = (project.conf / "train.yaml").read_text()
    project.write("train", f"{primary}hydra:\n  sweeper:\n    params:\n      {params}\n")
    assert mistaken("-m", "loop.steps=1,2").startswith(message)


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        ("hydra.launcher.num_cpu=2", "hydra.launcher.num_cpu=2: |'num_cpus'?"),
        (
            "hydra.launcher.isolate=proces hydra.launcher.retries=-1 hydra.launcher.num_gpus=half",
            "isolate=proces: |process, worker, none|'process'?|retries=-1: |>= 0|num_gpus=half: |a number",
        ),
        ("hydra.launcher.num_cpus=${sead}", "hydra.launcher.num_cpus: |sead"),
        ("hydra/launcher=trieyee", "'trieye'?"),
        ("hydra/sweeper=trieye hydra.sweeper.kind=gird", "hydra.sweeper.kind=gird: |'grid'?"),
    ],
)
def test_launcher_and_sweeper_options_are_checked_before_a_job_starts(mistaken, typed, parts):
    message = mistaken("-m", "hydra/launcher=trieye", "seed=0,1", *typed.split())
    assert [part for part in parts.split("|") if part not in message] == []


class CheckedConfig(TrieyeConfig):
    """A config that checks its machine."""

    def check(self) -> None:
        super().check()
        if self.seed == 2:
            raise ConfigurationError(f"seed={self.seed}: {self.run_name} has no such environment")
        if self.seed == 3:
            raise ConfigurationError("this machine has no GPU")


def test_a_project_can_reject_what_its_machine_cannot_run(mistaken):
    def message(*arguments):
        return mistaken("run_name=x", *arguments, config_type=CheckedConfig)

    assert message("seed=2") == "seed=2: x has no such environment"
    assert message("-m", "seed=2,1") == "seed=2: x_0 has no such environment"
    assert message("-m", "seed=0,2,1") == "seed=2: x_0 has no such environment"
    assert message("-m", "seed=0,3,1") == "seed=3: this machine has no GPU"


@pytest.mark.parametrize(
    ("library", "typed", "message"),
    [
        ("wandb", "sinks=[console,wandb]", "sinks.wandb.enabled=true needs wandb, which is not installed: pip install"),
        (
            "gcsfs",
            "persistence.mirror=gs://a/b",
            "persistence.mirror=gs://a/b needs gcsfs, which is not installed: pip install 'trieye[gcs]'",
        ),
    ],
)
def test_a_missing_library_is_reported_before_the_start(mistaken, monkeypatch, library, typed, message):
    monkeypatch.setitem(sys.modules, library, None)
    assert mistaken(typed).startswith(message)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("frist:best", "app 'tested' has no run 'frist'; did you mean 'first'?"),
        ("first:step:9", "run 'first' has no checkpoint"),
        ("best -m", "has no checkpoint"),
    ],
)
def test_a_missing_checkpoint_is_reported_before_the_start(mistaken, tmp_path_factory, typed, message):
    root = tmp_path_factory.mktemp("root")
    (root / "tested" / "runs" / "first").mkdir(parents=True)
    word, *flags = f"persistence.load_checkpoint_path={typed}".split()
    error = mistaken(f"persistence.root_data_dir={root}", word, *flags)
    assert error.startswith(f"{word}: ")
    assert message in error


def path_error(**fields: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        check_paths(PersistenceConfig(**fields))
    return str(caught.value)


def test_an_invalid_path_is_reported_before_the_start(mistaken):
    assert mistaken("persistence.root_data_dir=/proc/x").startswith("persistence.root_data_dir=/proc/x is not writable")


def test_a_root_that_can_be_created_is_valid_and_is_not_created_yet(tmp_path):
    check_paths(PersistenceConfig(root_data_dir=str(tmp_path / "a" / "b")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["file", "file/x", "file/x/y", "link", "nul\0"])
def test_an_unwritable_root_is_rejected(tmp_path, below):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    message = path_error(root_data_dir=str(tmp_path / below))
    assert message.startswith(f"persistence.root_data_dir={tmp_path / below} is not writable")
    assert message.endswith("choose another one")


@pytest.mark.parametrize("key", ["load_checkpoint_path", "load_buffer_path"])
def test_a_file_to_resume_from_must_exist(tmp_path, key):
    (tmp_path / "step_100").mkdir()
    path = tmp_path / "step_10" / "model"
    message = path_error(root_data_dir=str(tmp_path / "data"), **{key: str(path)})
    assert message.startswith(f"persistence.{key}={path}: ")
    assert message.endswith(f"in {tmp_path}; did you mean 'step_100'?")
    check_paths(PersistenceConfig(root_data_dir=str(tmp_path / "data"), **{key: str(tmp_path / "step_100")}))


@pytest.mark.parametrize(("word", "meant"), [("bets", "best"), ("first:bst", "first:best")])
def test_a_mistyped_checkpoint_name_lists_the_valid_ones(tmp_path, monkeypatch, word, meant):
    monkeypatch.chdir(tmp_path)
    message = path_error(root_data_dir=str(tmp_path / "data"), load_checkpoint_path=word)
    assert message.startswith(f"persistence.load_checkpoint_path={word}: ")
    assert f"did you mean {meant!r}? (best, latest, step:1200, or another run" in message
    assert meant not in path_error(root_data_dir=str(tmp_path / "data"), load_buffer_path=word)
