"""Descriptions of PyExpUtils as sweeps, and where their jobs save."""

import itertools
import json

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.sweeps.descriptions import SAVE_PATHS, Description, save_path_in, write_save_paths
from trieye.sweeps.grid import Grid
from trieye.sweeps.spec import grid_of

SARSA = {
    "algorithm": "SARSA",
    "environment": "MountainCar",
    "metaParameters": {"alpha": [1.0, 0.5, 0.25, 0.125], "lambda": [1.0, 0.99, 0.98, 0.96]},
}


@pytest.fixture
def described(tmp_path, monkeypatch):
    """Return a function that writes a description below a project's directory, and reads it."""
    monkeypatch.chdir(tmp_path)

    def read(description, name="experiments/MountainCar-v0/sarsa.json", **options):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(description if isinstance(description, str) else json.dumps(description))
        return Description.read(path.relative_to(tmp_path), **options)

    return read


def grid(description, **options) -> Grid:
    return grid_of(description.words, SweeperConfig(**options))


def test_the_last_key_varies_fastest_and_runs_are_slowest(described):
    description = described(SARSA, runs=2)
    assert description.num_combinations == 16
    assert description.values(0) == {"alpha": 1.0, "lambda": 1.0}
    assert description.values(1) == {"alpha": 1.0, "lambda": 0.99}
    assert description.values(15) == {"alpha": 0.125, "lambda": 0.96}
    assert description.values(16) == {"alpha": 1.0, "lambda": 1.0}
    jobs = grid(description, seeds=2)
    assert jobs[1] == ("seed=0", "alpha=1.0", "lambda=0.99")
    assert jobs[16] == ("seed=1", "alpha=1.0", "lambda=1.0")
    for index in (-1, 32):
        with pytest.raises(IndexError, match=f"job {index}: .*sarsa.json has jobs 0 to 31"):
            description.values(index)


def test_several_blocks_vary_together(described):
    description = described({**SARSA, "envParameters": {"noise": [0, 1]}}, blocks=("metaParameters", "envParameters"))
    assert (list(description.axes), description.num_combinations) == (["alpha", "lambda", "noise"], 32)


def test_nested_keys_are_dotted_and_lists_of_objects_are_structure(described):
    swept = {
        "optimizer": {"alpha": [0.1, 0.2], "name": "adam"},
        "layers": [{"units": [16, 32]}, {"units": 8, "act": "relu"}],
        "sizes": [[64, 64], [128]],
        "+extra": [None, True],
    }
    description = described({"metaParameters": swept})
    assert description.words == [
        "optimizer.alpha=0.1,0.2", "optimizer.name=adam", "layers.0.units=16,32", "layers.1.units=8",
        "layers.1.act=relu", "sizes=[64,64],[128]", "+extra=null,true",
    ]  # fmt: skip
    assert grid(description)[3] == (
        "optimizer.alpha=0.1", "optimizer.name=adam", "layers.0.units=16", "layers.1.units=8", "layers.1.act=relu",
        "sizes=[128]", "+extra=True",
    )  # fmt: skip
    assert description.values(3)["extra"] is True
    description.values(0)["sizes"].append(1)
    assert description.values(0)["sizes"] == [64, 64]


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="$\\"), max_size=8),
    st.sampled_from(["true", "None", "null", "1e-4", "nan", "a,b", "it's", "[1]", "x y", "", "-", "C:\\dir", "\\'"]),
)


@given(st.lists(leaves | st.lists(leaves, max_size=2), min_size=1, max_size=3, unique_by=str))
def test_values_reach_jobs_exactly_as_written(tmp_path_factory, listed):
    path = tmp_path_factory.getbasetemp() / "one.json"
    path.write_text(json.dumps({"metaParameters": {"x": listed}}))
    jobs = grid(Description.read(path))
    (description,) = zip(*(OverridesParser.create().parse_overrides(list(jobs[index])) for index in jobs), strict=True)
    got = [override.value() for override in description]
    assert [(type(one), one) for one in got] == [(type(one), one) for one in listed]


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"metaParameters": {"a": {"b": []}}}, "metaParameters.a.b is an empty list"),
        ({"metaParameters": {"a": [1, {"b": 2}]}}, "metaParameters.a mixes objects and values"),
        ({"metaParameters": {"step size": [1, 2]}}, "metaParameters.step size is not a valid config key"),
        ({"metaParameters": {"a": [0.1, 0.5, 0.1]}}, "metaParameters.a contains 0.1 twice"),
        ({"metaParameters": {"a.b": 1, "a": {"b": 2}}}, "duplicate key a.b"),
        ('{"metaParameters": {"a": 1, "a": 2}}', "not valid JSON: duplicate key a"),
        ({"metaparameters": {"a": [1]}}, "metaParameters, an object .* is missing; did you mean 'metaparameters'?"),
        ({"metaParameters": [1]}, "metaParameters, an object with the values of each key, is missing"),
        ("[1, 2]", "expected an object"),
        ('{"metaParameters": {', "not valid JSON: .*line 1"),
        ('{"metaParameters": {"a": ' + "[" * 100_000, "not valid JSON: maximum recursion depth"),
        ('{"metaParameters": {"a": ' + "9" * 5000 + "}}", "not valid JSON: Exceeds the limit"),
    ],
)
def test_an_error_names_the_file_and_the_key(described, description, message):
    with pytest.raises(ConfigurationError, match=f"^experiments/MountainCar-v0/sarsa.json: {message}"):
        described(description)


def test_a_missing_file_is_named_with_the_closest_match(described):
    path = described(SARSA).path
    with pytest.raises(ConfigurationError, match=r"srsa.json cannot be read: No such file .*'sarsa.json'\?"):
        Description.read(path.with_name("srsa.json"))


def test_a_description_is_named_explicitly_or_after_its_directory(described, tmp_path):
    assert described(SARSA).name == "MountainCar-v0"
    assert described(SARSA, "experiments/a/b/x.json").name == "a/b"
    assert described({**SARSA, "name": "mine"}).name == "mine"
    assert described(SARSA, "experiments/x.json").name == "unnamed"
    (tmp_path / "config.json").write_text('{"experiment_directory": "studies"}')
    assert described(SARSA, "studies/deep/x.json").name == "deep"


def test_a_job_saves_to_the_path_in_the_config_and_nowhere_without_one(described, tmp_path):
    assert described(SARSA).save_pattern is None
    with pytest.raises(ConfigurationError, match="save_path is missing; set it here"):
        described(SARSA).save_context(0)
    (tmp_path / "config.json").write_text('{"save_path": "results/{name}/{environment}/{algorithm}/{params}"}')
    description = described(SARSA)
    assert description.save_path(1) == "results/MountainCar-v0/MountainCar/SARSA/alpha-1.0_lambda-0.99"
    context = description.save_context(1, tmp_path)
    assert context.ensure_exists().is_dir()
    assert context.resolve("returns.npy") == tmp_path / description.save_path(1) / "returns.npy"
    assert context.resolve("../../all.json") == tmp_path / "results/MountainCar-v0/MountainCar/all.json"
    context.resolve("returns.npy").write_text("[]")
    context.remove()
    assert not context.directory.exists()
    context.remove()


def test_no_two_jobs_share_a_path(described):
    swept = {"agent": {"lr": [0.1, 0.5]}, "env": ["a/b", "a_b"], "depth": 3}
    description = described({"save_path": "{name}/{params}/{run}", "metaParameters": swept}, runs=3)
    paths = [description.save_path(index) for index in range(12)]
    assert len(set(paths)) == 12
    assert paths[4] == "MountainCar-v0/agent.lr-0.1_depth-3_env-a%2Fb/1"
    own = described({"save_path": "r/{agent.lr}-{env}/{run}", "metaParameters": swept}, runs=2)
    assert [own.save_path(index) for index in (0, 7)] == ["r/0.1-a%2Fb/0", "r/0.5-a_b/1"]


@pytest.mark.parametrize(
    ("pattern", "swept", "message"),
    [
        ("{name}/{params}", {"x": 1}, r"jobs 0 \(seed=0 x=1\) and 1 \(seed=1 x=1\) of .* share the path n/x-1; use"),
        ("{x}/{run}", {"x": 1, "y": [2, 3]}, r"jobs 0 \(seed=0 x=1 y=2\) and 1 .*share the path 1/0"),
        ("{x}{y}/{run}", {"x": [1, 11], "y": [1, 11]}, r"jobs 1 \(seed=0 x=1 y=11\) and 2 .*share the path 111/0"),
        ("{param}/{run}", {"x": 1}, r"\{param\} is undefined in .*; did you mean 'params'\?"),
    ],
)
def test_a_path_that_jobs_would_share_is_rejected(described, pattern, swept, message):
    description = described({"name": "n", "save_path": pattern, "metaParameters": swept}, runs=2)
    with pytest.raises(ConfigurationError, match=message):
        description.save_paths(grid(description, seeds=2))


@pytest.mark.parametrize(
    ("words", "options", "paths"),
    [
        (["x=1.0"], {}, ["x-1.0_y-a", "x-1.0_y-64_64", "x-1.0_y-6464"]),
        (["y=6464,a"], {"zip": [["x", "y"]]}, []),  # the number 6464 is not described
        (["y='6464',a"], {"zip": [["x", "y"]]}, ["x-1_y-6464", "x-1.0_y-a"]),
        (["x=1,2"], {}, []),
        (["x=2"], {}, []),
        (["y=a,'6464'", "z=1,2"], {"zip": [["x", "y", "z"]]}, []),
        (
            ["z=1"],
            {"seeds": 1, "zip": [["x", "x"]]},
            [f"x-{x}_y-{y}" for x in (1, 1.0) for y in ("a", "64_64", "6464")],
        ),
    ],
)
def test_jobs_have_the_paths_of_their_values_if_all_are_described(described, words, options, paths):
    description = described({"save_path": "{params}", "metaParameters": {"x": [1, 1.0], "y": ["a", "64_64", "6464"]}})
    assert description.save_paths(grid_of([*description.words, *words], SweeperConfig(**options))) == paths


def test_damaged_save_paths_are_named(tmp_path):
    write_save_paths(tmp_path, ["r/0", "r/1"])
    path = tmp_path / SAVE_PATHS
    path.write_bytes(path.read_bytes()[:-3])
    assert [save_path_in(tmp_path, index) for index in (0, 2)] == ["r/0", None]
    with pytest.raises(SerializationError, match=r"save_paths\.jsonl is damaged in line 2; repeat the plan"):
        save_path_in(tmp_path, 1)


def test_a_description_without_lists_has_one_job(described):
    description = described({"metaParameters": {}})
    assert (description.num_combinations, description.words, description.values(0)) == (1, [], {})
    assert list(itertools.islice(grid(description), 2)) == [0]
