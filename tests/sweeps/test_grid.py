"""The jobs of a grid and their indices, compared with Hydra's basic sweeper."""

import json
import time
import timeit

import msgspec
import pytest
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import given
from hypothesis import strategies as st

from trieye.config.hydra.conditions import same_value
from trieye.config.hydra.loader import VERSION_BASE
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.sweeps.command import command_of
from trieye.sweeps.grid import Axis, Grid, PlainGrid, shown
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.record import SWEEP, SweepRecord
from trieye.sweeps.spec import grid_of, zipped
from trieye.sweeps.status import status_of

PLAIN = SweeperConfig()


def grid(*words, **options):
    return grid_of(words, SweeperConfig(**options))


def stored(ours):
    """Return a grid after a round trip through its JSON."""
    return Grid.of_plain(msgspec.json.decode(msgspec.json.encode(ours.plain()), type=PlainGrid))


def recorded(ours, spec=()):
    record = SweepRecord(spec=list(spec))
    record.set_grid(ours)
    return record


def hydras(words, loader=None):
    """Return the jobs of Hydra's own sweeper, in its order."""
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(list(words))
    (batch,) = BasicSweeper.split_arguments(overrides, None)
    return [tuple(job) for job in batch]


names = st.sampled_from(["lr", "agent.lr", "agent", "env@train.env", "layers.0.units", "a_b"])
texts = st.text(
    st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"], exclude_characters="\\'"), max_size=6
)
values = st.one_of(
    st.integers(-100, 100).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["true", "False", "null", "nan", "inf", "1e-4", "dqn", "a-b", "x/y.z", "a\\,b", "''", '"a b"']),
    st.sampled_from(["${other}", "${oc.env:HOME}", "'${other},1'", "[1, 2]", "[]", "{x: 1, y: [a]}", "[${b},'c d']"]),
    texts.map("'{}'".format),
)
ranges = st.builds(
    "range({},{},{})".format, st.integers(-3, 0), st.integers(1, 4), st.sampled_from(["1", "2", "0.5", "1.25"])
)
several = st.lists(values, min_size=2, max_size=3).map(",".join)
choices = several.map("choice({})".format)
sorts = st.one_of(
    st.lists(st.integers(-9, 9).map(str), min_size=2, max_size=3).map(",".join).map("sort({},reverse=true)".format),
    ranges.map("tag(x,{})".format),
    st.lists(st.integers(0, 9).map(str), min_size=2, max_size=3).map(",".join).map("float({})".format),
)
deletions = st.one_of(names.map("~{}".format), st.builds("~{}={}".format, names, values))
words = st.one_of(
    st.builds(
        "{}{}={}".format, st.sampled_from(["", "", "+", "++"]), names, values | several | ranges | choices | sorts
    ),
    deletions,
)


@given(st.lists(words, max_size=5))
def test_jobs_have_the_same_numbers_as_in_hydra(spec):
    try:
        jobs = hydras(spec)
    except HydraException:  # `choice(0,null)`
        with pytest.raises(ConfigurationError):
            grid(*spec)
        return
    ours = grid(*spec)
    assert [ours[index] for index in ours] == jobs
    assert (ours.size, list(ours)) == (len(jobs), list(range(len(jobs))))
    assert stored(ours) == ours
    for index in {0, len(jobs) // 2, len(jobs) - 1}:
        wanted = ours.values(index)
        alike = [other for other in ours if all(same_value(ours.values(other)[key], wanted[key]) for key in wanted)]
        assert index in alike
        assert list(ours.find(wanted)) == alike


def test_a_glob_expands_to_the_options_of_the_program(tmp_path):
    (tmp_path / "train.yaml").write_text("seed: 0\n")
    (tmp_path / "agent").mkdir()
    for name in ("dqn", "ppo", "sac"):
        (tmp_path / "agent" / f"{name}.yaml").write_text(f"name: {name}\n")
    spec = ["seed=1,2", "+agent=glob(*,exclude=s*)"]
    with initialize_config_dir(str(tmp_path), **VERSION_BASE):
        loader = GlobalHydra.instance().config_loader()
        ours = grid_of(spec, PLAIN, loader)
        assert [ours[index] for index in ours] == hydras(spec, loader)
        assert ours[3] == ("seed=2", "+agent=ppo")
        with pytest.raises(ConfigurationError, match=r"\+agent=glob\(z\*\): \+agent has no values"):
            grid_of(["+agent=glob(z*)"], PLAIN, loader)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "lr=interval(0,1)",
            r"lr=interval\(0,1\): a grid cannot sweep over an interval.*lr=1,2,3.*hydra.sweeper.kind=random",
        ),
        ("agent=glob(*)", r"agent=glob\(\*\): only the program knows the options of a group; run it with -m"),
        ("lr=range(5,1)", r"lr=range\(5,1\): lr has no values"),
        ("lr=range(0,5,0)", r"lr=range\(0,5,0\): .*must not be zero"),
        ("lr=range(0,3),5", r"lr=range\(0,3\),5: a range cannot be combined"),
        ("lr", r"^lr: not a valid key=value override (?!.*https)"),
        ("db.password=[hunter2", r"^db\.password=\*\*\*(?!.*hunter2)"),
    ],
)
def test_overrides_that_define_no_grid_are_rejected(word, message):
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        grid("x=1", word)


def test_values_of_the_command_line_replace_an_interval_of_the_config():
    assert grid("x=interval(0,1)", "y=3", "x=1,2")[1] == ("x=2", "y=3")


def test_a_grid_of_a_billion_jobs_is_never_materialized():
    ours = grid(*(f"k{number}=range(0,1000)" for number in range(3)))
    assert ours[999_999_999] == ("k0=999", "k1=999", "k2=999")
    assert list(ours.find({"k0": "3", "k1": "0", "k2": "7"})) == [3_000_007]
    assert min(timeit.repeat(lambda: ours[123_456_789], timer=time.process_time, number=1000, repeat=5)) < 0.2
    for index in (-1, 1_000_000_000):
        with pytest.raises(IndexError, match=f"job {index} does not exist: the sweep has jobs 0 to 999999999"):
            ours[index]


def test_find_selects_jobs_by_some_of_their_values():
    ours = grid("agent=ppo,dqn", "+lr=1e-4,0.5,'7'", "deep=true,false", "net=[1, 2],null")
    assert list(ours.find({"agent": "dqn", "lr": "0.0001"})) == [12, 13, 14, 15]
    assert list(ours.find({"deep": "false", "net": "[1, 2]", "+lr": "7"})) == [10, 22]
    assert list(ours.find({"net": "null", "agent": "ppo", "deep": "True", "lr": "5e-1"})) == [5]
    unquoted = grid("x='Zürich','a b','a,b'")
    assert [list(unquoted.find({"x": text})) for text in ("Zürich", "a,b")] == [[0], [2]]
    assert ours.values(10) == {"agent": "ppo", "lr": "'7'", "deep": "False", "net": "[1,2]"}
    with pytest.raises(ConfigurationError, match=r"agnet: .*did you mean 'agent'\? \(axes: agent, lr, deep, net\)"):
        list(ours.find({"agnet": "dqn"}))
    with pytest.raises(ConfigurationError, match=r"lr=3: .* no such value \(values of lr: 0\.0001, 0\.5, '7'\)"):
        list(ours.find({"lr": "3"}))


def test_seeds_are_the_slowest_axis_and_may_be_added_later(tmp_path):
    ours = grid("lr=1,2", seeds=3)
    assert [ours[index] for index in ours][:3] == [("seed=0", "lr=1"), ("seed=0", "lr=2"), ("seed=1", "lr=1")]
    assert ours.values(5) == {"seed": "2", "lr": "2"}
    assert recorded(ours).going_on(grid("lr=1,2", seeds=5), ["lr=1,2"], tmp_path).size == 10
    with pytest.raises(ConfigurationError, match="seed is already an axis of the sweep"):
        grid("++seed=1", seeds=3)


def test_zipped_keys_vary_together_at_the_position_of_the_first():
    ours = grid("a=1,2", "b=x,y", "+c=p,q", "d=5", zip=[["c", "a"]])
    assert [ours[index] for index in ours] == [
        ("+c=p", "a=1", "b=x", "d=5"),
        ("+c=p", "a=1", "b=y", "d=5"),
        ("+c=q", "a=2", "b=x", "d=5"),
        ("+c=q", "a=2", "b=y", "d=5"),
    ]
    assert ours.varying == ("+c", "a", "b")
    assert ours.values(2) == {"c": "q", "a": "2", "b": "x"}
    assert list(ours.find({"c": "q"})) == [2, 3]
    assert grid("a=1,2", "b=x,y", "c=p,q", zip=[["a", "b"], ["b", "c"]])[1] == ("a=2", "b=y", "c=q")


@pytest.mark.parametrize("group", [["a"], ["a", "a"]])
def test_a_key_zipped_with_itself_is_unchanged(group):
    axes = (Axis(("a",), (("1",), ("2",))), Axis(("b",), (("3",), ("4",))))
    assert zipped(axes, [group]) == axes


def test_keys_of_different_lengths_cannot_be_zipped():
    with pytest.raises(ConfigurationError, match=r"zip=a,b: .*equal numbers of values; a has 2, b has 3"):
        grid("a=1,2", "b=range(0,3)", zip=[["a", "b"]])
    with pytest.raises(ConfigurationError, match=r"zip=a,agnt: the sweep has no axis agnt; did you mean 'agent'\?"):
        grid("a=1,2", "agent=x,y", zip=[["a", "agnt"]])


def test_the_number_of_an_excluded_job_stays_unused(tmp_path):
    ours = grid("agent=ppo,dqn", "lr=1,2,3", exclude=[{"agent": "ppo", "lr": 2.0}, {"lr": "3"}])
    assert list(ours) == [0, 3, 4]
    assert ours[3] == ("agent=dqn", "lr=1")
    assert list(ours.find({"agent": "ppo"})) == [0]
    excluded = [{"deep": True, "net": None}, {"net": [1, 2], "deep": False}]  # as YAML values
    assert list(grid("deep=true,false", "net=null,[1,2]", exclude=excluded)) == [1, 2]
    later = grid("lr=1,2,3", exclude=[{"lr": 2}])
    assert list(recorded(grid("lr=1,2,3")).going_on(later, ["lr=1,2,3"], tmp_path)) == [0, 2]
    for combination, message in (({"agnt": "ppo"}, "did you mean 'agent'"), ({"lr": 9}, "lr=9: .*no such value")):
        with pytest.raises(ConfigurationError, match=message):
            grid("agent=ppo,dqn", "lr=1,2,3", exclude=[combination])


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("x=[a,'b c'],[c]", ["a", "b c"]),
        ("x=[true,null],[c]", [True, None]),
        ('x="a,b",c', "a,b"),
        ("+x={a: 1},{a: 2}", {"a": 1}),
        ('x=true,"true"', True),
        ("x='true',true", "true"),
        ("x='Zürich',c", "Zürich"),
        ("x='64_64','6464'", "64_64"),
        ("x=6_4,'6_4'", 64),
        ("x=9007199254740993,9007199254740992", 9007199254740993),
        ("x=1.0,2", 1),
    ],
)
def test_exclusions_and_conditions_compare_values_with_their_types(word, value):
    ours = grid(word, "lr=1,2", exclude=[{"x": value, "lr": 1}], when={"lr": {"x": [value]}})
    assert [ours.values(index).get("lr") for index in ours] == ["2", None]
    assert stored(ours) == ours


def test_the_fingerprint_depends_only_on_the_jobs_of_a_grid():
    first = grid("lr=1,2", "seed=range(0,3)")
    assert first.fingerprint == grid("lr=choice(1,2)", "seed=0,1,2").fingerprint
    others = [
        grid("lr=2,1", "seed=0,1,2"),
        grid("seed=0,1,2", "lr=1,2"),
        grid("lr=1,2", "seed=0,1,2", exclude=[{"lr": 1}]),
    ]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 4


@pytest.mark.parametrize(
    ("before_spec", "now"),
    [
        (["lr=1,2", "b=3,4"], ["lr=1,2,3", "b=3,4"]),
        (["lr=1", "b=3,4"], ["lr=1,2", "b=3,4"]),
        (["agent=dqn", "lr=1,2", "b=3,4"], ["agent=dqn", "lr=1,2,3", "b=3,4"]),
        (["lr=1,2"], ["lr=1,2"]),
        ([], []),
    ],
    ids=["first key", "first key had one value", "key after constant keys", "same", "nothing varies"],
)
def test_growth_of_the_slowest_key_keeps_hydras_numbering(tmp_path, before_spec, now):
    before, after = grid(*before_spec), grid(*now)
    assert recorded(before).going_on(after, now, tmp_path) == after
    assert [after[index] for index in before] == [before[index] for index in before]


def test_values_appended_to_any_key_add_jobs_after_the_existing_ones(tmp_path):
    first, second = grid("lr=1,2", "seed=0,1"), grid("lr=1,2", "seed=0,1,2")
    grown = recorded(first).going_on(second, [], tmp_path)
    assert [grown[index] for index in range(4)] == [first[index] for index in first]
    assert [grown.values(index) for index in (4, 5)] == [{"lr": "1", "seed": "2"}, {"lr": "2", "seed": "2"}]
    assert list(grown.find({"seed": "2"})) == [4, 5]
    assert grown.fingerprint != second.fingerprint
    recorded(grown).write(tmp_path)
    repeated = SweepRecord.of(tmp_path).going_on(second, [], tmp_path)
    assert repeated == grown, "the same command keeps the numbering"


sizes = st.lists(st.integers(1, 3), min_size=1, max_size=4)
increments = st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), max_size=3)


@pytest.mark.long
@given(sizes, increments)
def test_growth_keeps_all_indices_and_adds_each_combination_once(lengths, steps):
    words = lambda: [f"k{at}={','.join(map(str, range(length)))}" for at, length in enumerate(lengths)]  # noqa: E731
    now = grid(*words())
    for step in steps:
        before, lengths = now, [length + more for length, more in zip(lengths, step, strict=False)]
        plain = grid(*words())
        now = plain.grown_from(before)
        assert [now[index] for index in before] == [before[index] for index in before]
        assert sorted(now[index] for index in now) == sorted(plain[index] for index in plain)
    for index in now:
        assert list(now.find(now.values(index))) == [index] or not now.varying
        assert stored(now)[index] == now[index]


PPO = ["agent=dqn,ppo", "clip=0.1,0.2", "lr=1,2"]


def test_jobs_without_a_conditional_key_are_not_repeated():
    ours = grid(*PPO, when={"clip": {"agent": "ppo"}})
    assert [(index, " ".join(ours[index])) for index in ours] == [
        (0, "agent=dqn lr=1"),
        (1, "agent=dqn lr=2"),
        (4, "agent=ppo clip=0.1 lr=1"),
        (5, "agent=ppo clip=0.1 lr=2"),
        (6, "agent=ppo clip=0.2 lr=1"),
        (7, "agent=ppo clip=0.2 lr=2"),
    ]
    assert ours.num_jobs == 6
    assert ours.values(1) == {"agent": "dqn", "lr": "2"}
    assert list(ours.find({"clip": "0.1"})) == [4, 5]
    assert list(ours.find({"lr": "2"})) == [1, 5, 7]
    assert stored(ours) == ours


def test_conditions_may_list_values_nest_and_apply_to_zipped_keys():
    ours = grid("agent=dqn,ppo,a2c", "+gae=true,false", "lam=0.9,1", when={
        "gae": {"agent": ["ppo", "a2c"]}, "lam": {"gae": True},
    })  # fmt: skip
    assert sum(1 for _ in ours) == 1 + 2 * 3
    assert list(grid("agent=dqn", *PPO[1:], when={"clip": {"agent": "ppo"}})) == [0, 1], "a condition may be unused"
    zipped_keys = grid("agent=dqn,ppo", "a=1,1,2", "b=5,6,6", zip=[["a", "b"]], when={"b": {"agent": "ppo"}})
    assert [" ".join(zipped_keys[index]) for index in zipped_keys] == [
        "agent=dqn a=1", "agent=dqn a=2", "agent=ppo a=1 b=5", "agent=ppo a=1 b=6", "agent=ppo a=2 b=6",
    ]  # fmt: skip


def test_a_conditional_grid_keeps_its_numbers_under_growth_and_exclusion(tmp_path):
    when = {"clip": {"agent": "ppo"}}
    before = grid(*PPO, when=when, exclude=[{"clip": 0.1, "lr": 1}])
    assert list(before) == [0, 1, 5, 6, 7], "an exclusion by an absent key excludes nothing"
    now = recorded(before).going_on(grid("agent=dqn,ppo", "clip=0.1,0.2,0.3", "lr=1,2", when=when), [], tmp_path)
    assert [now[index] for index in before] == [before[index] for index in before]
    assert [" ".join(now[index]) for index in now][6:] == ["agent=ppo clip=0.3 lr=1", "agent=ppo clip=0.3 lr=2"]
    with pytest.raises(ConfigurationError, match=r"its job 0 is 'agent=dqn lr=1' and would be 'agent=dqn clip=0.1"):
        recorded(before).going_on(grid(*PPO), [], tmp_path)


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({"clp": {"agent": "ppo"}}, r"when: clp is not a key of the sweep; did you mean 'clip'\?"),
        ({"clip": {"agnt": "ppo"}}, r"when: agnt is not a key of the sweep; did you mean 'agent'\?"),
        ({"clip": {"agent": "poo"}}, r"agent=poo, which is not a value of agent; did you mean 'ppo'\? \(values: dqn"),
        ({"clip": {"agent": "ppo"}, "agent": {"clip": 0.1}}, r"depend on each other: (clip|agent) -> "),
    ],
)
def test_an_impossible_condition_is_rejected(when, message):
    with pytest.raises(ConfigurationError, match=message):
        grid(*PPO, when=when)


def test_a_sweep_stored_with_a_renamed_key_resumes(tmp_path):
    record = recorded(grid("tune.grace=1,2", "explorer.steps=8,16", exclude=[{"tune.grace": 1, "explorer.steps": 8}]))
    renamed = [{"tune.grace_period": 1, "explorer.fragment_steps": 8}]
    now = grid("tune.grace_period=1,2,3", "explorer.fragment_steps=8,16", exclude=renamed)
    assert list(record.going_on(now, [], tmp_path)) == [1, 2, 3, 4, 5]
    with pytest.raises(ConfigurationError, match=r"its job 0 is 'tune\.grace=1 .* and would be 'seed=1"):
        record.going_on(grid("seed=1,2", "a=1,2"), [], tmp_path)


def test_a_study_without_a_program_is_repeated_by_its_run_name(tmp_path):
    record = SweepRecord(spec=[], working_dir="/project", study={"run_name": "herd"})
    with pytest.raises(ConfigurationError, match=r"repeat its command in /project with run_name=herd$"):
        command_of(record, tmp_path)


def test_the_command_of_a_stored_sweep_has_the_current_keys(tmp_path):
    record = SweepRecord(
        program=["python", "walk.py"],
        spec=["tune.grace=1,2", "explorer.steps=8"],
        own=["hydra.sweeper.without=[{seed: 1}]", "hydra.launcher.env={}"],
    )
    words = ["hydra.sweeper.exclude=[{seed: 1}]", "hydra.launcher.runtime_env={}", "tune.grace_period=1,2"]
    assert command_of(record, tmp_path)[3:7] == [*words, "explorer.steps=8"], "an unknown key may belong to the project"
    config = {"explorer": {"steps": None}, "explore": {}, "bench": {}, "tune": {"grace": 1}}
    (tmp_path / "0/run").mkdir(parents=True)
    (tmp_path / "0/run/configs.json").write_text(json.dumps(config))
    assert command_of(record, tmp_path)[3:7] == [*words, "explorer.fragment_steps=8"]


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (["lr=0,1,2", "b=3,4"], "its job 0 is 'lr=1 b=3' and would be 'lr=0 b=3'"),
        (["lr=1,3", "b=3,4"], "its job 2 is 'lr=2 b=3' and would be 'lr=3 b=3'"),
        (["lr=1,2", "b=3,5,4"], "its job 1 is 'lr=1 b=4' and would be 'lr=1 b=5'"),
        (["b=3,4", "lr=1,2"], "its job 0 is 'lr=1 b=3' and would be 'b=3 lr=1'"),
        (["lr=1", "b=3,4"], "its job 2 is 'lr=2 b=3' and would be gone"),
        (["lr=1,2", "b=3,4", "c=5"], "its job 0 is 'lr=1 b=3' and would be 'lr=1 b=3 c=5'"),
        (["lr=1,2"], "its job 0 is 'lr=1 b=3' and would be 'lr=1'"),
    ],
)
def test_a_change_that_would_renumber_jobs_is_rejected(tmp_path, now, message):
    record = recorded(grid("lr=1,2", "b=3,4"))
    with pytest.raises(ConfigurationError) as error:
        record.going_on(grid(*now), now, tmp_path)
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "appended to its keys" in str(error.value)


def test_a_shuffled_axis_keeps_its_order(tmp_path):
    spec = ["lr=shuffle(range(0,50))", "a=1,2,3,4", "b=shuffle(5,6,7,8)"]
    before, *more = (grid(*spec, seeds=seeds, zip=[["a", "b"]]) for seeds in (2, 2, 3))
    recorded(before, spec).write(tmp_path)
    record = SweepRecord.of(tmp_path)
    for now in more:
        after = record.going_on(now, spec, tmp_path)
        assert after.size == now.size
        assert [after[index] for index in before] == [before[index] for index in before]
    with pytest.raises(ConfigurationError, match=r"its job \d+ is "):
        record.going_on(grid("lr=shuffle(range(1,51))", *spec[1:], seeds=2, zip=[["a", "b"]]), spec, tmp_path)
    other = ["lr=" + ",".join(map(str, range(50))), *spec[1:]]  # in ascending order, which is another sweep
    with pytest.raises(ConfigurationError, match="its job "):
        record.going_on(grid(*other, seeds=2, zip=[["a", "b"]]), other, tmp_path)


def test_the_record_omits_secrets_and_the_sweep_still_resumes(tmp_path):
    spec = ["db.password=hunter2,swordfish", "seed=0,1"]
    before = grid(*spec, exclude=[{"db.password": "hunter2", "seed": 1}])
    recorded(before).write(tmp_path)
    content = (tmp_path / SWEEP).read_text()
    assert "hunter2" not in content
    assert "swordfish" not in content
    assert SweepRecord.of(tmp_path).going_on(before, spec, tmp_path) == before


def test_texts_that_are_equal_as_numbers_differ_in_exclusions_and_conditions():
    words = ["tag='1.1','1.10'", "lr=1,2"]
    assert list(grid(*words, exclude=[{"tag": "1.10", "lr": "1"}])) == [0, 1, 3]
    assert [grid(*words, when={"lr": {"tag": "1.10"}})[index] for index in (0, 3)] == [
        ("tag='1.1'",),
        ("tag='1.10'", "lr=2"),
    ]
    for options in ({"exclude": [{"tag": 1.1}]}, {"when": {"lr": {"tag": 1.1}}}):
        with pytest.raises(ConfigurationError, match=r"tag=1\.1 .* the texts '1\.1', '1\.10'; quote one"):
            grid(*words, **options)


def test_a_planned_sweep_runs_with_the_spelling_of_the_program(tmp_path):
    planned, typed = recorded(grid("tag=1e3,010,x", "seed=0,1")), ["tag='1e3','010',x,y", "seed=0,1"]
    resumed = planned.going_on(grid(*typed), typed, tmp_path)
    assert (resumed[0], resumed[2], resumed[6]) == (
        ("tag='1e3'", "seed=0"),
        ("tag='010'", "seed=0"),
        ("tag=y", "seed=0"),
    )
    planned.write(tmp_path)
    JobRecord(index=0, overrides=list(resumed[0])).write(tmp_path / "0")  # as by `trieye sweep run`
    assert [job.values["tag"] for job in status_of(tmp_path)[::2]] == ["'1e3'", "010", "x"]
    with pytest.raises(ConfigurationError, match="its job 2 is 'tag=010 seed=0' and would be \"tag='011' seed=0\""):
        planned.going_on(grid("tag='1e3','011',x", "seed=0,1"), typed, tmp_path)


def test_the_record_contains_numbers_of_tokens():
    ours = grid("model.max_token=8,16", "hub.token=1,a", exclude=[{"model.max_token": 8}])
    stored_grid = ours.without_secrets()
    assert stored_grid.axes[0] == ours.axes[0]
    assert stored_grid.axes[1].places == (("***",), ("***",))
    assert stored_grid.without == ours.without


def test_a_directory_without_a_sweep_is_an_error(tmp_path):
    (tmp_path / "first").mkdir()
    recorded(grid("a=1,2")).write(tmp_path / "first")
    with pytest.raises(ConfigurationError, match=r"contains no sweep \(no sweep\.json\); there is one in first"):
        SweepRecord.of(tmp_path)
    for text in ('{"spec": [', '{"spec": [], "grid": {}}', '{"spec": [], "grid": {"axes": [{"keys": "x"}]}}'):
        (tmp_path / SWEEP).write_text(text)
        with pytest.raises(SerializationError, match=r"sweep\.json is damaged"):
            SweepRecord.of(tmp_path)
    with pytest.raises(ConfigurationError, match="this sweep has no grid"):
        SweepRecord(spec=["a=1,2"]).the_grid()


def test_tables_shorten_fractions_and_neither_integers_nor_ids():
    texts = {"0.00031622776601683794": "0.0003162", "1.23456789e-05": "1.235e-05"}
    texts |= {text: text for text in ("2026010101", "20260101_1", "1234567e12", "Infinity")}
    for value, text in texts.items():
        assert shown([f"+agent.lr={value}", "x=1"], ["agent.lr"]) == [f"lr={text}"]
