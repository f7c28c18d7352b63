"""RunCallback: logs, checkpoints and resumes a Stable-Baselines3 training as a run."""

import platform
from functools import partial
from inspect import currentframe
from traceback import walk_stack
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.logger import Figure, HParam, Image, KVWriter, Logger, Video

from trieye.exceptions import ConfigurationError
from trieye.integrations import media
from trieye.integrations.opening import AdoptedRun
from trieye.integrations.sb3.model import ModelState, RestoredModel
from trieye.run.run import Run
from trieye.run.steps import steps

MAX_FRAMES = 1000
"""Longest video of an evaluation; the rest of a longer episode is not recorded."""

_COUNTERS = {"num_timesteps", "exploration_rate", "start_time", "verbose", "n_envs"}
_NOTED = ("best_mean_reward", "evaluations_timesteps", "evaluations_results", "evaluations_length")


class RunOutput(KVWriter):
    """Logs every recorded value at its timestep, including values that other outputs exclude.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last_values: dict[str, tuple[int, Any]] = {}

    @classmethod
    def remove_all(cls, logger: Logger) -> None:
        """Remove the outputs of earlier trainings from a logger that several trainings use."""
        logger.output_formats[:] = [output for output in logger.output_formats if not isinstance(output, cls)]

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Log values, except those excluded for `trieye` and repetitions at the same step."""
        for name, value in key_values.items():
            if "trieye" in (key_excluded.get(name) or ()):
                continue
            if isinstance(value, str):
                media.log_text(self._run, name, value, step)
            elif isinstance(value, np.ScalarType):
                if self._last_values.get(name) != (step, value):  # evaluations and rollouts record the same counters
                    self._run.log(name, value, step=step)
                self._last_values[name] = (step, value)
            else:
                self._write_medium(name, value, step)

    def _write_medium(self, name: str, value: Any, step: int) -> None:
        if isinstance(value, torch.Tensor | np.ndarray):
            self._run.log_histogram(name, value, step)
        elif isinstance(value, Figure):
            self._run.log_image(name, media.drawn(name, value.figure, close=value.close), step)
        elif isinstance(value, Image):
            self._run.log_image(name, media.picture(name, value.image, value.dataformats), step)
        elif isinstance(value, Video):
            self._run.log_video(name, media.frames(name, value.frames), step, fps=value.fps)
        elif isinstance(value, HParam):
            self._run.log_params(value.hparam_dict)

    def close(self) -> None:
        """Do nothing: the owner of the run closes it."""


class RunCallback(BaseCallback):
    """Logs all values of the SB3 logger, checkpoints the training state, and resumes from it after a restart.

    Checkpoints are consistent: they are saved between rollouts and updates, never within one. After a resume,
    `learn(total)` trains only the remaining timesteps; environments start a new episode with a new seed.

    Args:
        run: Name of a run, which closes at program exit; or an open `trieye.Run`, whose config sets the checkpoint
            frequency.
        save_freq: Timesteps between checkpoints, summed over environments; a final checkpoint is always saved.
        evaluation: Runs inside this callback, not as a separate one. Its mean reward ranks the checkpoints, and the
            best checkpoint is retained.
        video: Whether to log an episode of each new best model as a video; requires an `evaluation` environment that
            renders arrays.
        verbose: Verbosity, as in any SB3 callback.

    Attributes:
        run: The run.

    Raises:
        ConfigurationError: The run name is invalid, or `video` is set without an environment that renders arrays.
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
        if video and (evaluation is None or evaluation.eval_env.render_mode != "rgb_array"):
            raise ConfigurationError(
                "RunCallback(video=True): pass evaluation=EvalCallback(env), env made with render_mode='rgb_array'"
            )
        retention = {"checkpoint_save_freq_steps": save_freq, "keep_last": 2}
        options: dict[str, Any] = {"persistence": retention, "loop": {"objective": "eval/mean_reward"}}
        if not isinstance(run, Run):
            adopted_run = AdoptedRun.join(run, **options)
            adopted_run.users.add(self)
            run = adopted_run.run
        self.run = run
        self._evaluation, self._video = evaluation, video
        self._num_evaluated = self._rollouts = 0
        self._continues = True

    def _init_callback(self) -> None:
        model = self.model
        total = model._total_timesteps  # noqa: SLF001 - docs/private_apis.md
        self._restored_model = RestoredModel.of(model, self.run, total)
        self._restored_model.begin_call(total)
        self._output = RunOutput(self.run)
        RunOutput.remove_all(self.logger)
        if not self.run.resumed and not self.run.step:
            self.run.log_params(_hyperparameters(model))
        if self._evaluation is not None:
            self._evaluation.init_callback(model)
            evaluation = self._restored_model.evaluation
            vars(self._evaluation).update({name: evaluation[name] for name in _NOTED if name in evaluation})
        if self._restored_model.timesteps is not None:
            self._resume(self._restored_model.timesteps)
        elif model.num_timesteps < self.run.step:
            raise ConfigurationError(
                f"learn() begins at timestep {model.num_timesteps}, but run {self.run.name!r} is at {self.run.step}: "
                "pass reset_num_timesteps=False to continue it, or use another run for another training"
            )

    def _resume(self, timesteps: int) -> None:
        """Restore the counters that `learn` has reset, up to its total; a later call may resume the remainder."""
        model, state, total = self.model, ModelState(self.model), self.model._total_timesteps  # noqa: SLF001 - docs/private_apis.md
        state.load_counters(self._restored_model.state)
        model.num_timesteps, self._num_evaluated = min(timesteps, total), timesteps // model.n_envs
        if total < timesteps:
            return
        self._restored_model.timesteps = None
        model._num_timesteps_at_start = timesteps  # noqa: SLF001 - docs/private_apis.md
        env, normalizer = self.training_env, model.get_vec_normalize_env()
        if model.seed is not None:  # the same seed would repeat the first episodes
            env.seed(model.seed + 1_000_003 * self.run.attempt % (1 << 31))
        if normalizer is not None:  # the reset must not change the moments
            state.load_moments(self._restored_model.state)
            trains, normalizer.training = normalizer.training, False
        model._last_obs = env.reset()  # type: ignore[assignment]  # noqa: SLF001 - docs/private_apis.md
        if normalizer is not None:  # other wrappers may enclose this one, so `env` is the outermost
            normalizer.training, model._last_original_obs = trains, normalizer.get_original_obs()  # noqa: SLF001 - docs/private_apis.md

    def _on_training_start(self) -> None:
        self.logger.output_formats.append(self._output)
        total, is_running = self.model._total_timesteps, partial(_is_learning, self.model.start_time)  # noqa: SLF001 - docs/private_apis.md
        self._steps = steps(self.run, total, counts=False, is_running=is_running)
        next(self._steps, None)

    def _on_step(self) -> bool:
        self._rollouts += 1
        return self._continues

    def _save_between_updates(self, *, is_end: bool = False) -> None:
        """Evaluate and save if due, and stop if a signal requested it."""
        run = self.run
        run.step = self.num_timesteps = self.model.num_timesteps
        if self._restored_model.rows is not None:
            self._restored_model.rows.total += self._rollouts
        self._rollouts = 0
        objective = self._evaluate(run.step // self.training_env.num_envs)
        is_new = run.step > max(run.saved_step, 0)
        if is_new and (objective is not None or run.save_due or is_end):
            run.save(objective=objective, **self._restored_model.objects(self.model, self._evaluation_state()))
        if not is_end:
            next(self._steps, None)

    _on_rollout_start = _save_between_updates

    def _evaluate(self, calls: int) -> float | None:
        """Evaluate if due after `calls` steps of each environment, and return the mean reward, else None."""
        evaluation = self._evaluation
        every = 0 if evaluation is None else evaluation.eval_freq
        if evaluation is None or every <= 0 or calls // every <= self._num_evaluated // every:
            return None
        self._num_evaluated, best_reward = calls, evaluation.best_mean_reward
        evaluation.n_calls = every - 1  # EvalCallback evaluates at multiples of eval_freq
        self._continues = evaluation.on_step()
        if self._video and evaluation.best_mean_reward > best_reward:
            self._log_video(evaluation)
        return evaluation.last_mean_reward

    def _log_video(self, evaluation: EvalCallback) -> None:
        env, frames = evaluation.eval_env, list[Any]()
        obs, state, starts = env.reset(), None, np.ones(env.num_envs, np.bool_)
        while len(frames) < MAX_FRAMES:
            frames.append(env.render())
            actions, state = self.model.predict(obs, state, starts, deterministic=evaluation.deterministic)  # type: ignore[arg-type]
            obs, _, starts, _ = env.step(actions)
            if starts[0]:
                break
        fps = float(env.get_attr("metadata")[0].get("render_fps", 30))
        self.run.log_video("eval/video", [frame for frame in frames if frame is not None], self.run.step, fps=fps)

    def _evaluation_state(self) -> dict[str, Any]:
        state = {} if self._evaluation is None else {name: getattr(self._evaluation, name) for name in _NOTED}
        return {"timesteps": self.model.num_timesteps, "learn_calls": self._restored_model.calls, **state}

    def _on_training_end(self) -> None:
        self._save_between_updates(is_end=True)
        self.run.wait_for_saves()
        self._steps.close()
        if self.model._custom_logger:  # noqa: SLF001 - docs/private_apis.md
            RunOutput.remove_all(self.logger)  # the program may train without a run next


def _is_learning(start_time: float) -> bool:
    """Return whether the `learn` that began at `start_time` is running; no callback is called when it raises."""
    models = [frame.f_locals.get("self") for frame, _ in walk_stack(currentframe()) if frame.f_code.co_name == "learn"]
    return any(getattr(model, "start_time", None) == start_time for model in models)


def _hyperparameters(model: BaseAlgorithm) -> dict[str, Any]:
    """Return the constructor arguments of the model that are plain data."""
    plain = {name: value for name, value in vars(model).items() if isinstance(value, bool | int | float | str)}
    spec = getattr(getattr(model.env, "envs", [None])[0], "spec", None)
    basics = {"algorithm": type(model).__name__, "policy": model.policy_class.__name__, "num_envs": model.n_envs}
    basics |= {"python": platform.python_version(), **({} if spec is None else {"env": spec.id})}
    return basics | {name: value for name, value in plain.items() if name[0] != "_" and name not in _COUNTERS}
