"""Fields with one of several models: composition, help, validation and error messages."""

import sys
from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

import trieye
from tests.config.conftest import Project
from trieye.config import TrieyeConfig
from trieye.config.base import StrictModel, Variants
from trieye.config.hydra.loader import ConfigSource, opened
from trieye.config.hydra.preflight import Preflight
from trieye.exceptions import ConfigurationError


class Net(StrictModel):
    width: int = Field(default=8, ge=1)
    depth: int = Field(default=2, ge=1)


class DQN(StrictModel):
    """Deep Q-learning."""

    kind: Literal["dqn"] = "dqn"
    lr: float = Field(default=1e-3, gt=0, description="Step size of DQN.")
    epsilon: float = Field(default=0.1, ge=0, le=1, description="Random actions.")
    dqn: int = Field(default=1, ge=1, description="A key that is called as the kind is.")


class PPO(StrictModel):
    """Proximal policy optimization."""

    kind: Literal["ppo"] = "ppo"
    lr: float = Field(default=3e-4, gt=0, le=0.5, description="Step size of PPO.")
    lam: float = Field(default=0.95, ge=0, description="Of the advantages.")
    net: Net = Field(default_factory=lambda: Net(width=64), description="The network.")

    @model_validator(mode="after")
    def _lam_is_small(self) -> Self:
        if self.lam > 1:
            raise ValueError(f"lam ({self.lam}) is above 1")
        return self


class Linear(StrictModel):
    start: float
    end: float = 0.0


def _even(agent: Any) -> Any:
    if getattr(agent, "epsilon", None) == 0.5:
        raise PydanticCustomError("a_coin", "an epsilon of 0.5 is a coin")
    return agent


class TrainConfig(TrieyeConfig):
    agent: Annotated[DQN | PPO, AfterValidator(_even)] = Field(
        default_factory=lambda: DQN(lr=0.01), discriminator="kind", description="The learning algorithm."
    )
    critic: DQN | PPO | None = Field(default=None, description="The critic.")
    rate: float | Linear = Field(default=0.1, description="A number, or a line.")

    @model_validator(mode="after")
    def _all_fits(self) -> Self:
        if self.seed == 13:
            raise ValueError("seed 13 brings bad luck; choose another seed")
        return self


class NoDefault(TrieyeConfig):
    agent: DQN | PPO


PRIMARY = "  - agent: {}\n  - _self_\n"


@pytest.fixture(params=["agent: DQN | PPO = DQN(...)", "agent: DQN | PPO"])
def config_type(request):
    return TrainConfig if "=" in request.param else NoDefault


@pytest.fixture
def variants(project):
    """A project with typical option files: one sets its kind, two have the name of their kind."""
    project.write("agent/dqn", "# Q-learning.\n")
    project.write("agent/ppo", "lam: 0.9\n")
    project.write("agent/big", "kind: ppo\nnet:\n  width: 512\n")
    project.write("agent/unclear", "lr: 0.1\n")
    text = (project.conf / "train.yaml").read_text()
    project.write("train", text.replace("  - _self_\n", PRIMARY.format("dqn")))
    return project


def composed(project: Project, *overrides: str, config_type: type[TrieyeConfig] = TrainConfig) -> Any:
    return trieye.compose(overrides, config_path=project.conf, config_type=config_type).agent


@pytest.mark.long
def test_the_option_or_the_kind_selects_the_model_and_overrides_change_it(variants, config_type):
    def compose(*overrides: str) -> Any:
        return composed(variants, *overrides, config_type=config_type)

    assert compose("agent=dqn") == DQN(lr=0.01 if config_type is TrainConfig else 1e-3)
    assert compose("agent=ppo", "agent.lr=0.2", "agent.net.depth=5") == PPO(lam=0.9, lr=0.2, net=Net(width=64, depth=5))
    assert compose("agent=big") == PPO(net=Net(width=512))
    assert compose("agent.kind=ppo") == PPO()


@pytest.mark.long
def test_without_a_choice_the_default_of_the_field_applies(project):
    assert composed(project, "agent.epsilon=0.3") == DQN(lr=0.01, epsilon=0.3)
    assert composed(project, "agent.kind=ppo") == PPO()


def test_defaults_of_a_variant_can_be_interpolated(variants):
    config = trieye.compose(
        ["agent=ppo", "rate=${agent.lr}", "seed=${agent.net.width}"], config_path=variants.conf, config_type=TrainConfig
    )
    assert (config.rate, config.seed) == (3e-4, 64)


@pytest.mark.long
def test_a_field_accepts_a_model_or_a_plain_value(project):
    def rate(*overrides: str) -> Any:
        return trieye.compose(overrides, config_path=project.conf, config_type=TrainConfig).rate

    assert [rate(), rate("rate=0.5"), rate("rate={start: 1}")] == [0.1, 0.5, Linear(start=1)]


WHEN = "hydra.sweeper.when={agent.epsilon: {agent: dqn}}"
WHEN_TWO_KEYS = "hydra.sweeper.when={agent.epsilon: {agent: dqn, seed: 1}}"
WHEN_BOTH = "hydra.sweeper.when={agent.epsilon: {agent: dqn}, agent.lam: {agent: ppo}}"
ZIP = "hydra.sweeper.zip=[[agent,agent.lr]]"
EXCLUDE_RANDOM = "hydra.sweeper.exclude=[{agent.epsilon: 0.2, agent.lr: 0.1}]"
EXCLUDE_PPO = "hydra.sweeper.exclude=[{agent: ppo, agent.lr: 0.1}, {agent: ppo, agent.lr: 0.7}, {seed: 30}]"


def check_sweep(variants: Project, typed: list[str]) -> None:
    with opened(ConfigSource(str(variants.conf), "train"), TrainConfig, run_name="r") as loader:
        Preflight(loader, TrainConfig).compose(["hydra/sweeper=trieye", *typed], multirun=True)


SWEEPS = [
    ["agent=dqn,ppo", "agent.lr=0.7,0.1", "agent.lam=0.9", "agent.epsilon=0.1", ZIP, WHEN_BOTH],
    ["agent=ppo,dqn", "agent.lr=0.1,0.7", "seed=30,31", "agent.epsilon=0.1", EXCLUDE_PPO],
]
MORE_SWEEPS = [
    ["agent=dqn,ppo,big", "agent.lr=0.1,0.2"],
    ["agent.kind=dqn,ppo"],
    ["agent=ppo,dqn", "agent.epsilon=interval(0,1)", WHEN, "hydra.sweeper.kind=random"],
    ["+agent@critic=ppo,dqn", "++critic.lr=0.2,0.7", "hydra.sweeper.zip=[[agent@critic,critic.lr]]"],
    ["agent=dqn,ppo", "agent.lr=0.7,0.1", "seed=1,2", "hydra.sweeper.zip=[[seed,agent.lr],[agent,seed]]"],
    ["seed=1,2", "tags.n=3", "hydra.sweeper.kind=random", "hydra.sweeper.num_trials=${tags.n}"],
]


@pytest.mark.parametrize("typed", [*SWEEPS, *(pytest.param(typed, marks=pytest.mark.long) for typed in MORE_SWEEPS)])
def test_values_of_a_sweep_are_checked_in_jobs_that_it_has(variants, typed):
    check_sweep(variants, typed)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["agent=dqn,ppo", "agent.lr=0.1,0.7", ZIP], r"^agent\.lr=0\.7: expected a number > 0 and <= 0\.5"),
        (["agent=ppo,dqn", "seed=0,1", "agent.epsilon=2", WHEN_TWO_KEYS], r"^agent\.epsilon=2: "),
        (["agent=dqn,none", "agent.epsilon=0.1,0.2", "agent.lr=0.1,0.2", WHEN, EXCLUDE_RANDOM], r"^agent=none: "),
        (["agent=ppo", "seed=30,31", "agent.lr=0.1,0.7", "hydra.sweeper.exclude=[{seed: 30}]"], r"^agent\.lr=0\.7"),
        (["agent=dqn,ppo", "agent.epsilon=0,1", "hydra.sweeper.when={agent.epsilom: {agent: dqn}}"], "'agent.epsilon'"),
        (
            ["agent=dqn,ppo", "agent.epsilon=1,2", "hydra.sweeper.when={agent.epsilon: dqn}"],
            r"when\.agent\.epsilon=dqn: expected keys",
        ),
    ],
)
def test_an_invalid_value_is_reported_from_a_job_that_has_it(variants, typed, message):
    with pytest.raises(ConfigurationError, match=message):
        check_sweep(variants, typed)


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        (
            ["agent=ppo", "agent.lamb=1", "agent.epsilon=1"],
            ["agent.lamb=1: |'lam'?|(keys: kind, lam, lr, net)", "agent.epsilon=1: |(keys: kind, lam, lr, net)"],
        ),
        (["critic.lam=0.5"], ["critic.lam=0.5: ", "|use +critic.lam=0.5"]),
        (
            ["agent=ppo", "agent.lam=x", "agent.lr=0.7", "agent.net.width=0", "rate=fast", "critic=3"],
            [
                "agent.lam=x: |a number >= 0|'x'",
                "agent.lr=0.7: |a number > 0 and <= 0.5|0.7",
                "agent.net.width=0: |an integer >= 1|0",
                "rate=fast: |a number or {start, end}|'fast'",
                "critic=3: |{kind, lr, epsilon, dqn} or {kind, lr, lam, net} or null|3",
            ],
        ),
        (
            ["agent.kind=ppo", "agent.lam=2", "critic={kind: dqn,dqn: 0}", "rate={end: 3}"],
            [
                "agent: lam (2.0) is above 1",
                "critic.dqn=0: |an integer >= 1|0",
                "rate.start|rate.start=<value>, a number",
            ],
        ),
        (
            ["agent.epsilon=0.5", "critic={kind: ppo,lam: 2}"],
            ["agent: an epsilon of 0.5 is a coin", "critic={kind: ppo,lam: 2}: lam (2.0) is above 1"],
        ),
        (
            ["agent.kind=pp", "+critic={kind: ppo,epsilon: 1}"],
            ["agent.kind=pp: |dqn, ppo|'pp'|'ppo'?", "critic.epsilon=1: |(keys: kind, lam, lr, net)"],
        ),
        (["agent=unclear"], ["agent.kind|agent.kind=<value>|dqn, ppo|unclear.yaml"]),
        (["critic={lam: 2}"], ["critic.kind|critic.kind=<value>|dqn, ppo"]),
        (["seed=13"], ["seed 13 brings bad luck; choose another seed"]),
    ],
)
def test_invalid_keys_and_values_of_variants_are_named(variants, mistaken, typed, lines):
    message = mistaken(*typed, config_type=TrainConfig).splitlines()
    for first, *others in (line.split("|") for line in lines):
        assert any(line.startswith(first) and all(part in line for part in others) for line in message), first


@pytest.mark.long
def test_help_explains_each_variant(variants, monkeypatch, capsys):
    @trieye.main(config_path=str(variants.conf))
    def train(config: TrainConfig) -> None: ...

    def help_lines(*arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["train.py", "--help", *arguments])
        train()
        return capsys.readouterr().out.splitlines()

    lines = help_lines("agent", "agent=ppo")
    kinds = [line for line in lines if line.startswith("agent=")]
    assert kinds == ["agent=ppo (current): Proximal policy optimization.", "agent=dqn: Deep Q-learning."]
    assert "  agent.lam = 0.9" in lines
    assert "  agent.epsilon = 0.1" in lines
    assert "  agent.net.width = 64" in lines
    assert {"  agent.lr = 0.001", "  agent.lr = 0.0003"} < set(lines)
    assert help_lines("agent.lr") == [
        "agent=dqn (current): Deep Q-learning.",
        "  agent.lr = 0.01",
        "      a number > 0. Step size of DQN.",
        "agent=ppo: Proximal policy optimization.",
        "  agent.lr = 0.0003",
        "      a number > 0 and <= 0.5. Step size of PPO.",
    ]
    assert help_lines("agent.lam")[0] == "agent=ppo: Proximal policy optimization."
    assert help_lines("critic.lam")[0] == "critic.kind=ppo: Proximal policy optimization."
    assert help_lines("rate") == [
        "  rate = 0.1",
        "      a number or {start, end}. A number, or a line.",
        "  rate as Linear",
        "  rate.start (required)",
        "      a number.",
        "  rate.end = 0.0",
        "      a number.",
    ]
    assert "  agent.*" in "\n".join(help_lines())


def _positive(schedule):
    if schedule.start < 0:
        raise ValueError("a number >= 0 is expected")
    return schedule


PositiveSchedule = Annotated[trieye.Scheduled, AfterValidator(_positive)]


class Learner(Variants):
    """Base class of a library; projects define the kinds."""

    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount.")


class OldTD3(Learner):
    kind: Literal["td3"] = "td3"
    noise: int = 1


class TD3(Learner):
    """Twin critics."""

    kind: Literal["td3"] = "td3"
    lr: PositiveSchedule = Field(default=trieye.Schedule(start=1e-3), description="Step size, or a schedule of it.")
    actor_lr: PositiveSchedule = Field(default=trieye.Schedule(start=1e-3), description="Step size of the actor.")
    critic_lr: PositiveSchedule = Field(default=trieye.Schedule(start=1e-3), description="Step size of the critics.")


class SAC(Learner):
    kind: Literal["sac"] = "sac"
    tau: float = Field(default=0.005, gt=0, description="How far targets move.")


class OpenConfig(TrieyeConfig):
    agent: Learner = Field(default_factory=TD3, description="The learning algorithm.")


@pytest.fixture
def learners(project):
    project.write("agent/td3", "kind: td3\nlr: 0.01\n")
    project.write("agent/sac", "kind: sac\n")
    text = (project.conf / "train.yaml").read_text()
    project.write("train", text.replace("  - _self_\n", PRIMARY.format("td3")))
    return project


@pytest.mark.long
def test_a_field_of_an_open_class_accepts_each_kind_and_its_newest_definition(learners):
    assert composed(learners, config_type=OpenConfig) == TD3(lr=0.01)
    assert composed(learners, "agent=sac", "agent.gamma=0.9", config_type=OpenConfig) == SAC(gamma=0.9)
    assert OpenConfig(agent={"kind": "sac", "tau": 0.1}).agent == SAC(tau=0.1)
    assert Learner.kinds() == (TD3, SAC)


def test_a_subclass_of_a_kind_with_its_own_kind_is_another_choice():
    class Optimizer(Variants):
        lr: float = 0.1

    class Adam(Optimizer):
        kind: Literal["adam"] = "adam"

    class SGD(Optimizer):
        kind: Literal["sgd"] = "sgd"

    class AdamW(Adam):
        kind: Literal["adamw"] = "adamw"
        decay: float = 0.01

    class Config(StrictModel):
        optimizer: Optimizer

    assert Config(optimizer={"kind": "adamw", "lr": 0.2}).optimizer == AdamW(lr=0.2)
    assert Config(optimizer={"kind": "adam"}).optimizer == Adam()
    assert (Optimizer.kinds(), Adam.kinds()) == ((Adam, AdamW, SGD), ())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["agent.noise=2"], r"agent\.noise"),
        (["agent.lr.step=3"], r"unknown key 'step' in agent\.lr; did you mean 'steps'"),
        (["agent=sac", "agent.tauu=0.1"], r"agent\.tauu.*did you mean 'tau'"),
        (["agent=sac", "agent.tau=0"], r"agent\.tau=0"),
        (["agent=td4"], r"agent=td4.*(td3|sac)"),
        (["agent.kind=td4"], r"agent\.kind=td4.*td3"),
        (
            ["agent.lr=fast", "agent.actor_lr=-1", "agent.critic_lr={start: 1, end: 0.5}"],
            (
                r"agent\.lr=fast: expected a number or \{start, end, steps, shape\}, found 'fast'.*"
                r"agent\.actor_lr=-1: a number >= 0 is expected.*agent\.critic_lr.*end and steps belong together"
            ),
        ),
        (
            [
                "agent.lr={start: 1, end: 0.5, steps: 0, shape: square}",
                "agent.actor_lr={steps: 3}",
                "agent.critic_lr={start: 1, end: 0, steps: 9, shape: exponential}",
            ],
            (
                r"agent\.lr\.steps=0.*\nagent\.lr\.shape=square.*linear.*\n"
                r"agent\.actor_lr.*: schedule \{'steps': 3\} is missing 'start'.*\{start: 1e-3, end: .*\n"
                r"agent\.critic_lr.*the same sign"
            ),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_keys_of_open_fields_and_schedules_are_named(learners, words, message):
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        composed(learners, *words, config_type=OpenConfig)


@pytest.mark.long
def test_a_key_name_of_another_library_suggests_the_matching_key(learners):
    def complaints(*typed):
        with pytest.raises(ConfigurationError) as refused:
            composed(learners, *typed, config_type=OpenConfig)
        return str(refused.value).splitlines()

    of_the_agent = {
        "agent.learning_rate=1": "'agent.lr'",
        "agent.discount=1": "'agent.gamma'",
        "agent.buffer_size=1": "'replay.capacity'",
        "agent.n_step=1": "'replay.n_step'",
    }
    others = {
        "learning_rate=1": "'agent.lr'",
        "buffer_size=1": "'replay.capacity'",
        "loop.total_timesteps=1": "'loop.env_steps'",
        "total_timesteps=1": "'loop.env_steps'",
        "lr=1": "'agent.lr'",
        "gamma=1": "'replay.gamma' or 'agent.gamma'",
    }
    lines = [*complaints(*of_the_agent), *complaints(*others, "num_envs=3")]
    for key, meant in (of_the_agent | others).items():
        assert any(line.startswith(f"{key}: ") and f"did you mean {meant}?" in line for line in lines), key
    assert "env.num" not in lines[-1]  # this project has no environments
    (line,) = complaints("agent=sac", "agent.learning_rate=1")
    assert "'agent.lr'" not in line  # SAC has no such key


def test_a_flag_name_of_another_library_suggests_the_matching_key(learners, mistaken):
    assert mistaken("--total-timesteps=9", config_type=OpenConfig).endswith("; type loop.env_steps=9")
    assert mistaken("--learning-rate=1e-4", config_type=OpenConfig).endswith("; type agent.lr=1e-4")


@pytest.mark.long
def test_a_schedule_is_set_as_a_number_or_as_a_mapping(learners):
    cosine = ["agent.critic_lr={start: 1, end: 0.5, steps: 9, shape: cosine}", "agent.critic_lr.steps=7"]
    words = ["agent.lr=2e-4", "agent.actor_lr={start: 1, end: 0.5, steps: 9}", *cosine]
    agent = composed(learners, *words, config_type=OpenConfig)
    assert agent.lr == trieye.Schedule(start=2e-4)
    assert agent.actor_lr == trieye.Schedule(start=1, end=0.5, steps=9)
    assert agent.critic_lr == trieye.Schedule(start=1, end=0.5, steps=7, shape="cosine")
    assert OpenConfig.model_validate_json(OpenConfig(agent=agent).model_dump_json()).agent == agent
