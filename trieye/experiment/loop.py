"""Loop: run the steps, evaluations and saves of an experiment until a limit is reached."""

import math
import tempfile
import textwrap
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from trieye.checkpoints.store import CheckpointStore
from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.config.names import check_inside
from trieye.exceptions import CheckpointError, ConfigurationError, RunInterrupted, noted
from trieye.experiment.background_evaluation import BackgroundEvaluation
from trieye.experiment.experiment import ConfigT, Experiment, checked_values, imported
from trieye.experiment.finished import Result, TrainingProgress, finished, finished_sentence, is_worse
from trieye.experiment.profiling import Profile
from trieye.files.run_files import RunFiles
from trieye.process import watchdog
from trieye.process.progress import say
from trieye.process.stopping import StepInterrupted, StopRequest
from trieye.run.crash import save_crash
from trieye.run.media import items_of, number_of
from trieye.run.run import Run
from trieye.run.steps import farewell, steps
from trieye.snapshot.generators import seed_all

_MAX_ERROR = 300
_MIN_PATIENCE_STEPS = 100
_MAX_UNCOUNTED_STEPS = 100


def run_alone(experiment: type[Experiment[ConfigT]] | str, config: ConfigT) -> Result:
    """Train until the first limit of `config.loop` is reached; an interrupted run resumes from its last checkpoint.

    A finished run is reported without loading or starting anything.

    Args:
        experiment: The experiment class, or a name such as `my_agent.dqn:DQN`, imported only if training starts.
        config: The config of the run.

    Raises:
        ConfigurationError: The config sets no limit, or `evaluate` does not return the objective.
        CheckpointError: A checkpoint does not fit the experiment, or cannot be saved.
        RunInterrupted: A signal requested a stop; the state is saved.
    """
    limits = config.loop
    check_limits(config)
    if (result := finished(config)) is not None:
        say(result.sentence(limits.objective))
        return result
    experiment_class = checked(experiment, config)
    experiment_class.check_machine(config)
    with Run(config) as run:
        seed_all(config.seed)
        try:
            instance = experiment_class(config, run)
            loop = Loop(instance, run)
            try:
                reason = loop.drive()
            except BaseException as error:
                if isinstance(error, Exception):
                    loop.save_crash(error)
                with noted(error, "cleanup() of the experiment"):
                    instance.cleanup()
                raise
            instance.cleanup()
        finally:
            watchdog.end()
    result = loop.result(reason)
    say(result.sentence(limits.objective))
    if run.stop_requested:  # in the last step: the run is finished, and the program should not start further work
        raise RunInterrupted(f"run {run.name!r} was already finished when a signal arrived", run.exit_code)
    return result


def check_limits(config: TrieyeConfig) -> None:
    """Refuse a training without a limit.

    Raises:
        ConfigurationError: No limit is set.
    """
    limits = config.loop
    if limits.steps is None and limits.env_steps is None and limits.time_s is None and limits.target is None:
        raise ConfigurationError(
            "this run would never stop: set loop.steps, loop.env_steps, loop.time_s or loop.target"
        )


def checked(experiment: type[Experiment[ConfigT]] | str, config: TrieyeConfig) -> type[Experiment[ConfigT]]:
    """Return the class of an experiment, after importing it if `experiment` is a name.

    Raises:
        ConfigurationError: The class does not exist, or does not support the config.
        NotImplementedError: The class lacks a method.
    """
    kind: type[Experiment[ConfigT]] = imported(experiment) if isinstance(experiment, str) else experiment
    if config.loop.background_evaluation and kind.evaluate_saved is Experiment.evaluate_saved:
        raise ConfigurationError(
            f"loop.background_evaluation: {kind.__name__} has no evaluate_saved(), which evaluates checkpoints "
            "concurrently; override it, or remove loop.background_evaluation"
        )
    for name in ("step", "save_checkpoint", "load_checkpoint"):
        if getattr(kind, name) is getattr(Experiment, name):
            raise NotImplementedError(f"{kind.__name__} has no {name}()")
    return kind


class Loop:
    """Drives one experiment in one run, and counts its progress.

    `drive` runs the whole training; call `begin`, `advance` and `end` to take control after each step, as a trial of a
    study does.

    Args:
        experiment: The experiment.
        run: The open run.
        constants: Values to log with each evaluation, before its checkpoint is saved, so that they belong to it.

    Attributes:
        reason: Description of the reached limit; None while training continues.
    """

    def __init__(
        self, experiment: Experiment[Any], run: Run, *, constants: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        self._experiment = experiment
        self._run = run
        self._constants = constants
        self._limits = run.config.loop
        self._progress = TrainingProgress()
        self._profile = Profile(run.config.loop.profile_steps, RunFiles(run.config.trieye.persistence).profile_dir)
        self._began: float | None = None
        self.reason: str | None = None
        self._evaluation_values: Mapping[str, float] | None = None
        self._objective: float | None = None
        self._background = BackgroundEvaluation(experiment)
        self._stop = StopRequest(lambda: run.stop_requested_at)
        self._rating: Future[None] | None = None
        self._has_skipped = False

    def drive(self) -> str:
        """Train until a limit is reached, and return its description."""
        self.begin()
        run = self._run
        if self.reason is not None:
            say(finished_sentence(run.name, self.reason))
            return self.reason
        for _ in steps(run, self._limits.steps, counts=self._counts_steps):
            self._round()
            if self.reason is not None or self._progress.owes_evaluation:
                break
        if self._progress.owes_evaluation:
            run.wait_for_saves()
            raise RunInterrupted(farewell(run), run.exit_code)
        self.end()
        assert self.reason is not None  # noqa: S101 - `steps` raises, or ends at loop.steps, which sets a reason
        return self.reason

    def begin(self, checkpoint: Path | None = None) -> None:
        """Restore the checkpoint of the config, or `checkpoint` of any run, and repeat an interrupted evaluation.

        Raises:
            CheckpointError: A checkpoint is damaged, or does not fit the experiment.
        """
        run = self._run
        if run.restore(from_checkpoint=checkpoint, experiment=_ExperimentState(self._experiment), loop=self):
            progress = self._progress
            if run.resumed_from_another:
                progress.best = None  # the checkpoint with this objective belongs to the other run
                run.step = run.saved_step = progress.counted()[self._limits.axis]
                progress.evaluated_step = min(progress.evaluated_step, run.step)  # the other run's axis may differ
                if self._experiment.can_save:  # this run must not depend on the checkpoints of the other
                    self._objective, run.saved_step = None, -1
                    self.save()
        self._progress.rate_by(self._limits)
        self._resume_evaluation()
        self.reason = self._reason_to_stop()
        is_unrated = self._background.step is not None or self._progress.evaluated_step != run.step > 0
        if self._progress.owes_evaluation or (self.reason is not None and is_unrated):
            self._progress.owes_evaluation, run.saved_step = False, -1  # the state is saved again, with its objective
            self._evaluate_all(is_last=self.reason is not None)
            self.reason = self._reason_to_stop()
            self.save()
        self._began = time.monotonic()

    def advance(self) -> Mapping[str, float] | None:
        """Run one step, and the evaluations and saves due after it; return the values of an evaluation that ended."""
        self._run.step += self._counts_steps
        self._evaluation_values = None
        self._round()
        return self._evaluation_values

    def end(self) -> None:
        """Write the profile, and wait until the last objective is stored."""
        self._profile.close()
        if self._rating is not None:
            self._rating.result()

    def save_crash(self, error: Exception) -> None:
        """Save the state at an error as `crash-<step>` and add a note to the error, unless no step would be lost.

        After a failed save or non-finite values there is no usable state, and none is saved.
        """
        is_unfit = isinstance(error, CheckpointError | FloatingPointError)
        if self._began is None or is_unfit or self._run.saved_step == self._run.step:
            return
        with noted(error, "saving the state at this error"):
            path = save_crash(self._run, experiment=_ExperimentState(self._experiment), loop=self)
            is_resumable = bool(CheckpointStore(path.parent, read_only=True).entries())
            resume = "resumes from the checkpoint before it" if is_resumable else "has no checkpoint to resume from"
            error.add_note(
                f"the state at this error is saved in {path}; run_name={self._run.name} {resume}; another "
                "run_name with persistence.load_checkpoint_path starts from the saved state"
            )

    @property
    def progress(self) -> TrainingProgress:
        """The progress of the training, up to now."""
        since_s = 0.0 if self._began is None else time.monotonic() - self._began
        return replace(self._progress, time_s=self._progress.time_s + since_s)

    @property
    def _counts_steps(self) -> bool:
        return self._limits.axis == "step"

    def result(self, stop_reason: str) -> Result:
        """Return the result of the training, after the run was closed."""
        run = self._run
        store = CheckpointStore(RunFiles(run.config.trieye.persistence).checkpoint_dir, read_only=True)
        # reads only the manifests: the checkpoints were verified before
        entries = [*store.ranked(self._limits.mode), *reversed(store.entries())]
        best = entries[0].path if entries else None
        return Result(self._progress.best, run.step, self._progress.env_steps, stop_reason, run.dir, best)

    def _round(self) -> None:
        """Run the current step, and the evaluations and saves due after it."""
        try:
            self._one_step()
        except StepInterrupted as interruption:
            self._leave_step(interruption)
            return
        self._collect_background(wait=False)
        self.reason = self._reason_to_stop()
        try:
            if self.reason is not None or self._is_due(
                self._limits.evaluate_every_steps, self._progress.evaluated_step
            ):
                is_last = self.reason is not None
                self._evaluate_all(is_last=is_last)
                # a limit that is reached while a background evaluation starts ends the next round, which evaluates
                if is_last or not self._limits.background_evaluation:
                    self.reason = self._reason_to_stop()
        except StepInterrupted as interruption:
            say(f"{interruption}: the evaluation is skipped, and the next start runs it first")
            self.reason, self._progress.owes_evaluation = None, True
        if self.reason is not None or self._save_due():
            self.save()

    def _leave_step(self, interruption: StepInterrupted) -> None:
        """Save the state without the interrupted step, which the next start repeats."""
        say(f"{interruption}: the step is abandoned, and its rows are lost")
        for name in ("env_steps", "updates"):  # counts of the completed parts of the step
            setattr(self._progress, name, getattr(self._progress, name) + int(interruption.made.get(name) or 0))
        self._run.step = self._progress.counted()[self._limits.axis]
        self.save()

    def _evaluate_all(self, *, is_last: bool) -> None:
        if is_last:
            self._collect_background(wait=True)
            self._evaluate()
        elif self._limits.background_evaluation:
            self._evaluate_in_background()
        else:
            self._evaluate()

    def _one_step(self) -> None:
        began = time.perf_counter()
        values = checked_values(self._experiment, "step", self._experiment.advance())
        duration_s = time.perf_counter() - began
        axis = self._limits.axis
        if axis != "step" and values.get(axis) is None:
            kind = type(self._experiment).__name__
            raise ConfigurationError(f"loop.axis={axis}: {kind}.step() returned no {axis!r} to count")
        self._progress.count(values)
        self._check_env_steps(values)
        counts = self._progress.counted()
        self._run.step = counts[axis]
        names = {name for name in counts if values.get(name) is not None} | ({"step"} - {axis})
        self._run.log("time/step_ms", duration_s * 1000.0)
        self._run.log({f"progress/{name}": counts[name] for name in sorted(names)})
        self._run.log(values)
        self._profile.after_step(values)

    def _check_env_steps(self, values: Mapping[str, Any]) -> None:
        """Refuse an experiment that counts no environment steps if they are the only limit: it would never stop."""
        limits, progress = self._limits, self._progress
        is_only_limit = limits.env_steps and limits.steps is None and limits.time_s is None and limits.target is None
        is_uncounted = values.get("env_steps") is None and progress.env_steps == 0
        if is_only_limit and is_uncounted and progress.iterations >= _MAX_UNCOUNTED_STEPS:
            raise ConfigurationError(
                f"loop.env_steps={limits.env_steps}: {type(self._experiment).__name__}.step() returned no 'env_steps' "
                f"in {progress.iterations} steps; return the number (0 if there were none), or set loop.steps"
            )

    def _save_due(self) -> bool:
        run = self._run
        return run.stop_requested or self._is_due(run.config.persistence.checkpoint_save_freq_steps, run.saved_step)

    def _is_due(self, every: int, last_step: int) -> bool:
        """Return whether an action with an interval of `every` steps is due; `Experiment.can_save` may delay it."""
        periods = max(last_step, 0) // every + 1 if every > 0 else 0
        waited_steps = self._run.step - periods * every
        if every <= 0 or waited_steps < 0:
            return False
        return waited_steps >= max(every // 2, _MIN_PATIENCE_STEPS) or self._experiment.can_save

    def _evaluate(self) -> None:
        if self._progress.evaluated_step == self._run.step:
            return
        values = dict(items_of(checked_values(self._experiment, "evaluate", self._experiment.evaluate())))
        self._log_evaluation(values, self._run.step)
        self._progress.evaluated_step = self._run.step
        self._objective = self._objective_in(values, self._run.step)
        if self._objective is not None and self._is_better(self._objective):
            self._progress.best = self._objective
            self.save()

    def _evaluate_in_background(self) -> None:
        """Save a checkpoint and start its evaluation, unless the previous evaluation is still running."""
        step = self._run.step
        self._progress.evaluated_step, self._objective = step, None
        if self._background.step is None:
            self._progress.evaluating = step
            state = _ExperimentState(self._experiment)
            self._background.begin(step, self._run.save(objective="later", experiment=state, loop=self))
        elif not self._has_skipped:
            self._has_skipped = True
            say(
                f"the evaluation of step {self._background.step} is still running at step {step}, when the next one is "
                "due: it is skipped, and so are later ones, without further messages; increase "
                "loop.evaluate_every_steps to avoid this"
            )

    def _collect_background(self, *, wait: bool) -> None:
        """Log the values of a background evaluation at the step of its checkpoint, and rate the checkpoint."""
        if (outcome := self._background.take(wait=wait, stop=self._stop)) is None:
            return
        step, values = outcome[0], dict(items_of(checked_values(self._experiment, "evaluate", outcome[1])))
        self._progress.evaluating = None
        self._log_evaluation(values, step)
        if self._rating is not None:
            self._rating.result()  # stored long ago; raises if that failed
        objective = self._objective_in(values, step)
        self._rating = self._run.rate(step, objective)
        if objective is not None and self._is_better(objective):
            self._progress.best = objective

    def _resume_evaluation(self) -> None:
        """Restart the background evaluation that was running when the state was saved."""
        step, self._progress.evaluating = self._progress.evaluating, None
        if step is None or self._run.resumed_from_another or not self._limits.background_evaluation:
            return
        checkpoint = CheckpointStore(RunFiles(self._run.config.persistence).checkpoint_dir, read_only=True).path(step)
        if checkpoint.is_dir():
            self._progress.evaluating = step
            self._background.begin(step, checkpoint)

    def _log_evaluation(self, values: Mapping[str, float], step: int) -> None:
        self._progress.evaluations += 1
        self._evaluation_values = values
        self._run.log({**values, **self._constants}, step=step)
        self._run.flush()  # evaluations are rare: show their points immediately

    def _objective_in(self, values: Mapping[str, float], step: int) -> float | None:
        name = self._limits.objective
        if not values:
            return None
        if name not in values:
            raise ConfigurationError(
                f"loop.objective={name}: evaluate() returned no value of that name{did_you_mean(name, values)} "
                f"(choose from: {', '.join(values)})"
            )
        value = number_of(name, values[name])
        if not math.isfinite(value):
            say(f"the objective {name} is {value} at step {step} and is ignored")
            return None
        return value

    def _is_better(self, value: float) -> bool:
        return self._progress.best is None or is_worse(self._progress.best, value, self._limits.mode)

    def save(self) -> None:
        """Save the current state, unless it is saved already."""
        if self._run.saved_step == self._run.step:
            return
        objective = self._objective if self._progress.evaluated_step == self._run.step else None
        self._run.save(objective=objective, experiment=_ExperimentState(self._experiment), loop=self)

    def _reason_to_stop(self) -> str | None:
        return self.progress.reason_to_stop(self._limits, self._run.step)

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the training."""
        return asdict(self.progress)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved progress."""
        self._progress = TrainingProgress(**state)


class _ExperimentState:
    """Adapts the checkpoint methods of an experiment to `state_dict` and `load_state_dict`."""

    is_costly_to_ask = True  # `state_dict` runs `save_checkpoint` of the user

    def __init__(self, experiment: Experiment[Any]) -> None:
        self._experiment = experiment

    def state_dict(self) -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            state = self._experiment.save_checkpoint(directory)
            if isinstance(state, str | Path) and Path(state) == directory:
                state = None
            files = sorted(path for path in directory.rglob("*") if path.is_file())
            kind = type(self._experiment).__name__
            if state is not None and files:
                raise CheckpointError(
                    f"{kind}.save_checkpoint wrote {files[0].name} and returned a state; return None to save the "
                    "files, or everything as the state"
                )
            if state is not None:
                return {"state": state}
            if not files:
                raise CheckpointError(f"{kind}.save_checkpoint returned None and wrote no file; is a `return` missing?")
            return {"files": {str(path.relative_to(directory)): _bytes_of(path) for path in files}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        try:
            if "state" in state:
                self._experiment.load_checkpoint(state["state"])
                return
            with tempfile.TemporaryDirectory() as directory_name:
                for relative_path, content in state["files"].items():
                    file_path = Path(directory_name) / check_inside(relative_path)
                    file_path.parent.mkdir(parents=True, exist_ok=True)
                    file_path.write_bytes(content.tobytes())
                self._experiment.load_checkpoint(Path(directory_name))
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(
                f"the checkpoint does not fit {type(self._experiment).__name__} with the current config: "
                f"{textwrap.shorten(reason, _MAX_ERROR, placeholder=' ...')}; "  # torch names each parameter
                "restore the config of the checkpoint, or choose another run_name"
            ) from error


def _bytes_of(path: Path) -> Any:
    # arrays are stored with the tensors, bytes would become JSON
    return np.frombuffer(path.read_bytes(), dtype=np.uint8)
