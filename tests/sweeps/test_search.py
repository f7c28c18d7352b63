"""Searches: drawn values, results reported to Optuna, and starts of a sweep one after another."""

import math
import re
import sys
from collections import Counter
from pathlib import Path

import optuna
import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

import trieye
from trieye.config import TrieyeConfig
from trieye.config.hydra import registration
from trieye.config.hydra.axes import Dimension, dimensions_of
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError
from trieye.sweeps.jobs import STOP_REASON, Done, Job, JobRecord
from trieye.sweeps.record import SweepRecord
from trieye.sweeps.search import OptunaSearch, RandomSearch, SearchQueue
from trieye.sweeps.space import SearchSpace
from trieye.sweeps.status import status_of

SPEC = ["x=interval(-1,1)", "lr=tag(log,interval(1e-5,1e-1))", "n=tag(int,log,interval(1,64))", "k=range(2,5)", "a=b,c"]


def optuna_search(mode="max", **options):
    """Return a search of Optuna for a number between 0 and 1."""
    space = SearchSpace.of([Dimension("x", low=0, high=1)])
    return OptunaSearch(space, SweeperConfig(kind="optuna", **options), mode)


def values(overrides):
    return dict(word.split("=", 1) for word in overrides)


def test_dimensions_are_parsed_with_hydras_grammar():
    x, lr, n, k, a, fixed, units = dimensions_of([*SPEC, "agent.depth=3", "u=int(interval(1,8))"])
    assert (x.low, x.high, x.is_int, x.is_log) == (-1, 1, False, False)
    assert (lr.low, lr.high, lr.is_log) == (1e-5, 1e-1, True)
    assert (n.low, n.high, n.is_int, n.is_log) == (1, 64, True, True)
    assert (k.low, k.high, k.is_int) == (2, 4, True)
    assert (a.choices, fixed.choices) == (("b", "c"), ("3",))
    assert (units.low, units.high, units.is_int) == (1, 8, True)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("x=interval(1,1)", "interval\\(a,b\\) needs a < b"),
        ("x=tag(log,interval(0,1))", "needs 0 < a < b"),
        ("x=interval(0,inf)", r"x=interval\(0,inf\): interval\(a,b\) needs a < b, and finite ends"),
        ("x=interval(-1e308,1e308)", "finite"),
        ("x=tag(int,interval(0.5,2))", "integers as its ends"),
        ("x=tag(lgo,interval(1,2))", "unknown tag 'lgo'"),
        ("x=tag(log,range(0,4))", r"range\(a,b\) needs 0 < a < b"),
        ("x=tag(lgo,range(1,4))", "unknown tag 'lgo'"),
    ],
)
def test_an_invalid_interval_is_rejected(word, message):
    with pytest.raises(ConfigurationError, match=message):
        dimensions_of([word])


@pytest.mark.parametrize("kind", ["random", "optuna"])
def test_proposals_are_within_bounds_and_cover_them(kind):
    dimensions = dimensions_of(SPEC)
    search = RandomSearch(SearchSpace.of(dimensions), 3)
    if kind == "optuna":
        search = OptunaSearch(SearchSpace.of(dimensions), SweeperConfig(kind="optuna", sampler="random", seed=3), "max")
    drawn = [values(search.ask(index)) for index in range(200)]
    assert all(-1 <= float(values["x"]) <= 1 for values in drawn)
    assert all(1e-5 <= float(values["lr"]) <= 1e-1 for values in drawn)
    assert {values["k"] for values in drawn} == {"2", "3", "4"}
    assert {values["a"] for values in drawn} == {"b", "c"}
    assert {1, 64} <= {int(values["n"]) for values in drawn} <= set(range(1, 65))
    small = sum(float(values["lr"]) < 1e-3 for values in drawn)
    assert 75 < small < 125  # half of the orders of magnitude
    assert sum(int(values["n"]) <= 8 for values in drawn) > 75


def test_a_random_search_proposes_the_same_values_in_any_order():
    dimensions = dimensions_of(SPEC)
    first = [RandomSearch(SearchSpace.of(dimensions), 0).ask(index) for index in range(5)]
    assert [RandomSearch(SearchSpace.of(dimensions), 0).ask(index) for index in reversed(range(5))] == first[::-1]
    assert RandomSearch(SearchSpace.of(dimensions), 1).ask(0) != first[0]


def trained(search, indices, reach):
    for index in indices:
        overrides = search.ask(index)
        search.tell(index, overrides, [reach(float(values(overrides)["x"]))], is_pruned=False)


def test_tpe_approaches_the_optimum_using_results_of_earlier_starts():
    dimensions, options = [Dimension("x", low=-10, high=10)], SweeperConfig(kind="optuna", seed=1)
    reach = lambda x: -((x - 3) ** 2)  # noqa: E731
    begun = OptunaSearch(SearchSpace.of(dimensions), options, "max")
    trained(begun, range(40), reach)
    later = OptunaSearch(SearchSpace.of(dimensions), options, "max")
    for trial in begun._study.trials:  # of the first start
        later.tell(trial.number, [f"x={trial.params['x']!r}"], [trial.value], is_pruned=False)
    trained(later, range(40, 50), reach)
    proposed = [trial.params["x"] for trial in later._study.trials[40:]]
    assert sum(abs(x - 3) < 2 for x in proposed) >= 5  # of ten; chance would give two
    fresh = [float(values(OptunaSearch(SearchSpace.of(dimensions), options, "max").ask(0))["x"])]
    assert abs(fresh[0] - 3) > 2


def test_a_restarted_search_receives_earlier_results_first_and_once(tmp_path):
    class Heard(RandomSearch):
        def __init__(self):
            super().__init__(SearchSpace.of([Dimension("x", low=0, high=1)]), 0)
            self.heard = []

        def tell(self, index, overrides, values, *, is_pruned):
            self.heard.append((index, overrides, values, is_pruned))

    search, states = Heard(), ["completed", "failed", "pruned", "lost"]
    begun = {
        number: JobRecord(index=number, overrides=[f"x=0.{number}"], state=state, objective=float(number))
        for number, state in enumerate(states)
    }
    source = SearchQueue(search, 5, begun, tmp_path, None)
    reported = [(0, ("x=0.0",), [0.0], False), (2, ("x=0.2",), [2.0], True)]
    assert search.heard == reported  # even if a relaunch selects only the other jobs
    assert [source.next().index for _ in range(5)] == list(range(5))
    for index in range(4):
        source.ended(Job(index, (f"x=0.{index}",)), Done(index, 7.0))
    assert search.heard == [*reported, (1, ("x=0.1",), [7.0], False), (3, ("x=0.3",), [7.0], False)]


def test_failed_and_out_of_bounds_results_are_ignored():
    search = optuna_search("min")
    search.tell(0, ["x=7.5"], [1.0], is_pruned=False)
    search.tell(1, ["y=0.5"], [1.0], is_pruned=False)
    search.tell(2, search.ask(2), [], is_pruned=False)
    search.tell(3, search.ask(3), [math.nan], is_pruned=False)
    states = [trial.state.name for trial in search._study.trials]
    assert states == ["FAIL", "FAIL"]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("offset", [0, 7], ids=["equal steps", "unequal steps"])
def test_the_median_pruner_stops_jobs_that_are_worse_than_the_median(sign, offset):
    search = optuna_search("max" if sign == 1 else "min", pruner="median")
    for index in range(4):
        overrides = search.ask(index)
        points = [(100 * number + index * offset, sign * (10.0 + number)) for number in range(1, 6)]
        assert not search.reason_to_prune(index, *points[1], max(sign * value for _, value in points[:2]) * sign)
        search.report(index, dict(points))
        search.tell(index, overrides, [sign * 15.0], is_pruned=False)
    search.ask(4)
    assert search.reason_to_prune(4, 99, sign * 1.0, sign * 1.0) is None  # no other job has a point so far
    reason = "best 10.9 < 11, the median of 4 jobs up to step 150"
    if offset:  # the last job has no point before step 121
        assert search.reason_to_prune(4, 120, sign * 1.0, sign * 1.0) is None
    expected = reason if sign == 1 else "best -10.9 > -11, the median of 4 jobs up to step 150"
    assert search.reason_to_prune(4, 150, sign * 10.5, sign * 10.9) == expected
    search.ask(5)
    # the others are at 13 there, and at 14 afterwards
    assert search.reason_to_prune(5, 390, sign * 14.5, sign * 14.5) is None
    # its best value counts; the others are at 14
    assert search.reason_to_prune(5, 450, sign * 12.0, sign * 14.5) is None


def test_the_pruner_asha_states_how_many_jobs_pass_a_rung():
    search = optuna_search(pruner="asha")
    first = search.ask(0)
    assert search.reason_to_prune(0, 100, 10.0, 10.0) is None
    search.tell(0, first, [10.0], is_pruned=False)
    for index in range(1, 9):
        search.ask(index)
        reason = search.reason_to_prune(index, 1, float(index), float(index))
    assert reason is None
    search.ask(9)
    assert search.reason_to_prune(9, 1, 2.0, 3.0) == "2 at step 1 is not among the best 2 of 9 jobs there"


@pytest.mark.parametrize("pruner", ["median", "asha"])
def test_no_job_is_pruned_before_grace_steps(pruner):
    reasons = []
    for grace_steps in (0, 50):
        search = optuna_search(pruner=pruner, grace_steps=grace_steps)
        for index in range(5):
            overrides = search.ask(index)
            search.report(index, dict.fromkeys(range(1, 101), 9.0))
            search.tell(index, overrides, [9.0], is_pruned=False)
        search.ask(5)
        reasons.append([search.reason_to_prune(5, step, 1.0, 1.0) is not None for step in (30, 49, 50)])
    assert reasons == [[True, True, True], [False, False, True]]


def test_a_restarted_pruner_asha_compares_with_the_rungs_of_recorded_jobs():
    search = optuna_search(pruner="asha")
    for index in range(9):  # as a restarted sweep reports its recorded jobs; every other one was pruned
        overrides = search.resume(index, [f"x={index / 10}"])
        search.report(index, {40: 9.0, 4: float(index), 1: 5.0, 100: 9.0})
        search.tell(index, overrides, [9.0], is_pruned=index % 2 == 1)
    search.ask(9)
    assert search.reason_to_prune(9, 2, 6.0, 6.0) is None  # the others have 5 at the rung of step 1
    assert search.reason_to_prune(9, 5, 6.0, 6.0) == "6 at step 5 is not among the best 2 of 9 jobs there"


def test_long_curves_are_thinned_for_pruners(monkeypatch):
    def counting_report(trial, value, step):
        reported.update([trial.number])
        report(trial, value, step)

    reported, report = Counter(), optuna.trial.Trial.report
    monkeypatch.setattr(optuna.trial.Trial, "report", counting_report)
    search = optuna_search(pruner="median")
    for index in range(5):
        overrides = search.ask(index)
        search.report(index, {step: index + step // 1000 / 100 for step in range(1, 20_001)})
        search.tell(index, overrides, [index + 0.2], is_pruned=False)
    search.ask(5)
    assert max(reported.values()) <= 1001  # with all points, a report takes seconds: its time is quadratic
    assert search.reason_to_prune(5, 10_500, 2.0, 2.0) == "best 2 < 2.1, the median of 5 jobs up to step 10500"
    assert search.reason_to_prune(5, 30_000, 2.0, 2.0) == "best 2 < 2.2, the median of 5 jobs up to step 30000"


def test_a_queue_reads_the_points_of_running_and_completed_jobs(tmp_path):
    class Strict(RandomSearch):
        def reason_to_prune(self, index, step, value, best):
            return f"{value:g} at step {step}, best {best:g}" if index == 1 else None

        def report(self, index, points):
            curves[index] = points

    config = TrieyeConfig(runtime={"kind": "local"}, sinks={}, persistence={"root_data_dir": str(tmp_path / "data")})
    with trieye.Run(config) as run:
        for step, value in enumerate((5.0, 9.0, 2.0), 1):
            run.log("eval/return", value, step=step)
    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / "run").symlink_to(run.dir)
    for counts, objective in (("max", 9.0), ("last", 2.0), ("min", 2.0)):
        curves = {}
        queue = SearchQueue(Strict(SearchSpace.of([]), 0), 2, {}, tmp_path, "eval/return", "max", counts)
        jobs = [queue.next(), queue.next()]
        pruned = Done(1, objective, is_pruned=True, reason="2 at step 3, best 9")
        assert queue.to_prune(jobs) == {1: pruned}
        assert queue.to_prune(jobs) == {}  # no new points
        assert queue.rated(Done(1, is_pruned=True, reason=pruned.reason)) == pruned
        queue.ended(jobs[0], Done(0, 9.0))
        assert curves == {0: {1: 5.0, 2: 9.0, 3: 2.0}}  # every point, though `to_prune` saw one


def test_texts_and_null_among_the_params_of_a_config_are_no_other_values(sweep, monkeypatch):
    monkeypatch.setattr(registration, "current", registration.Registration(TrieyeConfig))
    sweep.values = "run_name: a\nnote: x\nlayers: []\n"
    params = "hydra.sweeper.params={run_name:'1e3,007',note:null,layers:[true,'1']}"
    configs = []
    jobs = sweep.search(configs.append, params)
    assert jobs[0] == ("run_name='1e3'", "note=null", "layers=[True,'1']")
    assert [(one.run_name, one.note, one.layers) for one in configs] == [
        (name, None, [True, "1"]) for name in ("1e3", "007")
    ]


def test_a_pruned_job_prints_why_it_stops_and_no_advice_to_restart_it(sweep, tmp_path):
    def task(cfg):
        config = TrieyeConfig(
            app_name="app", run_name=f"run{HydraConfig.get().job.num}", runtime={"kind": "local"},
            persistence={"root_data_dir": str(tmp_path / "data")}, stats={"processing_interval_seconds": 0.1},
            sinks={"mlflow": {"enabled": False}, "tensorboard": {"enabled": False}, "console": {"enabled": False}},
        )  # fmt: skip
        is_last = HydraConfig.get().job.num == 4
        with trieye.Run(config) as run:
            for _ in run.steps(None if is_last else 2):
                run.log({"eval/return": 1.0 if is_last else 9.0})
                if run.save_due:
                    run.save(weights=[1.0])
        return 9.0

    sweep.values = "loop: {objective: eval/return}\n"
    options = ("kind=optuna", "sampler=random", "pruner=median")
    words = ["+x=interval(0,1)", *(f"hydra.sweeper.{option}" for option in options), "hydra.mode=MULTIRUN"]
    sweep.search(task, *words, "hydra.sweeper.num_trials=4", "hydra.launcher.isolate=none")
    sweep.search(task, *words, "hydra.sweeper.num_trials=5", "hydra.launcher.isolate=process")
    assert sweep.record(4).state == "pruned"
    output = (sweep.directory / "4/output.log").read_text()
    assert output.count("pruned: best 1 < 9, the median of 4 jobs") >= 2  # when it is asked to stop, and at its end
    assert not [word for word in ("Ctrl-C", "SIGINT", "restart", "interrupted") if word in output], output
    assert not (sweep.directory / "4" / STOP_REASON).exists()


def test_a_missing_optuna_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'trieye\[optuna\]', or set hydra.sweeper.kind=random"):
        OptunaSearch(SearchSpace.of([]), SweeperConfig(kind="optuna"), "max")


def proposals(search, indices):
    proposed = []
    for index in indices:
        proposed.append(search.ask(index))
        search.tell(
            index, proposed[-1], [-sum(float(value) ** 2 for value in values(proposed[-1]).values())], is_pruned=False
        )
    return proposed


@pytest.mark.long
@pytest.mark.parametrize(("sampler", "num"), [("tpe", 16), ("random", 8), ("gp", 8), ("cmaes", 16)])
def test_a_restarted_sampler_continues_its_sequence_of_proposals(sampler, num):
    dimensions = dimensions_of(["x=interval(-1,1)", "lr=tag(log,interval(1e-5,1e-1))", "n=range(1,64)"])
    options = SweeperConfig(kind="optuna", sampler=sampler, seed=3)
    uninterrupted = proposals(OptunaSearch(SearchSpace.of(dimensions), options, "max"), range(num))
    assert len(set(uninterrupted)) == num
    restarted = OptunaSearch(SearchSpace.of(dimensions), options, "max")
    for index, overrides in enumerate(uninterrupted[: num - 4]):
        objective = -sum(float(value) ** 2 for value in values(overrides).values())
        restarted.tell(index, overrides, [objective], is_pruned=False)
    assert proposals(restarted, range(num - 4, num)) == uninterrupted[num - 4 :]


def test_discrete_values_repeat_only_after_an_identical_job_completed():
    search = OptunaSearch(SearchSpace.of(dimensions_of(["a=b,c", "k=range(0,4)"])), SweeperConfig(kind="optuna"), "max")
    running = [search.ask(index) for index in range(8)]
    assert len(set(running)) == 8
    search.tell(5, running[5], [1.0], is_pruned=False)
    search.tell(6, running[6], [], is_pruned=False)
    assert {search.ask(index) for index in range(8, 12)} == {running[5]}


@pytest.mark.long
def test_a_search_reports_ties_and_duplicate_values(sweep, capsys):
    words = ["hydra.sweeper.kind=optuna", "hydra.sweeper.num_trials=3"]
    sweep.search(lambda _: 90.4, "+x=interval(0,1)", *words)
    output = " ".join(capsys.readouterr().err.split())
    assert "3 of 3 trials with different values have the objective 90.4" in output
    assert "loop.objective" in output
    assert "repeat" not in output
    sweep.directory = sweep.directory.with_name("discrete")
    sweep.search(lambda _: 90.4, "+x=0,1", *words)
    output = capsys.readouterr().err
    assert "1 of 3 trials repeat the values of an earlier one" in output
    assert "different values" not in output


def test_a_resumed_search_takes_its_secrets_from_the_command_line_and_needs_them(sweep):
    def needs_key(cfg):
        assert cfg.api_key == "sk-7a1f"
        if not (sweep.directory / "was_interrupted").exists():
            (sweep.directory / "was_interrupted").touch()
            raise KeyboardInterrupt
        return cfg.x

    words = ["+api_key=sk-7a1f", "+x=interval(0,1)", "hydra.sweeper.kind=optuna", "hydra.sweeper.num_trials=2"]
    with pytest.raises(KeyboardInterrupt):
        sweep.search(needs_key, *words)
    begun = sweep.record(0).overrides
    assert begun[0] == "+api_key=***"
    assert sweep.search(needs_key, *words)[0] == tuple(begun)
    assert sweep.states(2) == ["completed"] * 2
    with pytest.raises(ConfigurationError, match=r"job \d: .*add \+api_key=VALUE"):
        sweep.search(needs_key, *words[1:])


def test_a_search_resumes_with_numbers_whose_keys_end_like_secrets(sweep):
    words = ["+time_signature=3,4", "+num_token=range(8,64)", "+token=tag(log,interval(1,2))", "+sig=interval(0,1)"]
    words += ["hydra.sweeper.kind=random"]
    drawn = sweep.search(lambda cfg: cfg.sig, *words, "hydra.sweeper.num_trials=1")
    assert not any("***" in word for word in drawn[0])
    assert sweep.search(lambda cfg: cfg.sig, *words, "hydra.sweeper.num_trials=2")[:1] == drawn


@pytest.mark.parametrize("launcher", ["trieye", "basic", "trieye without its sweeper"])
@pytest.mark.parametrize("key", ["api_key", "db.password.main"])
def test_files_and_output_of_a_sweep_under_plain_hydra_contain_no_secret(sweep, launcher, key, capfd):
    def task(cfg):
        received.append(OmegaConf.select(cfg, key))

    received, names, words = [], {"config.yaml", "hydra.yaml", "overrides.yaml"}, [f"+{key}=sk-7a1f,sk-7a2f"]
    if launcher in ("trieye", "basic"):
        names.add("multirun.yaml")
        sweep.search(task, *words, f"hydra/launcher={launcher}")
    else:
        sweep.launch(task, [f"+{key}=sk-7a1f", f"+{key}=sk-7a2f"], "hydra.launcher.isolate=none")
    assert received == ["sk-7a1f", "sk-7a2f"]
    files = [path for path in sweep.directory.rglob("*") if path.is_file()]
    assert names <= {path.name for path in files}
    assert [path for path in files if b"sk-7a" in path.read_bytes()] == []
    assert "sk-7a" not in "".join(capfd.readouterr()) or launcher == "basic"  # Hydra's launcher prints overrides


WHEN = {"clip": {"agent": "ppo"}, "gae": {"agent": "ppo"}, "lam": {"gae": True}}
CONDITIONAL = ["clip=interval(0.1,0.3)", "lam=interval(0,1)", "gae=true,false", "agent=dqn,ppo", "lr=interval(0,1)"]


@pytest.mark.parametrize("kind", ["random", "tpe"])
def test_a_conditional_dimension_is_drawn_only_where_it_exists(kind):
    space = SearchSpace.of(dimensions_of([*CONDITIONAL, "eps=7"]), {**WHEN, "eps": {"agent": "dqn"}})
    search = RandomSearch(space, 0)
    if kind != "random":
        search = OptunaSearch(space, SweeperConfig(kind="optuna", sampler=kind), "max")
    drawn = []
    for index in range(20):
        overrides = search.ask(index)
        drawn.append(values(overrides))
        search.tell(index, overrides, [float(drawn[-1]["lr"])], is_pruned=False)
    keys = {frozenset(values) for values in drawn}
    always, ppo = {"agent", "lr"}, {"agent", "lr", "clip", "gae"}
    assert keys == {frozenset(keys) for keys in (always | {"eps"}, ppo, ppo | {"lam"})}
    assert all(("lam" in values) == (values.get("gae") == "True") for values in drawn)
    resumed = OptunaSearch(space, SweeperConfig(kind="optuna"), "max")
    for index, overrides in enumerate(drawn):
        words = tuple(f"{key}={value}" for key, value in overrides.items())
        assert resumed.resume(index, words) == words
        resumed.tell(index, words, [1.0], is_pruned=False)
    assert [trial.params.keys() for trial in resumed._study.trials] == [values.keys() - {"eps"} for values in drawn]


def test_conditions_of_a_search_are_checked_and_need_discrete_keys():
    with pytest.raises(ConfigurationError, match="clip depends on lr, which has an interval"):
        SearchSpace.of(dimensions_of(CONDITIONAL), {"clip": {"lr": 0.5}})
    space = SearchSpace.of(dimensions_of(["n=range(1,4)", "units=interval(0,1)"]), {"units": {"n": [2, 3]}})
    assert space.order == ["n", "units"]


def test_a_larger_budget_runs_completed_jobs_further(sweep, capfd):
    ran = []

    def task(cfg):
        ran.append((HydraConfig.get().job.num, cfg.epochs))
        return cfg.x

    words = ["+x=interval(0,1)", "hydra.sweeper.kind=random", "hydra.sweeper.budget=[epochs]"]
    first = sweep.search(task, *words, "+epochs=1", "hydra.sweeper.num_trials=1")
    raised = sweep.search(task, *words, "+epochs=2", "hydra.sweeper.num_trials=2")
    assert "running 1 completed job further with +epochs=2" in capfd.readouterr().err
    assert ran == [(0, 1), (0, 2), (1, 2)]
    assert raised[0][0] == first[0][0]
    with pytest.raises(ConfigurationError, match="epochs=1: the sweep has jobs with epochs=2, and can only raise its"):
        sweep.search(task, *words, "+epochs=1", "hydra.sweeper.num_trials=2")
    sweep.search(task, *words, "+epochs=2", "hydra.sweeper.num_trials=1")
    output = capfd.readouterr().err
    assert "has 2 trials already; hydra.sweeper.num_trials=1 adds none" in output
    assert "2 completed before" in output
    assert SweepRecord.of(sweep.directory).size == 2, "a smaller number hides no job"
    assert len(ran) == 3


@pytest.mark.parametrize("separator", ["_", "/"])
def test_a_larger_budget_runs_a_job_further_in_the_output_directory_of_its_first_attempt(sweep, tmp_path, separator):
    def task(cfg):
        return len(list(Path(HydraConfig.get().runtime.output_dir).glob("saved*")))

    def run(epochs):
        sweep.search(task, "x=1", f"epochs={epochs}", "hydra.sweeper.budget=[epochs]", f"hydra.sweep.subdir='{subdir}'")
        return sweep.record(0).objective

    sweep.values = "epochs: 1\nx: 0\n"
    subdir = f"${{hydra.job.num}}{separator}${{hydra.job.override_dirname}}"
    assert run(1) == 0
    (sweep.directory / f"0{separator}epochs=1,x=1/saved").touch()
    assert run(2) == 1
    sweep.directory = sweep.directory.rename(tmp_path / "moved")
    assert run(3) == 1
    claim_of_another_job = tmp_path / "elsewhere/.job.json"
    claim_of_another_job.parent.mkdir()
    claim_of_another_job.symlink_to(tmp_path / "sweep/0/status.json")
    (sweep.directory / "0/output").unlink()
    (sweep.directory / "0/output").symlink_to(claim_of_another_job.parent)
    (claim_of_another_job.parent / "saved").touch()
    assert run(4) == 0


def test_a_budget_below_the_configured_one_of_earlier_jobs_is_rejected(sweep):
    sweep.values = "base: 10\nepochs: ${base}\nx: 0\n"
    words = ["x=1", "hydra.sweeper.budget=[epochs]"]
    sweep.search(lambda cfg: cfg.x * cfg.epochs, *words)
    with pytest.raises(ConfigurationError, match="epochs=5: the sweep has jobs with epochs=10, and can only raise its"):
        sweep.search(lambda cfg: cfg.x * cfg.epochs, *words, "epochs=5")
    assert sweep.record(0).objective == 10
    sweep.search(lambda cfg: cfg.x * cfg.epochs, *words, "epochs=20")
    assert sweep.record(0).objective == 20


def test_a_grid_grows_and_raises_its_budget_in_one_start(sweep):
    task, words = lambda cfg: cfg.x + cfg.seed, ["hydra.sweeper.budget=[epochs]"]
    sweep.search(task, "+x=1", "+seed=0", *words)
    grown = sweep.search(task, "+epochs=9", "+x=1", "+seed=0,1", *words)
    assert grown == [("+epochs=9", "+x=1", f"+seed={seed}") for seed in (0, 1)]
    assert [sweep.record(index).attempt for index in range(2)] == [2, 1]
    with pytest.raises(ConfigurationError, match="a sweep can only grow"):
        sweep.search(task, "+x=1", "+seed=0,1")  # epochs is not its budget, so it may not vanish
    for options in (words, []):
        with pytest.raises(ConfigurationError, match=r"repeat (it|\+epochs=9)"):
            sweep.search(task, "+x=1", "+seed=0,1,2", *options)
    assert sweep.states(2) == ["completed"] * 2


def test_a_resumed_search_rejects_incompatible_options(sweep):
    options = ["hydra.sweeper.kind=optuna", "hydra.sweeper.num_trials=1"]
    sweep.search(lambda cfg: cfg.x, "+x=interval(0,1)", "+a=b,c", *options)
    before = SweepRecord.of(sweep.directory)
    same = ["+x=interval(0,1)", "+a=b,c"]
    for words, parts in (
        (["+x=interval(0,0.5)", "+a=b,c"], "x=interval(0,1), and would have x=interval(0,0.5)"),
        (["+x=tag(log,interval(0.1,2))", "+a=b,c"], "would have x=tag(log,interval(0.1,2))"),
        ([*same, "+y=interval(0,1)"], "no y, and would have one"),
        (["+x=interval(0,1)"], "a=b,c, and would have a=None"),
        (["+x=interval(0,1)", "+a=c,b"], "a=b,c, and would have a=c,b"),
        ([*same, "hydra.sweeper.seed=3"], "seed=0, and would have hydra.sweeper.seed=3"),
        ([*same, "hydra.sweeper.sampler=random"], "sampler=tpe, and would have hydra.sweeper.sampler=random"),
        ([*same, "hydra.sweeper.kind=random"], "kind=optuna, and would have hydra.sweeper.kind=random"),
        (["+x=1,2", "+a=b,c", "hydra.sweeper.kind=grid"], "kind=optuna, and would have hydra.sweeper.kind=grid"),
    ):
        with pytest.raises(ConfigurationError, match=f"{re.escape(parts)}.* wider intervals and appended values"):
            sweep.search(lambda cfg: cfg.x, *options, *words)
        assert SweepRecord.of(sweep.directory) == before, words


def test_a_resumed_search_may_have_a_larger_space(sweep, capfd):
    options = ["hydra.sweeper.kind=random", "hydra.sweeper.num_trials=1"]
    first = sweep.search(lambda cfg: cfg.x, "+x=interval(0,1)", "+a=b,c", *options)
    grown = sweep.search(lambda cfg: cfg.x, "+x=interval(-9,9)", "+a=b,c,d", *options, "hydra.sweeper.num_trials=3")
    assert grown[:1] == first
    assert any(abs(float(values(job)["+x"])) > 1 for job in grown)
    assert "x=interval(-9,9) in new trials, interval(0,1) in earlier ones" in capfd.readouterr().err


@pytest.mark.long
def test_a_resumed_search_may_have_the_new_options_of_a_group(sweep):
    group = sweep.directory.with_name("conf") / "agent"
    group.mkdir(parents=True)
    options = ["hydra.sweeper.kind=random", "hydra.launcher.isolate=none"]
    for names, spec, num in (("ab", "a,b", 1), ("c", "glob(*)", 4)):
        for name in names:
            (group / f"{name}.yaml").write_text(f"name: {name}\n")
        jobs = sweep.search(lambda _: 1, f"+agent={spec}", *options, f"hydra.sweeper.num_trials={num}")
    assert "c" in {values(job)["+agent"] for job in jobs}


@pytest.mark.long
def test_a_resumed_sweep_keeps_its_mode(sweep, capfd):
    options = ["+x=interval(0,1)", "hydra.sweeper.kind=optuna"]
    sweep.search(lambda cfg: cfg.x, *options, "hydra.sweeper.num_trials=1", "hydra.sweeper.mode=min")
    sweep.search(lambda cfg: cfg.x, *options, "hydra.sweeper.num_trials=2")
    record = SweepRecord.of(sweep.directory)
    assert (record.mode, record.size) == ("min", 2)
    objectives = [job.objective for job in status_of(sweep.directory)]
    assert record.summary["objective"] == min(objectives)
    with pytest.raises(ConfigurationError, match=r"sweeper\.mode=max: it was min in earlier starts"):
        sweep.search(lambda cfg: cfg.x, *options, "hydra.sweeper.num_trials=2", "hydra.sweeper.mode=max")
    sweep.directory = sweep.directory.with_name("grid")
    sweep.search(lambda cfg: [cfg.x, 1], "+x=1", "hydra.sweeper.mode=[max,min]")
    sweep.search(lambda cfg: [cfg.x, 1], "+x=1,2")
    assert SweepRecord.of(sweep.directory).summary["pareto_optimal"] == [1]
    capfd.readouterr()
    sweep.search(lambda cfg: [cfg.x, 1], "+x=1,2", "hydra.sweeper.mode=[min,min]")
    assert SweepRecord.of(sweep.directory).summary["pareto_optimal"] == [0]
    assert "mode=[min,min]: it was [max,min] in earlier starts of the sweep" in capfd.readouterr().err
