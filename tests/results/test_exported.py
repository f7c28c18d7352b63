"""Exported Parquet files: loading them gives the results of their runs."""

import json

import pytest
from pyarrow import parquet

from tests.results.runs_of import make_run
from trieye.exceptions import ConfigurationError
from trieye.results import load
from trieye.results.exported import RUNS
from trieye.results.origins import Origin
from trieye.run.provenance import Commit, Provenance


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return an app with four runs: two algorithms with two seeds each."""
    root = tmp_path_factory.mktemp("runs")
    for algo, level in (("ppo", 4.0), ("dqn", 2.0)):
        for seed in (0, 1):
            make_run(root, f"{algo}{seed}", [level, level + seed], agent={"algo": algo}, seed=seed, every=10)
    return root / "app"


@pytest.fixture
def exported(runs, tmp_path):
    path = tmp_path / "data.parquet"
    assert load(runs).export(path) == 16
    return path


@pytest.mark.long
def test_an_export_loads_the_same_values_and_series_as_its_runs(runs, exported):
    original, stored = load(runs), load(exported)
    for results in (original, stored):
        assert results.problems == []
    assert stored.configs == original.configs
    assert stored.seeds == original.seeds == [0, 1]
    for metric in ("eval/return", "loss"):
        assert (stored.values(metric) == original.values(metric)).all()
        for stored_series, original_series in zip(stored.series(metric), original.series(metric), strict=True):
            assert all((left == right).all() for left, right in zip(stored_series, original_series, strict=True))
    assert {run.status for run in stored} == {"FINISHED"}
    assert len(stored.where(algo="ppo")) == 2


def test_an_export_contains_provenance_but_no_users_hosts_or_paths(runs, exported):
    assert all("torch" in Origin.of(run).provenance.packages for run in load(exported))
    metadata = parquet.read_metadata(exported).metadata[RUNS].decode()
    assert str(runs.parent) not in metadata
    for provenance in json.loads(metadata)["provenances"]:
        assert provenance["user"] == provenance["directory"] == provenance["machine"]["host"] == ""


def test_an_export_stores_public_addresses_of_repositories_only():
    commit = Commit(directory="", sha="1" * 40, branch="main", remote="", is_dirty=False, untracked=[])
    provenance = Provenance.gather(commit)

    def exported_remote(remote):
        changed = provenance.model_copy(update={"commit": commit.model_copy(update={"remote": remote})})
        return Origin(1, 2.0, changed).exported()["commit"]["remote"]

    for remote in (
        "https://example.org/agents.git",
        "git@example.org:team/agents.git",
        "ssh://git@example.org/team/agents.git",
    ):
        assert exported_remote(remote) == remote
    for remote in (
        "https://ada@example.org/agents.git",
        "ada@workstation:/home/ada/agents",
        "ssh://ada@workstation/home/ada/agents",
        "workstation:agents.git",
        "/home/ada/agents",
        "../agents",
        "file:///home/ada/agents",
        r"C:\Users\ada\agents",
        "",
    ):
        assert exported_remote(remote) == "", remote


def test_an_export_contains_only_the_selected_metrics(runs, tmp_path):
    load(runs).export(tmp_path / "loss.parquet", ["loss"])
    assert load(tmp_path / "loss.parquet").metrics() == ["loss"]


def test_an_export_preserves_the_seeds_of_its_sweep_but_no_job_states(exported, runs, tmp_path):
    results = load(runs)
    results._cache.sweeps["sweep"] = {0, 1, 2}
    for run in results.runs:
        object.__setattr__(run, "sweep", "sweep")
    results.export(tmp_path / "sweep.parquet")
    stored = load(tmp_path / "sweep.parquet")
    assert stored.seeds_near(stored.runs[0]) == {0, 1, 2}
    assert stored.status().jobs == {}, "its directory may be on another machine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.replace_schema_metadata({}), "no runs in its metadata; expected a file of `trieye"),
        (lambda table: table.replace_schema_metadata({RUNS: b'{"format": 9}'}), "format 9 of a newer trieye"),
        (lambda table: table.slice(1), "its rows were changed after the export"),
    ],
)
def test_a_foreign_newer_or_modified_file_is_rejected(exported, change, message):
    parquet.write_table(change(parquet.read_table(exported)), exported)
    with pytest.raises(ConfigurationError, match=message):
        load(exported)


def test_a_damaged_file_is_rejected(tmp_path):
    (tmp_path / "data.parquet").write_bytes(b"PAR1 but nothing else")
    with pytest.raises(ConfigurationError, match=r"data.parquet: cannot be read: "):
        load(tmp_path / "data.parquet")


def test_tags_split_and_select_runs_without_separating_configs(tmp_path):
    for seed, variant in enumerate(("new", "old")):
        make_run(tmp_path, f"run{seed}", [1.0 + seed], seed=seed, tags={"variant": variant})
    results = load(tmp_path / "app")
    assert len(results.configs) == 1, "tags are not parameters"
    results.export(tmp_path / "data.parquet")
    for source in (results, load(tmp_path / "data.parquet")):
        assert {name: len(part) for name, part in source.split("tags.variant").items()} == {"new": 1, "old": 1}
        assert [run.name for run in source.where({"tags.variant": "old"})] == ["run1"]


def test_absolute_paths_become_distinct_names(tmp_path):
    for seed, data in enumerate(
        ("/home/alice/a/set", "/home/alice/b/set,/home/alice/more", "sqlite:////home/alice/a/set")
    ):
        run_dir = make_run(tmp_path, f"run{seed}", [1.0], seed=seed)
        record = json.loads((run_dir / "run.json").read_text())
        record["params"] = {"data": data, "files": json.dumps(["/home/alice/f1"])}
        (run_dir / "run.json").write_text(json.dumps(record))
    results = load(tmp_path / "app")
    results.export(tmp_path / "data.parquet")
    stored = load(tmp_path / "data.parquet")
    assert [run.params["data"] for run in stored] == ["set", "more", "set-2"]
    assert stored.runs[0].params["files"] == ["f1"]
    assert len(stored.configs) == len(results.configs) == 3
    assert b"alice" not in (tmp_path / "data.parquet").read_bytes()


def write_jobs(directory, values):
    """Write the directories of the jobs of a Hydra program, one for each value of its key `data`."""
    for index, value in enumerate(values):
        (directory / str(index) / ".hydra").mkdir(parents=True)
        (directory / str(index) / ".hydra/config.yaml").write_text(json.dumps({"data": value}))
        (directory / str(index) / "metrics.csv").write_text(f"step,loss\n0,{index}\n")
    (directory / "multirun.yaml").touch()


@pytest.mark.parametrize(
    ("values", "stored_values"),
    [
        (["/data/set", "set"], ["set-2", "set"]),
        (["/", "speed /10", "speed 10"], ["/", "speed /10", "speed 10"]),
        (["read /data/set", "read set", "read /old/set"], ["read set-2", "read set", "read set-3"]),
        (["a:/home/bob/b", "a:b", "gs://bob/a/b", "a:file:///b/c"], ["a:b-2", "a:b", "gs://bob/a/b", "a:c"]),
        ([True, 1], [True, 1]),
        ([[1], [True]], [[1], [True]]),
    ],
)
def test_an_export_preserves_the_differences_between_configs(tmp_path, values, stored_values):
    write_jobs(tmp_path / "sweep", values)
    results = load(tmp_path / "sweep")
    results.export(tmp_path / "data.parquet")
    stored = load(tmp_path / "data.parquet")
    assert repr([run.params["data"] for run in stored]) == repr(stored_values)
    assert len(stored.configs) == len(results.configs) == len(values)


def test_a_run_in_two_files_or_in_a_file_and_its_directory_counts_once(runs, exported, tmp_path):
    write_jobs(tmp_path / "sweep", [1, 2])
    load(tmp_path / "sweep").export(tmp_path / "jobs.parquet")
    for source, path in ((runs, exported), (tmp_path / "sweep", tmp_path / "jobs.parquet")):
        original = load(source)
        copied = path.rename(path.with_name(f"copy of {path.name}"))
        original.export(path)
        for sources in ([path, copied], [path, source], [source, path]):
            results = load(sources)
            assert [run.name for run in results] == [run.name for run in original]
        assert [run.path for run in results] == [run.path for run in original], "the directory is preferred"


def test_equally_named_sweeps_in_two_files_are_two_sweeps(tmp_path, monkeypatch):
    paths = []
    for project, num_seeds in (("one", 2), ("two", 3)):
        write_jobs(tmp_path / project / "sweep", range(num_seeds))
        monkeypatch.chdir(tmp_path / project)
        results = load("sweep")
        results._cache.sweeps[results.runs[0].sweep] = set(range(num_seeds))
        paths.append(tmp_path / f"{project}.parquet")
        results.export(paths[-1])
    load(paths).export(tmp_path / "both.parquet")
    for stored in (load(paths), load([*paths, tmp_path / "both.parquet"])):
        assert [len(stored.seeds_near(run)) for run in stored] == [2] * 2 + [3] * 3
        assert len(stored.where(sweep="sweep")) == 5


def test_an_export_of_named_runs_has_a_row_for_each_of_equal_runs(tmp_path):
    runs = [make_run(tmp_path, name, [1.0]) for name in ("one", "two")]
    results = load(runs)
    results.export(tmp_path / "data.parquet")
    assert len(load(tmp_path / "data.parquet").configs) == len(results.configs) == 2
