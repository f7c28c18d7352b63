import numpy as np
import pytest
from pydantic import ValidationError

from tests.tune.walks import Walk
from trieye.config.hydra.axes import value_of
from trieye.exceptions import ConfigurationError
from trieye.sweeps.search import RandomSearch
from trieye.sweeps.space import SearchSpace
from trieye.tune.ended import overrides_of
from trieye.tune.schedulers import scheduler_of
from trieye.tune.space import Space
from trieye.tune.study import Study


@pytest.fixture
def space_of(walks_config):
    def make(search="random", **space):
        tune = {"enabled": True, "search": search, "space": space or {"walk": {"pace": "interval(1,10)"}}}
        return Space(walks_config(tune=tune))

    return make


def test_a_grid_has_all_combinations(space_of):
    grid = space_of("grid", **{"walk.pace": "1,2.5", "walk.legs": "range(1,4)"}).grid
    assert [grid[index] for index in (0, 1, 5)] == [
        ("walk.pace=1", "walk.legs=1"), ("walk.pace=1", "walk.legs=2"), ("walk.pace=2.5", "walk.legs=3"),
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"tune\.space\.walk\.pace=.*: a grid cannot sweep over an interval"):
        space_of("grid", **{"walk.pace": "interval(1,2)"})


def test_texts_are_parsed_as_hydra_parses_them_and_listed_values_keep_their_types(space_of):
    parsed = {"1": 1, "2.5": 2.5, "1e-3": 1e-3, "true": True, "fast": "fast", "'1'": "1", "[1,2]": [1, 2], "null": None}
    assert {text: value_of(text) for text in parsed} == parsed
    with pytest.raises(ConfigurationError, match="more than one value"):
        value_of("1,2")
    texts = ["a,b", "1e3", "x=1 ü", "Genève", "null"]
    grid = space_of("grid", **{"walk.gait": texts}).grid
    assert [value_of(grid[index][0].partition("=")[2]) for index in grid] == texts
    values = [*texts, None, 2.5, True, [1, "2"]]
    assert [value_of(overrides_of({"x": value})[0].partition("=")[2]) for value in values] == values
    assert overrides_of({"walk.pace": np.float64(0.5)}) == ["walk.pace=0.5"]


def test_exploration_and_drawn_values_stay_within_the_bounds(space_of):
    space = space_of(walk={"pace": "tag(log,interval(1,10))", "legs": "range(1,5)", "gait": "slow,fast"}, seed=7)
    assert space.keys == ["walk.pace", "walk.legs", "walk.gait"]
    clamped = {"walk.pace": 10.0, "walk.legs": 1, "walk.gait": "fast"}
    assert space.clamp({"walk.pace": 12.0, "walk.legs": 0, "walk.gait": "fast"}) == clamped
    assert space.mutations()["walk.gait"] == ["slow", "fast"]
    search = RandomSearch(SearchSpace.of(space.dimensions), 0)
    pace, legs, gait, seed = (word.partition("=")[2] for word in search.ask(0))
    assert 1 <= float(pace) <= 10
    assert (legs in "1234", gait in {"slow", "fast"}, seed) == (True, True, "7")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"walk.pac": "1,2"}, "tune.space.walk.pac: there is no key 'pac' in walk; did you mean 'pace'"),
        ({"walks": {"pace": "1,2"}}, "there is no key 'walks' in the config; did you mean 'walk'"),
        ({"walk.pace": "interval(1,1000)"}, "walk.pace=1000.0: Input should be less than or equal to 100"),
        ({"walk.pace": "interval(2,1)"}, r"interval\(a,b\) needs a < b"),
        ({"walk.pace": "range(1,3"}, r"tune.space.walk.pace=range\(1,3: not a valid key=value override"),
        ({"walk.pace": "1"}, "nothing varies"),
        ({"walk.pace.x": "1,2"}, "walk.pace has no subkeys"),
        ({"run_name": "a,b"}, "a study does not vary this key"),
        ({"walk.pace": None}, "tune.space.walk.pace is null"),
        ({"walk.legs": "range(9,1)"}, "the range is empty"),
    ],
)
def test_invalid_spaces_are_named(space_of, space, message):
    with pytest.raises(ConfigurationError, match=message):
        space_of(**space)


def test_schedulers_that_compare_trials_need_intermediate_evaluations(walks_config, tmp_path):
    tune = {"enabled": True, "scheduler": "asha", "space": {"walk": {"pace": "1,2"}}}
    config = walks_config(tune=tune, evaluate_every_steps=0)
    with pytest.raises(ConfigurationError, match=r"asha compares running trials; .*loop\.evaluate_every_steps"):
        scheduler_of(config, Space(config), tmp_path)
    with pytest.raises(ConfigurationError, match="would never stop"):
        Study(Walk, walks_config(tune=tune, steps=None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "grid"}, "draws its own values; leave out search=grid"),
        ({"num_trials": 1}, "needs num_trials of 2 or more"),
        ({"max_concurrent_trials": 2}, "compares all trials; remove max_concurrent_trials"),
    ],
)
def test_a_population_rejects_contradictory_options(walks_config, options, message):
    with pytest.raises(ValidationError, match=message):
        walks_config(tune={"enabled": True, "scheduler": "pbt", "space": {"walk.pace": "1,2"}, **options})
