"""Collector: steps environments with a policy and returns rows; work that can wait is done once per rollout."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from numpy.typing import NDArray

from trieye.config.env import EnvConfig
from trieye.exceptions import ConfigurationError, EnvironmentLostError, NonFiniteError
from trieye.process import watchdog
from trieye.process.progress import say
from trieye.process.stopping import StepInterrupted
from trieye.snapshot.environments import EnvState, stateful
from trieye.training.environments import close_envs, make_envs, naming_lost_members
from trieye.training.finite import MAX_IN_A_ROW, OnNonfinite, is_finite, reject_nonfinite
from trieye.training.policy import (
    Act,
    Context,
    EvaluationMode,
    Moments,
    Normalizer,
    Obs,
    Policy,
    chosen_actions,
    episode_metrics,
    map_state,
    merge_moments,
)
from trieye.training.reward_scale import RewardScale
from trieye.training.rows import Array, Rows, named_tensors
from trieye.training.seeds import training_seed
from trieye.training.spaces import columns_of, nested, stacks_in
from trieye.training.steps import Steps

STREAM_INCREMENT = 1 << 24
"""Added to the stream id of an environment after a cut: far above all indices, below `INTERRUPTION` of writers."""


class Collector:
    """Steps environments with an exploring policy, and tracks their episodes.

    Args:
        config: Config of the environments.
        policy: The acting policy.
        gamma: Discount, for `normalize_rewards`.
        seed: Seed of member 0 and its spaces; member `i` has `seed + i`.
        on_nonfinite: Handles observations and rewards that are NaN or infinite; None raises.

    Attributes:
        envs: The vector environment, with next-step autoreset.
        env_steps: Environment steps made in the whole run; resets do not count.
        interrupted: Number of cut episodes: on resume, if their environment could not be restored; after an exception
            or interruption within a step; and because of non-finite values.
        generator: Random generator of exploration, on the policy's device; saved.
        streams: int64 `[n]`, ids of the environments in a replay; replaced after a cut.
        scale: Scale of the rewards, with `env.normalize_rewards`.
    """

    def __init__(
        self,
        config: EnvConfig,
        policy: Policy,
        *,
        gamma: float,
        seed: int,
        on_nonfinite: OnNonfinite | None = None,
    ) -> None:
        self._on_nonfinite = on_nonfinite or OnNonfinite()
        self._policy, self._config, self._seed = policy, config, seed
        self.envs = make_envs(config, seed=seed)
        self._env_state = EnvState(self.envs)
        self._normalizers = [module for module in policy.modules() if isinstance(module, Normalizer)]
        self._moments: list[Moments] = []
        self.scale = RewardScale(self.envs.num_envs, gamma) if config.normalize_rewards else None
        self._has_custom_metrics = type(policy).on_episode is not Policy.on_episode
        self._episode_values: dict[str, list[float]] = defaultdict(list)
        self._calls = watchdog.calls()
        self._interrupted_by: BaseException | None = None
        self._device = policy.device
        self.generator = torch.Generator(self._device).manual_seed(seed)
        self.env_steps = self.interrupted = self._reported_interrupted = 0
        self.streams = np.arange(self.envs.num_envs)
        self._retired_entries: list[dict[str, Any]] = []  # of earlier explorers, for later ones
        self._refusals: dict[int, int] = {}  # consecutive refused rows by environment
        self._reset_all(seed)

    def _reset_all(self, seed: int) -> None:
        """Reset all environments."""
        num = self.envs.num_envs
        with self._calls, naming_lost_members(self.envs, self._config):
            obs = self.envs.reset(seed=seed)[0]
        self._obs = columns_of(obs)
        self._done = np.zeros(num, bool)
        self._state: Any = self._policy.initial_state(num)
        self._returns, self._lengths = np.zeros(num), np.zeros(num, np.int64)
        if self.scale is not None:
            self.scale.begin(num)

    def collect(self, steps: int, before_step: Callable[[], None] | None = None) -> Rows:
        """Make `steps` steps of each environment with the exploring policy.

        If an environment raises or is interrupted, the rows are lost and the current episodes are cut.

        Args:
            steps: Number of steps.
            before_step: Called before each step; it may replace the policy's weights.

        Raises:
            EnvironmentLostError: The process of a member died, with `env.vector=async`.
            StepInterrupted: A stop was requested, and an environment does not return.
        """
        if self._interrupted_by is not None:
            self.interrupted += self.num_open
            self.streams = self.streams + STREAM_INCREMENT
            self._reset_all(training_seed(self._seed, self.env_steps))
            self._interrupted_by = None
        done, state = self._done, self._state
        try:
            with EvaluationMode(self._policy):
                return self._collect(steps, before_step)
        except BaseException as error:
            self._done, self._state, self._interrupted_by = done, state, error
            raise

    def _collect(self, steps: int, before_step: Callable[[], None] | None) -> Rows:
        initial_state = map_state(self._state, torch.clone)  # autograd rejects tensors made in inference mode
        num, device = self.envs.num_envs, self._device
        ctx = Context(explore=True, env_steps=self.env_steps, generator=self.generator)
        recorded_steps, acts, actions = Steps(self._obs, self._done, steps), list[Act](), list[Array]()
        resets, terminated, truncated = recorded_steps.resets, recorded_steps.terminated, recorded_steps.truncated
        lost_members = naming_lost_members(self.envs, self._config)
        inference = torch.inference_mode()  # entered for each step: environments may need gradients
        leaves_out = self._on_nonfinite.leaves_out  # otherwise one check at the end is enough
        try:
            for t in range(steps):
                if before_step is not None:
                    before_step()
                with inference:
                    act = self._policy.act(self._obs_at(t, recorded_steps.obs_columns, device), self._state, ctx)
                    action = chosen_actions(self._policy, act)
                with self._calls, lost_members:
                    obs, recorded_steps.rewards[t], terminated[t], truncated[t], info = self.envs.step(action)
                recorded_steps.store_obs(obs, t + 1)
                actions.append(action)
                if leaves_out and not recorded_steps.is_finite(t, t + 1):
                    self._omit_step(t, recorded_steps, action, ctx.env_steps)
                self._done = np.logical_or(terminated[t], truncated[t], out=resets[t + 1])
                self._state = act.state if act.state is None else self._reset_state(act.state, resets[t])
                if self._has_custom_metrics and self._done.any():
                    self._record_custom_metrics(info)
                acts.append(act)
                ctx.env_steps += num - int(np.count_nonzero(resets[t]))
        except Exception:  # non-finite inputs may be the cause
            self._check_steps(recorded_steps, actions)
            raise
        self._check_steps(recorded_steps, actions)
        self.env_steps = ctx.env_steps
        rows = self._finish_rows(recorded_steps, np.array(actions), acts, initial_state)
        if self._normalizers and rows.valid.any():
            self._moments.append(Moments.of(rows["obs"][torch.from_numpy(rows.valid).to(device)]))
        return rows

    def _finish_rows(self, recorded: Steps, actions: Array, acts: list[Act], initial_state: Any) -> Rows:
        """Convert the steps to rows, and store the state at their end."""
        steps = len(actions)
        self._done, valid, done = recorded.resets[steps].copy(), ~recorded.resets[:-1], recorded.resets[1:]
        self._obs = {name: item[steps] for name, item in recorded.obs_columns.items()}
        if recorded.cuts:
            self._record_cuts(recorded)
        self._record_episodes(recorded.rewards, valid, done, recorded.cuts)
        arrays = {name: item[:steps] for name, item in recorded.obs_columns.items()} | {"action": actions}
        arrays |= {"reward": self._transform_rewards(recorded.rewards, valid, done)}
        arrays |= {"terminated": recorded.terminated, "truncated": recorded.truncated}
        extras = {name: torch.stack([act.extras[name] for act in acts]) for name in acts[0].extras}
        for name in extras.keys() & {*arrays, "obs", "next_obs", "discount"}:
            kind = type(self._policy).__name__
            raise ConfigurationError(f"{kind}.act(): the extra {name!r} has the name of a column of rows; rename it")
        self._check_policy(actions, extras)
        last_state = map_state(self._state, torch.clone)
        streams = self.streams.copy()
        stacked_names = stacks_in(self._policy.spaces.observation, self._config.frame_stack)
        return Rows(arrays, self._obs, valid, extras, initial_state, self._device, last_state, streams, stacked_names)

    def _omit_step(self, t: int, recorded_steps: Steps, action: Array, env_steps: int) -> None:
        """Omit step `t` of the environments with NaN or infinity: cut their episodes, and reset them.

        Raises:
            NonFiniteError: The action was not finite, `loop.on_nonfinite` is `stop`, or 100 consecutive rows of an
                environment were refused.
        """
        faults = recorded_steps.faults(t)
        if not faults:  # is_finite() also rejects large finite numbers
            return
        members = np.zeros(self.envs.num_envs, bool)
        members[list(faults)] = True
        owner, step_text = self._on_nonfinite.owner, f"at environment step {env_steps}"
        for n, fault in faults.items():
            if action.dtype.kind == "f" and not np.isfinite(action[n]).all():
                raise NonFiniteError(f"the policy's action for environment {n}{owner} is not finite {step_text}")
            in_a_row = not recorded_steps.has_row_before(t, n)
            self._refusals[n] = self._refusals.get(n, 0) * in_a_row + 1
            if self._refusals[n] >= MAX_IN_A_ROW:
                raise NonFiniteError(f"{fault} of environment {n}{owner} {step_text}, {MAX_IN_A_ROW} times in a row")
        first_env, fault = next(iter(faults.items()))
        others_text = f", and values of {len(faults) - 1} other environments" if len(faults) > 1 else ""
        consequence = "the row is omitted, its episode cut, and the environment reset"
        message = f"{fault} of environment {first_env}{owner} {step_text}{others_text}"
        self._on_nonfinite.handle("rows", message, consequence, len(faults))
        recorded_steps.cut(self._reset(members, recorded_steps, t + 1), t)

    def _check_steps(self, recorded_steps: Steps, actions: list[Array]) -> None:
        """Raise for the first step with NaN or infinity, with `loop.on_nonfinite=stop`.

        Raises:
            NonFiniteError: A step has NaN or infinity.
        """
        if self._on_nonfinite.leaves_out or recorded_steps.is_finite(0, len(actions)):
            return
        env_steps = self.env_steps
        for t, action in enumerate(actions):
            if not recorded_steps.is_finite(t, t + 1):
                self._omit_step(t, recorded_steps, action, env_steps)
            env_steps += int(np.count_nonzero(~recorded_steps.resets[t]))

    def _reset(self, members: NDArray[np.bool_], recorded_steps: Steps, t: int) -> NDArray[np.bool_]:
        """Reset some environments, store their first observations at `t`, and return the mask of the reset ones."""
        is_of_gymnasium = isinstance(self.envs, SyncVectorEnv | AsyncVectorEnv)
        members = members if is_of_gymnasium else np.ones_like(members)  # other vectors can only reset all
        if isinstance(self.envs, SyncVectorEnv):
            self.envs._rewards[members] = 0.0  # noqa: SLF001 - docs/private_apis.md
        for _ in range(MAX_IN_A_ROW):
            options = {"reset_mask": members.copy()} if is_of_gymnasium else None
            with self._calls:
                obs = self.envs.reset(options=options)[0]
            recorded_steps.store_obs(obs, t)
            if not (faults := recorded_steps.obs_faults(t)):
                return members
        n, fault = next(iter(faults.items()))
        raise NonFiniteError(f"{fault} of environment {n}{self._on_nonfinite.owner} after {MAX_IN_A_ROW} resets")

    def _record_cuts(self, recorded_steps: Steps) -> None:
        """Count cut episodes; after a cut in the first row, an environment gets a new stream id."""
        for t, n in recorded_steps.cuts:
            if t == 0:
                self.streams[n] += STREAM_INCREMENT
                self._returns[n], self._lengths[n] = 0.0, 0
                if self.scale is not None:
                    self.scale.cut(n)
        self.interrupted += len(recorded_steps.cuts)
        last = len(recorded_steps.rewards) - 1
        self._refusals = {n: num for n, num in self._refusals.items() if not recorded_steps.has_row_before(last + 1, n)}

    def _check_policy(self, actions: Array, extras: Mapping[str, torch.Tensor]) -> None:
        """Raise for non-finite policy outputs; the observations are finite, so that omitting a row would not help."""
        culprit = None
        if actions.dtype.kind == "f" and not is_finite(actions.reshape(-1)) and not np.isfinite(actions).all():
            culprit = "action"
        for name, tensor in {**extras, **named_tensors("state", self._state)}.items():
            # -inf is the log probability of a masked action
            if tensor.is_floating_point() and math.isnan(tensor.sum().item()) and bool(tensor.isnan().any()):
                culprit = name
        if culprit is not None:
            owner, step = self._on_nonfinite.owner, self.env_steps
            weights = ((f"policy.{name}", weight) for name, weight in self._policy.named_parameters())
            reject_nonfinite(weights, f"at environment step {step}{owner}")
            raise NonFiniteError(
                f"the policy's {culprit} is not finite{owner} before environment step {step}, although its "
                "observations and weights are: check the computation in act()"
            )

    def learned(self) -> None:
        """Update the normalizers; called after learning, which must normalize observations as `act` did."""
        if self._moments:
            merge_moments(self._policy, self.take_moments())

    def take_moments(self) -> list[Moments]:
        """Return the observation moments of each rollout since the last call."""
        moments, self._moments = self._moments, []
        return moments

    @staticmethod
    def _obs_at(t: int, columns: dict[str, Array], device: torch.device) -> Obs:
        if "obs" in columns:  # the usual case; the general one costs some percent of a step
            return torch.from_numpy(columns["obs"][t]).to(device)
        return nested({name: torch.from_numpy(item[t]).to(device) for name, item in columns.items()})

    def _reset_state(self, state: Any, is_first: NDArray[np.bool_]) -> Any:
        """Return the state of a recurrent policy, replaced by `initial_state` where an episode begins."""
        if not is_first.any():
            return state
        initial_state, mask = self._policy.initial_state(len(is_first)), torch.from_numpy(is_first).to(self._device)

        def begun(item: torch.Tensor, fresh_item: torch.Tensor) -> torch.Tensor:
            return torch.where(mask.reshape(-1, *[1] * (item.ndim - 1)), fresh_item, item)

        return map_state(state, begun, initial_state)

    def _transform_rewards(self, rewards: Array, valid: Array, done: Array) -> NDArray[np.float32]:
        if self._config.clip_rewards:
            rewards = np.sign(rewards)
        if self.scale is not None:
            rewards = self.scale.scaled(rewards, valid, done)
        return rewards.astype(np.float32)

    def _record_episodes(self, rewards: Array, valid: Array, done: Array, cuts: list[tuple[int, int]]) -> None:
        if not done.any():
            self._returns += rewards.sum(axis=0)
            self._lengths += valid.sum(axis=0)
            return
        # segments [env, t]: the steps of each environment, split after the last step of each episode
        steps, num = rewards.shape
        is_first = np.ones((num, steps), bool)
        is_first[:, 1:] = done[:-1].T
        first = np.flatnonzero(is_first)
        env, t = np.divmod(first, steps)
        is_carried = t == 0
        returns = np.add.reduceat(rewards.T.ravel(), first) + np.where(is_carried, self._returns[env], 0.0)
        lengths = np.add.reduceat(valid.T.ravel(), first, dtype=np.int64) + np.where(is_carried, self._lengths[env], 0)
        ends = np.append(first[1:], is_first.size) - env * steps
        has_ended = done[ends - 1, env]
        for segment in np.flatnonzero(has_ended).tolist():
            if (ends[segment], env[segment]) not in cuts:
                self._episode_values["episode/return"].append(float(returns[segment]))
                self._episode_values["episode/length"].append(float(lengths[segment]))
        last = ends == steps
        self._returns, self._lengths = np.where(has_ended, 0.0, returns)[last], np.where(has_ended, 0, lengths)[last]

    def _record_custom_metrics(self, info: Mapping[Any, Any]) -> None:
        for n in np.flatnonzero(self._done).tolist():
            member_info = info[n] if n in info else member_of(info, n)
            for name, value in episode_metrics(self._policy, member_info, "episode").items():
                self._episode_values[f"episode/{name}"].append(value)

    def metrics(self) -> dict[str, list[float]]:
        """Return the values of the episodes that ended since the last call, and the count of cut ones if it changed."""
        values, self._episode_values = dict(self._episode_values), defaultdict(list)
        if self.interrupted != self._reported_interrupted:
            self._reported_interrupted = self.interrupted
            values["episode/interrupted"] = [float(self.interrupted)]
        return values

    @property
    def num_open(self) -> int:
        """Number of unfinished episodes."""
        return int(np.count_nonzero(~self._done))

    @property
    def can_save(self) -> bool:
        """Whether a checkpoint taken now resumes bit-exactly.

        Always True for several environments: their episodes rarely end in the same step, so waiting is pointless.
        """
        return self.envs.num_envs > 1 or bool(self._done.all()) or self._env_state.is_exact

    def state_dict(self) -> dict[str, Any]:
        """Return the state of environments, episodes and scales."""
        self._env_state.between_episodes = bool(self._done.all())
        return {
            "env_steps": self.env_steps,
            "interrupted": self.interrupted,
            "obs": self._obs,
            "done": self._done,
            "streams": self.streams,
            "policy_state": self._state,
            "returns": self._returns,
            "lengths": self._lengths,
            "scale": None if self.scale is None else self.scale.state_dict(),
            "envs": None if self._interrupted_by is not None else self._env_state,
            "env_config": self._config.identity(),
            "generator": self.generator,
            "retired": self._retired_entries,
        }

    def plain_state(self) -> dict[str, Any]:
        """Return `state_dict` as plain data, to be saved by another process."""
        state = self.state_dict()
        state["policy_state"] = map_state(self._state, torch.Tensor.cpu)
        for name in ("envs", "generator"):
            state[name] = None if state[name] is None else stateful(state[name]).state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Restore a state; return False if the saved episodes were cut and new ones started.

        They are cut if the environments are created differently now, because restored ones would keep the old
        parameters, and if the state is that of `Explorers`.

        Raises:
            SerializationError: The environments have different wrappers, although their config is the same.
        """
        self.env_steps = int(state["env_steps"])
        self.interrupted = self._reported_interrupted = int(state["interrupted"])
        entries = [*state.get("explorers", ()), *state.get("retired", ())]
        self._retired_entries = [{**entry, "state": None} for entry in entries]
        if "explorers" in state:
            self._load_explorers(state)
            return False
        stateful(self.generator).load_state_dict(state["generator"])
        if self.scale is not None and state["scale"] is not None:
            self.scale.load_state_dict(state["scale"])
        done, num = np.array(state["done"]), self.envs.num_envs
        now = {"num": num, **self._config.identity()}
        then = {**now, **state.get("env_config", {}), "num": len(done)}  # early checkpoints have no env_config
        changes = [f"env.{key} was {then[key]} and is {value}" for key, value in now.items() if then[key] != value]
        why = ", ".join(changes) or self._reason_to_cut(state["envs"], done)
        self._done = done
        if why is not None:
            self.cut(why)
            return False
        self._obs = {name: np.array(item) for name, item in state["obs"].items()}
        self._state = map_state(state["policy_state"], lambda item: item.to(self._device))
        self._returns, self._lengths = np.array(state["returns"]), np.array(state["lengths"])
        self.streams = np.array(state.get("streams", self.streams))
        if isinstance(self.envs, SyncVectorEnv):  # the vector's own flags are not part of the members' state
            self.envs._autoreset_envs[:] = done  # noqa: SLF001 - docs/private_apis.md
        return True

    def _load_explorers(self, state: Mapping[str, Any]) -> None:
        """Continue after explorers: restore the scale, and start new episodes."""
        explorers, unknown = [entry["state"] for entry in state["explorers"]], {"done": self._done}
        self._done = np.concatenate([(explorer or unknown)["done"] for explorer in explorers])
        self.generator.manual_seed(training_seed(self._seed, self.env_steps))  # the first explorer had the seed itself
        if self.scale is not None:
            self.scale.moments = tuple(state.get("returns", self.scale.moments))
        self.cut(f"explorer.num was {len(explorers)} and is 0")

    def cut(self, why: str) -> None:
        """Start new episodes, and count the unfinished ones as interrupted."""
        num_cut = self.num_open
        self._reset_all(training_seed(self._seed, self.env_steps))
        self.interrupted += num_cut
        say(f"new episodes started, {num_cut} unfinished ones were cut: {why}")

    def close(self) -> None:
        """Close the environments without waiting for interrupted calls."""
        with self._calls:
            hangs = isinstance(self._interrupted_by, StepInterrupted | EnvironmentLostError)
            close_envs(self.envs, in_mid_call=hangs)

    def _reason_to_cut(self, saved_envs: Mapping[str, Any] | None, done: NDArray[np.bool_]) -> str | None:
        """Restore the environments; return the reason if their episodes cannot continue, else None."""
        if saved_envs is None:
            return "the environments were interrupted in the middle of a step"
        self._env_state.load_state_dict(saved_envs)
        resets_next = isinstance(self.envs, SyncVectorEnv) or saved_envs["reason"] is None
        if not self._env_state.between_episodes or (done.all() and resets_next):
            return None
        return f"these environments cannot be saved within an episode, because {saved_envs['reason'] or 'they changed'}"


def member_of(info: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Return the `info` of one member from the merged `info` of a vector environment."""
    return {
        key: member_of(values, n) if isinstance(values, Mapping) else values[n]
        for key, values in info.items()
        if not key.startswith("_") and (f"_{key}" not in info or info[f"_{key}"][n])
    }
