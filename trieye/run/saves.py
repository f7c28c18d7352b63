"""Asynchronous saves: `SaveHandle` for one checkpoint, and the queue of saves in progress or not yet reported."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent import futures
from concurrent.futures import Future
from operator import index
from pathlib import Path
from typing import Any, Literal

from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.hub.saved_states import SavedCheckpoint
from trieye.process.worker import settle
from trieye.run.media import float_of

MAX_IN_FLIGHT = 2
"""Maximum number of states in memory: a further save waits for the oldest one, or replaces the newest one."""

Begin = Callable[[], "Future[SavedCheckpoint]"]
"""Starts to write a state; never blocks."""


class SaveHandle:
    """A save that `Run.save` started.

    Attributes:
        step: Step of the saved state.
        superseded: Whether a later save replaced this one before it was started (`persistence.save_policy=coalesce`).
    """

    def __init__(self, run_name: str, step: int, parts: Collection[str]) -> None:
        self.step, self.superseded = step, False
        self._run_name = run_name
        self._parts = frozenset(parts)
        self._outcome: Future[str] = Future()

    @property
    def done(self) -> bool:
        """Whether the save is safe on disk or has failed; a superseded save is done when its successor is."""
        return self._outcome.done()

    @property
    def path(self) -> Path | None:
        """Directory of the checkpoint once it is safe on disk; None before, and after a failure."""
        outcome = self._outcome
        return Path(outcome.result()) if outcome.done() and outcome.exception() is None else None

    def wait(self, timeout_s: float | None = None) -> Path:
        """Wait until the checkpoint is safe on disk, and return its directory.

        Args:
            timeout_s: Seconds to wait; None waits without limit.

        Raises:
            CheckpointError: The checkpoint could not be written.
            TimeoutError: The checkpoint was not written in time.
        """
        try:
            return Path(self._outcome.result(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)))
        except (CheckpointError, TimeoutError):
            raise
        except Exception as error:  # a remote call wraps the original exception
            raise CheckpointError(f"a checkpoint of run {self._run_name!r} was not saved: {error}") from error

    def settle(self) -> None:
        """Wait until the save is done, successfully or not."""
        futures.wait([self._outcome])

    def __repr__(self) -> str:
        state = "failed" if self.done and self.path is None else "done" if self.done else "in progress"
        return f"<trieye.SaveHandle of step {self.step}, {state}>"

    def _supersede_by(self, successor: "SaveHandle") -> None:
        """Take over the outcome of another save; callers may already wait for this one."""
        self.superseded = True
        successor._outcome.add_done_callback(lambda done: settle(self._outcome, done.result))  # noqa: SLF001 - its own class


def step_to_save(step: Any) -> int:
    """Return the step of a checkpoint as an int.

    Raises:
        ConfigurationError: The step is negative, or needs more than 64 bits.
        TypeError: The step is not an integer.
    """
    try:
        step_index = index(step)
    except TypeError as error:
        raise TypeError(f"save(step={step!r}): step must be an integer") from error
    if not 0 <= step_index < 2**63:
        raise ConfigurationError(f"save(step={step_index}): step must be at least 0 and less than 2**63")
    return step_index


def objective_of(call: Literal["save", "rate"], objective: Any) -> float | None:
    """Return the objective of a checkpoint as a float; None if it is absent or, for `save`, still being measured.

    Raises:
        ConfigurationError: It is neither a number, nor None, nor `later` for `save`.
    """
    if objective is None or (call == "save" and isinstance(objective, str) and objective == "later"):
        return None
    choices = "a number, 'later' or None" if call == "save" else "a number or None"
    if isinstance(objective, str):
        raise ConfigurationError(f"{call}(objective={objective!r}): objective must be {choices}")
    try:
        return float_of(objective)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ConfigurationError(f"{call}(objective=...): objective must be {choices}: {error}") from error


class PendingSaves:
    """The saves of a run that are in progress or not yet reported; for use by a single thread.

    Args:
        run_name: Name of the run, for messages.
        policy: Treatment of a further save while `MAX_IN_FLIGHT` saves are in progress; see `persistence.save_policy`.
    """

    def __init__(self, run_name: str, policy: Literal["queue", "coalesce"] = "queue") -> None:
        self._run_name = run_name
        self._policy = policy
        self._saves: list[SaveHandle] = []
        self._waiting: deque[tuple[SaveHandle, Begin, bool]] = deque()  # two only while the first is being started
        self._parts: frozenset[str] = frozenset()
        self._requests: list[Future[None]] = []
        # must not be linked; a save that started before the damage was detected may still link them
        self._damaged_parts: set[str] = set()
        # guards `_waiting` and the position of its saves in `_saves`: the writing thread reports the end of a save;
        # acquired with no other lock held
        self._lock = threading.RLock()

    @property
    def known_parts(self) -> frozenset[str]:
        """Names of the parts in the newest checkpoint that is safe on disk; see `StateParts`.

        Excluded are parts that a save in progress lacks: that checkpoint may be deleted once the save is done.
        """
        parts = self._parts - self._damaged_parts
        return parts.intersection(*(save._parts for save in self._saves if not save.done))  # noqa: SLF001 - its own module

    def restored(self, parts: Collection[str]) -> None:
        """Set the parts of the restored checkpoint."""
        self._parts = frozenset(parts)

    def make_room(self, *, rated: bool) -> None:
        """Wait until another save may start; failures are left for `report`, so that they cost no later checkpoint.

        Args:
            rated: Whether the new save has an objective; a save with an objective neither replaces one nor is replaced.
        """
        while len(waiting := [save for save in self._saves if not save.done]) >= MAX_IN_FLIGHT:
            if self._may_replace(rated=rated):
                return
            waiting[0].settle()

    def add(self, step: int, begin: Begin, *, parts: Collection[str], rated: bool) -> SaveHandle:
        """Start a save now; with the policy `coalesce`, after the save in progress.

        Args:
            step: Step of the state.
            begin: Starts to write the state.
            parts: Names of the parts of the state.
            rated: Whether the save has an objective.
        """
        handle = SaveHandle(self._run_name, step, parts)
        with self._lock:
            # a waiting save is started by the end of its predecessor, so its replacement must wait, too
            replaced_save = self._waiting.pop()[0] if self._may_replace(rated=rated) else None
            has_to_wait = self._policy == "coalesce" and any(not save.done for save in self._saves)
            if has_to_wait or replaced_save is not None:
                self._waiting.append((handle, begin, rated))
                self._saves.append(handle)
                if replaced_save is not None:
                    replaced_save._supersede_by(handle)  # noqa: SLF001 - its own module
                    self._saves.remove(replaced_save)
                return handle
        try:
            self._saves.append(handle)
            self._begin(handle, begin)
        except BaseException:
            self._saves.remove(handle)  # the exception reaches the caller, so `report` need not repeat it
            raise
        return handle

    def after(self, step: int, begin: "Callable[[], Future[None]]") -> "Future[None]":
        """Begin a request about a checkpoint once its save is done, and return the outcome of the request."""
        save = next((save for save in self._saves if save.step == step and not save.done), None)
        if save is None:
            return begin()
        outcome = Future[None]()
        self._requests.append(outcome)

        def start(_: "Future[str]") -> None:
            try:
                begin().add_done_callback(lambda done: settle(outcome, done.result))
            except Exception as error:  # noqa: BLE001 - the caller of the request gets it
                outcome.set_exception(error)

        save._outcome.add_done_callback(start)  # noqa: SLF001 - its own module
        return outcome

    def report(self, *, wait: bool, exclude: SaveHandle | None = None) -> None:
        """Remove the saves that are done, and raise the error of the first failed save.

        Args:
            wait: Wait first until all saves are done, even if one fails.
            exclude: A save that is not reported yet.

        Raises:
            CheckpointError: A save failed.
        """
        for save in self._saves if wait else ():
            save.settle()
        if wait:
            futures.wait(self._requests)
            self._requests.clear()
        for save in [save for save in self._saves if save.done and save is not exclude]:
            self._saves.remove(save)
            save.wait()

    def _may_replace(self, *, rated: bool) -> bool:
        with self._lock:
            return bool(self._waiting) and not self._waiting[-1][2] and not rated

    def _begin(self, handle: SaveHandle, begin: Begin) -> None:
        try:
            future = begin()
        except BaseException as error:
            self._fail(handle, error)
            raise
        future.add_done_callback(lambda done: self._finish(handle, done))

    def _finish(self, handle: SaveHandle, done: "Future[SavedCheckpoint]") -> None:
        error = CheckpointError("it was cancelled") if done.cancelled() else done.exception()
        if error is None:
            path, damaged_parts = done.result()
            self._parts = handle._parts  # noqa: SLF001 - its own module
            self._damaged_parts.update(damaged_parts)
            handle._outcome.set_result(path)  # noqa: SLF001 - its own module
        else:
            self._fail(handle, error)
        self._begin_next()

    def _begin_next(self) -> None:
        """Start the waiting save in this thread (`Begin` never blocks); if that fails, try the next waiting save."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                handle, begin, _ = self._waiting.popleft()
            with contextlib.suppress(Exception):  # the handle stores the error, and `report` raises it
                self._begin(handle, begin)
                return

    def _fail(self, handle: SaveHandle, error: BaseException) -> None:
        self._parts = frozenset()  # parts may be missing: the next save writes all of them
        handle._outcome.set_exception(error)  # noqa: SLF001 - its own module
