"""Loop: what drives an experiment in its run, until a limit is reached."""

import math
import tempfile
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
from trieye.experiment.beside import Beside
from trieye.experiment.experiment import ConfigT, Experiment, imported
from trieye.experiment.finished import Progress, Result, finished, finished_sentence
from trieye.experiment.profiling import Profile
from trieye.files.run_files import RunFiles
from trieye.process import watchdog
from trieye.process.progress import say
from trieye.process.stopping import StepInterrupted, StopRequest
from trieye.run.crash import save_crash
from trieye.run.media import number_of
from trieye.run.run import Run
from trieye.run.steps import farewell, steps
from trieye.snapshot.generators import seed_all

_MIN_PATIENCE_STEPS = 100


def run_alone(experiment: type[Experiment[ConfigT]] | str, config: ConfigT) -> Result:
    """Train until the first limit of `config.loop`; a run that was interrupted goes on where it was saved.

    A run that is finished says so, and nothing is loaded or started for it.

    Args:
        experiment: What to train: a class, or `my_agent.dqn:DQN`, which is imported when it is needed.
        config: The config of the run.

    Raises:
        ConfigurationError: The config sets no limit, or `evaluate` does not return the objective.
        CheckpointError: A checkpoint does not fit the experiment, or cannot be saved.
        RunInterrupted: A signal asked the run to stop; its state is saved.
    """
    limits = config.loop
    check_limits(config)
    if (done := finished(config)) is not None:
        say(done.sentence(limits.objective))
        return done
    experiment_class = checked(experiment, config)
    experiment_class.check_machine(config)
    with Run(config) as run:
        say(f"run {run.name!r}, attempt {run.attempt}, in {run.dir}")
        seed_all(config.seed)
        try:
            made = experiment_class(config, run)
            loop = Loop(made, run)
            try:
                reason = loop.drive()
            except BaseException as error:
                if isinstance(error, Exception):
                    loop.keep_crash(error)
                with noted(error, "cleanup() of the experiment"):
                    made.cleanup()
                raise
            made.cleanup()
        finally:
            watchdog.end()
    result = loop.result(reason)
    say(result.sentence(limits.objective))
    if run.stop_requested:  # in its last step: this run is finished, and what comes after it is not wanted
        raise RunInterrupted(f"run {run.name!r} was finished when it was asked to stop", run.exit_code)
    return result


def check_limits(config: TrieyeConfig) -> None:
    """Refuse a training that would never stop.

    Raises:
        ConfigurationError: No limit is set.
    """
    limits = config.loop
    if limits.steps is None and limits.env_steps is None and limits.time_s is None and limits.target is None:
        raise ConfigurationError(
            "this run would never stop: set loop.steps, loop.env_steps, loop.time_s or loop.target"
        )


def checked(experiment: type[Experiment[ConfigT]] | str, config: TrieyeConfig) -> type[Experiment[ConfigT]]:
    """Return the class of an experiment, imported if it is given by its name.

    Raises:
        ConfigurationError: It is not there, or cannot do what the config asks for.
        NotImplementedError: It lacks a method.
    """
    kind: type[Experiment[ConfigT]] = imported(experiment) if isinstance(experiment, str) else experiment
    if config.loop.background_evaluation and kind.evaluate_saved is Experiment.evaluate_saved:
        raise ConfigurationError(
            f"loop.background_evaluation: {kind.__name__} has no evaluate_saved(), which begins to evaluate a "
            "checkpoint elsewhere; override it, or leave loop.background_evaluation out"
        )
    for name in ("step", "save_checkpoint", "load_checkpoint"):
        if getattr(kind, name) is getattr(Experiment, name):
            raise NotImplementedError(f"{kind.__name__} has no {name}()")
    return kind


class Loop:
    """One experiment, one run, and how far they are.

    `drive` does all of it; whoever wants to look in between calls `begin`, `advance` and `end`, as a trial
    of a study does.

    Args:
        experiment: The experiment.
        run: Its run, which is open.
        constants: Values to log with each evaluation, before it is saved, so that they belong to its checkpoint.

    Attributes:
        reason: Which limit is reached; None as long as there is something left to do.
    """

    def __init__(
        self, experiment: Experiment[Any], run: Run, *, constants: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        self._experiment = experiment
        self._run = run
        self._constants = constants
        self._limits = run.config.loop
        self._at = Progress()
        self._profile = Profile(run.config.loop.profile_steps, RunFiles(run.config.trieye.persistence).profile_dir)
        self._began: float | None = None
        self.reason: str | None = None
        self._found: Mapping[str, float] | None = None
        self._objective: float | None = None
        self._beside = Beside(experiment)
        self._stop = StopRequest(lambda: run.stop_requested_at)
        self._rating: Future[None] | None = None
        self._has_skipped = False

    def drive(self) -> str:
        """Train until a limit is reached, and return which one it was."""
        self.begin()
        run = self._run
        if self.reason is not None:
            say(finished_sentence(run.name, self.reason))
            return self.reason
        for _ in steps(run, self._limits.steps, counts=self._counts_steps):
            self._round()
            if self.reason is not None or self._at.owes_evaluation:
                break
        if self._at.owes_evaluation:
            run.wait_for_saves()
            raise RunInterrupted(farewell(run), run.exit_code)
        self.end()
        assert self.reason is not None  # noqa: S101 - `steps` ends at loop.steps, which is a reason, or raises
        return self.reason

    def begin(self, checkpoint: Path | None = None) -> None:
        """Go on where the run was saved, or from a checkpoint that somebody kept for it, or that is another run's.

        Raises:
            CheckpointError: A checkpoint is damaged, or does not fit the experiment.
        """
        run = self._run
        if run.restore(from_checkpoint=checkpoint, experiment=_State(self._experiment), loop=self):
            self._at.iterations = self._at.iterations or run.step  # an earlier version counted nothing else
            self._at.evaluated_step = run.step if self._at.evaluated_step is None else self._at.evaluated_step
            if run.resumed_from_another:  # whose best checkpoint is not among those of this run
                self._at.best = None
                run.step = run.saved_step = self._at.counted()[self._limits.axis]
                self._at.evaluated_step = min(self._at.evaluated_step, run.step)  # it may have counted otherwise
                self._keep_as_own()
        self._resume_evaluation()
        self.reason = self._reason_to_stop()
        if self._at.owes_evaluation:
            self._at.owes_evaluation, run.saved_step = False, -1  # saved again, with its objective
            self._evaluate_all(is_last=self.reason is not None)
            self.reason = self._reason_to_stop()
            self._save()
        self._began = time.monotonic()

    def advance(self) -> Mapping[str, float] | None:
        """Make one step, and do what is due after it; return what an evaluation has found, if one has ended."""
        self._run.step += self._counts_steps
        self._found = None
        self._round()
        return self._found

    def end(self) -> None:
        """Wait for what is still under way of the last step."""
        self._profile.close()
        if self._rating is not None:
            self._rating.result()

    def save(self) -> None:
        """Save the present state, unless that is done."""
        self._save()

    def keep_crash(self, error: Exception) -> None:
        """Save the state at an error as `crash-<step>` and add a note to the error, unless nothing would be lost.

        A save that failed, or values that are not finite, are no state to keep.
        """
        is_unfit = isinstance(error, CheckpointError | FloatingPointError)
        if self._began is None or is_unfit or self._run.saved_step == self._run.step:
            return
        with noted(error, "saving the state that this error left behind"):
            path = save_crash(self._run, experiment=_State(self._experiment), loop=self)
            error.add_note(
                f"the state that this error left behind is saved: {path}. run_name={self._run.name} resumes from the "
                "last checkpoint before it; another run_name with persistence.load_checkpoint_path starts from it"
            )

    @property
    def progress(self) -> Progress:
        """How far the training is."""
        return self._now()

    @property
    def _counts_steps(self) -> bool:
        return self._limits.axis == "step"

    def _keep_as_own(self) -> None:
        """Save what another run had saved, so that this one goes on without it: that one may be deleted, or change."""
        if self._experiment.can_save:  # else the first save that is due does it
            self._objective, self._run.saved_step = None, -1
            self._save()

    def result(self, stop_reason: str) -> Result:
        """Return how the training ended; the run is closed."""
        run = self._run
        store = CheckpointStore(RunFiles(run.config.trieye.persistence).checkpoint_dir, read_only=True)
        found = [*store.ranked(self._limits.mode), *reversed(store.entries())]  # by their manifests: they were verified
        best = found[0].path if found else None
        return Result(self._at.best, run.step, self._at.env_steps, stop_reason, run.dir, best)

    def _round(self) -> None:
        """Make a step whose number is known, and do what is due after it."""
        try:
            self._one_step()
        except StepInterrupted as interruption:
            self._leave_step(interruption)
            return
        self._take_beside(wait=False)
        self.reason = self._reason_to_stop()
        try:
            if self.reason is not None or self._evaluation_due():
                self._evaluate_all(is_last=self.reason is not None)
                self.reason = self._reason_to_stop()
        except StepInterrupted as interruption:
            say(f"{interruption}: the evaluation is skipped, and the next start runs it first")
            self.reason, self._at.owes_evaluation = None, True
        if self.reason is not None or self._save_due():
            self._save()

    def _leave_step(self, interruption: StepInterrupted) -> None:
        """Save the state without the interrupted step, which the next start repeats."""
        say(f"{interruption}: the step is abandoned, and its rows are lost")
        for name in ("env_steps", "updates"):  # of its complete parts
            setattr(self._at, name, getattr(self._at, name) + int(interruption.made.get(name) or 0))
        self._run.step = self._at.counted()[self._limits.axis]
        self._save()

    def _evaluate_all(self, *, is_last: bool) -> None:
        if is_last:
            self._take_beside(wait=True)
            self._evaluate()
        elif self._limits.background_evaluation:
            self._evaluate_beside()
        else:
            self._evaluate()

    def _one_step(self) -> None:
        began = time.perf_counter()
        values = self._experiment.advance()
        taken_s = time.perf_counter() - began
        axis = self._limits.axis
        if axis != "step" and values.get(axis) is None:
            kind = type(self._experiment).__name__
            raise ConfigurationError(f"loop.axis={axis}: {kind}.step() returned no {axis!r}, which the run is to count")
        self._at.count(values)
        counted = self._at.counted()
        self._run.step = counted[axis]
        told = {name for name in counted if values.get(name) is not None} | ({"step"} - {axis})
        self._run.log("time/step_ms", taken_s * 1000.0)
        self._run.log({f"progress/{name}": counted[name] for name in sorted(told)})
        self._run.log(values)
        self._profile.after_step(values)

    def _evaluation_due(self) -> bool:
        return self._is_turn(self._limits.evaluate_every_steps, self._at.evaluated_step)

    def _save_due(self) -> bool:
        run = self._run
        return run.stop_requested or self._is_turn(run.config.persistence.checkpoint_save_freq_steps, run.saved_step)

    def _is_turn(self, every: int, last_step: int | None) -> bool:
        """Tell whether to do what is done every so many steps; it waits for an experiment that cannot be saved now."""
        periods = max(last_step or 0, 0) // every + 1 if every > 0 else 0
        waited = self._run.step - periods * every
        if every <= 0 or waited < 0:
            return False
        return waited >= max(every, _MIN_PATIENCE_STEPS) or self._experiment.can_save

    def _evaluate(self) -> None:
        if self._at.evaluated_step == self._run.step:
            return
        values = self._experiment.evaluate()
        self._note(values, self._run.step)
        self._at.evaluated_step = self._run.step
        self._objective = self._objective_in(values, self._run.step)
        if self._objective is not None and self._is_better(self._objective):
            self._at.best = self._objective
            self._save()

    def _evaluate_beside(self) -> None:
        """Save, and begin to evaluate what was saved; an evaluation that is still under way takes the turn."""
        step = self._run.step
        self._at.evaluated_step, self._objective = step, None
        if self._beside.step is None:
            self._at.evaluating = step
            self._beside.begin(step, self._run.save(objective="later", experiment=_State(self._experiment), loop=self))
        elif not self._has_skipped:
            self._has_skipped = True
            say(
                f"the evaluation of step {self._beside.step} is still under way at step {step}, where the next one is "
                "due: it is left out, and so are others to come; a larger loop.evaluate_every_steps gives them time"
            )

    def _take_beside(self, *, wait: bool) -> None:
        """Log what the evaluation beside the training found, at the step of its checkpoint, and rate that."""
        if (found := self._beside.take(wait=wait, stop=self._stop)) is None:
            return
        step, values = found
        self._at.evaluating = None
        self._note(values, step)
        if self._rating is not None:
            self._rating.result()  # long noted; what went wrong is raised
        objective = self._objective_in(values, step)
        self._rating = self._run.rate(step, objective)
        if objective is not None and self._is_better(objective):
            self._at.best = objective

    def _resume_evaluation(self) -> None:
        """Begin again the evaluation that was under way when the state was saved."""
        step, self._at.evaluating = self._at.evaluating, None
        if step is None or self._run.resumed_from_another or not self._limits.background_evaluation:
            return
        checkpoint = CheckpointStore(RunFiles(self._run.config.persistence).checkpoint_dir, read_only=True).path(step)
        if checkpoint.is_dir():
            self._at.evaluating = step
            self._beside.begin(step, checkpoint)

    def _note(self, values: Mapping[str, float], step: int) -> None:
        self._at.evaluations += 1
        self._found = values
        self._run.log({**values, **self._constants}, step=step)
        self._run.flush()  # an evaluation is complete and rare: its points are shown now

    def _objective_in(self, values: Mapping[str, float], step: int) -> float | None:
        name = self._limits.objective
        if not values:
            return None
        if name not in values:
            raise ConfigurationError(
                f"loop.objective={name}: evaluate() returned no such value{did_you_mean(name, values)} "
                f"(it returned: {', '.join(values)})"
            )
        value = number_of(name, values[name])
        if not math.isfinite(value):
            say(f"the objective {name} is {value} at step {step}; it counts as none")
            return None
        return value

    def _is_better(self, value: float) -> bool:
        if self._at.best is None:
            return True
        return value > self._at.best if self._limits.mode == "max" else value < self._at.best

    def _save(self) -> None:
        if self._run.saved_step == self._run.step:
            return
        evaluated = self._at.evaluated_step == self._run.step
        objective = self._objective if evaluated else None
        self._run.save(objective=objective, experiment=_State(self._experiment), loop=self)

    def _reason_to_stop(self) -> str | None:
        return self._now().reason_to_stop(self._limits, self._run.step)

    def _now(self) -> Progress:
        since_s = 0.0 if self._began is None else time.monotonic() - self._began
        return replace(self._at, time_s=self._at.time_s + since_s)

    def state_dict(self) -> dict[str, Any]:
        """Return how far the training is."""
        return asdict(self._now())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over how far a training was."""
        self._at = Progress(**{"evaluated_step": None, **state})


class _State:
    """The checkpoint methods of an experiment as `state_dict` and `load_state_dict`."""

    is_costly_to_ask = True  # `state_dict` runs `save_checkpoint` of the user

    def __init__(self, experiment: Experiment[Any]) -> None:
        self._experiment = experiment

    def state_dict(self) -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            state = self._experiment.save_checkpoint(directory)
            if state is not None:
                return {"state": state}
            files = sorted(path for path in directory.rglob("*") if path.is_file())
            if not files:
                kind = type(self._experiment).__name__
                raise CheckpointError(
                    f"{kind}.save_checkpoint returned nothing and wrote no file; is a `return` missing?"
                )
            return {"files": {str(path.relative_to(directory)): _bytes_of(path) for path in files}}

    def load_state_dict(self, held: Mapping[str, Any]) -> None:
        try:
            self._load(held)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint does not fit {type(self._experiment).__name__} as it is configured now: {error}; "
                "configure it as it was, or choose another run_name"
            ) from error

    def _load(self, held: Mapping[str, Any]) -> None:
        if "state" in held:
            self._experiment.load_checkpoint(held["state"])
            return
        with tempfile.TemporaryDirectory() as name:
            for relative, content in held["files"].items():
                path = Path(name) / check_inside(relative)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.tobytes())
            self._experiment.load_checkpoint(Path(name))


def _bytes_of(path: Path) -> Any:
    # as an array it goes beside the tensors instead of into JSON
    return np.frombuffer(path.read_bytes(), dtype=np.uint8)
