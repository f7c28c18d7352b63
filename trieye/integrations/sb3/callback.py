"""RunCallback: makes a training of stable-baselines3 a run."""

import sys
from collections.abc import Generator
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback

from trieye.exceptions import ConfigurationError
from trieye.integrations.opening import AdoptedRun
from trieye.integrations.sb3.model import KEY, REPLAY_KEY, ModelState, Restored
from trieye.integrations.sb3.output import RunOutput
from trieye.run.run import Run
from trieye.run.steps import steps

MAX_FRAMES = 1000
"""Of the video of an evaluation; a longer episode is cut there."""

_NOTED = ("best_mean_reward", "evaluations_timesteps", "evaluations_results", "evaluations_length")


class RunCallback(BaseCallback):
    """Logs what the logger records, saves all that the training goes on with, and goes on there when it starts again.

    What is saved is whole: it is taken between updates and rollouts, never inside of one. `learn(total)` makes the
    timesteps that are left of `total` then; environments begin an episode, with other random numbers than before.

    Args:
        run: Name of the run, which ends with the program; or a `trieye.Run` that is open, which is saved as often as
            its config says.
        save_freq: Timesteps between checkpoints, of all environments together; at the end one is saved anyway.
        evaluation: Evaluates, instead of being a callback of its own; its mean reward rates the checkpoints, of which
            the best one is kept.
        video: Log an episode of each new best model as a video; the environment of `evaluation` has to render arrays.
        verbose: As of any callback.

    Attributes:
        run: The run.

    Raises:
        ConfigurationError: The name cannot be that of a run, or there is nothing to take a video of.
        RunLockedError: Another process writes to the run.
    """

    def __init__(
        self,
        run: Run | str,
        *,
        save_freq: int = 10_000,
        evaluation: EvalCallback | None = None,
        video: bool = False,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        mode = None if evaluation is None else getattr(evaluation.eval_env, "render_mode", None)
        if video and mode != "rgb_array":
            found = "there is no evaluation" if evaluation is None else f"its environment has render_mode={mode!r}"
            raise ConfigurationError(
                f"RunCallback(video=True): {found}; give evaluation=EvalCallback(env), env made with "
                "render_mode='rgb_array'"
            )
        if isinstance(run, Run):
            self.run = run
        else:
            kept = {"checkpoint_save_freq_steps": save_freq, "keep_last": 2}
            objective = {"objective": "eval/mean_reward"}
            self.run = AdoptedRun.join(run, persistence=kept, loop=objective).run
        self._evaluation, self._video = evaluation, video
        self._evaluated = self._rollouts = 0
        self._goes_on = True
        self._steps: Generator[int] | None = None

    def _init_callback(self) -> None:
        model = self.model
        total = model._total_timesteps  # noqa: SLF001 - has no other name
        self._held = Restored.of(model, self.run, total)
        self._held.begin_call(total)
        self._output = RunOutput(self.run)
        if not self.run.resumed and not self.run.step:
            self.run.log_params(_hyperparameters(model))
        if self._evaluation is not None:
            self._evaluation.init_callback(model)
            vars(self._evaluation).update(
                {name: held for name, held in self._held.evaluation.items() if name in _NOTED}
            )
        if self._held.timesteps is not None:
            self._go_on(self._held.timesteps)
        elif model.num_timesteps < self.run.step:
            raise ConfigurationError(
                f"learn() begins at timestep {model.num_timesteps}, and run {self.run.name!r} is at {self.run.step}: "
                "call it with reset_num_timesteps=False, or give the other training a run of its own"
            )

    def _go_on(self, timesteps: int) -> None:
        """Bring back what `learn` set back, as far as its total reaches; a later call may have the rest."""
        model, state, total = self.model, ModelState(self.model), self.model._total_timesteps  # noqa: SLF001 - as above
        state.load_counters(self._held.state)
        model.num_timesteps, self._evaluated = min(timesteps, total), timesteps // model.n_envs
        if total < timesteps:
            return
        self._held.timesteps = None
        model._num_timesteps_at_start = timesteps  # noqa: SLF001 - as above
        env = self.training_env
        if model.seed is not None:  # those of its first episodes would come again
            env.seed(model.seed + 1_000_003 * self.run.attempt % (1 << 31))
        normalizer = model.get_vec_normalize_env()
        if normalizer is None:
            model._last_obs = env.reset()  # type: ignore[assignment]  # noqa: SLF001 - as above
            return
        # a reset must not change the moments; other wrappers may lie above, so the observation is that of the outermost
        state.load_moments(self._held.state)
        trains, normalizer.training = normalizer.training, False
        model._last_obs = env.reset()  # type: ignore[assignment]  # noqa: SLF001 - as above
        normalizer.training, model._last_original_obs = trains, normalizer.get_original_obs()  # noqa: SLF001 - as above

    def _on_training_start(self) -> None:
        if self._output not in self.logger.output_formats:
            self.logger.output_formats.append(self._output)
        self._steps = steps(self.run, self.model._total_timesteps, counts=False)  # noqa: SLF001 - as above
        next(self._steps, None)

    def _on_step(self) -> bool:
        self._rollouts += 1
        return self._goes_on

    def _on_rollout_start(self) -> None:
        self._between()

    def _between(self, *, is_end: bool = False) -> None:
        """Evaluate and save if it is time to, and leave if a signal asked for that."""
        run, rows = self.run, self._held.rows
        run.step = self.num_timesteps = self.model.num_timesteps
        if rows is not None:
            rows.total += self._rollouts
        self._rollouts = 0
        objective = self._evaluate(run.step // self.training_env.num_envs)
        is_new = run.step > max(run.saved_step, 0)
        if is_new and (objective is not None or run.save_due or is_end):
            held: dict[str, Any] = {KEY: ModelState(self.model), "evaluation": self._noted()}
            run.save(objective=objective, **held | ({} if rows is None else {REPLAY_KEY: rows}))
        if self._steps is not None and not is_end:
            next(self._steps, None)

    def _evaluate(self, calls: int) -> float | None:
        """Evaluate if that is due after so many steps of each environment, and return the mean reward."""
        evaluation = self._evaluation
        every = 0 if evaluation is None else evaluation.eval_freq
        if evaluation is None or every <= 0 or calls // every <= self._evaluated // every:
            return None
        self._evaluated, best = calls, evaluation.best_mean_reward
        evaluation.n_calls = every - 1  # it evaluates at multiples of it
        self._goes_on = evaluation.on_step()
        if self._video and evaluation.best_mean_reward > best:
            self._film(evaluation)
        return evaluation.last_mean_reward

    def _film(self, evaluation: EvalCallback) -> None:
        env, frames = evaluation.eval_env, list[Any]()
        obs, state, starts = env.reset(), None, np.ones(env.num_envs, np.bool_)
        while len(frames) < MAX_FRAMES:
            frames.append(env.render())
            actions, state = self.model.predict(obs, state, starts, deterministic=evaluation.deterministic)  # type: ignore[arg-type]
            obs, _, starts, _ = env.step(actions)
            if starts[0]:
                break
        pictures = [frame for frame in frames if frame is not None]
        fps = float(env.get_attr("metadata")[0].get("render_fps", 30))
        self.run.log_video("eval/video", np.stack(pictures), self.run.step, fps=fps)

    def _noted(self) -> dict[str, Any]:
        noted = {"timesteps": self.model.num_timesteps, "learn_calls": self._held.calls}
        names = () if self._evaluation is None else _NOTED
        return noted | {name: getattr(self._evaluation, name) for name in names}

    def _on_training_end(self) -> None:
        self._between(is_end=True)
        self.run.wait_for_saves()
        if self._steps is not None:
            self._steps.close()
            self._steps = None


def _hyperparameters(model: BaseAlgorithm) -> dict[str, Any]:
    """Return what the model was made with, as far as it is plain data."""
    counters = {"num_timesteps", "exploration_rate", "start_time", "verbose", "n_envs"}
    plain = {
        name: value
        for name, value in vars(model).items()
        if name[0] != "_" and name not in counters and isinstance(value, bool | int | float | str)
    }
    env = getattr(getattr(model.env, "envs", [None])[0], "spec", None)
    found = {"algorithm": type(model).__name__, "policy": model.policy_class.__name__, "num_envs": model.n_envs}
    return {
        **found,
        **({} if env is None else {"env": env.id}),
        **plain,
        "python": ".".join(map(str, sys.version_info[:3])),
    }
