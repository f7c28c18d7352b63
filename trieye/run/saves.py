"""PendingSaves: checkpoints that are being written, and those of which the user does not know yet how they ended."""

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
from trieye.hub.saved_states import Saved

MAX_IN_FLIGHT = 2
"""Never more states in memory than that: a save beyond it waits for the oldest, or replaces the newest."""

Begin = Callable[[], "Future[Saved]"]
"""Hands a state over to be written, without waiting for anything."""


class SaveHandle:
    """A save that `Run.save` began.

    Attributes:
        step: The step that it saves.
    """

    def __init__(self, run_name: str, step: int, parts: Collection[str]) -> None:
        self.step = step
        self._run_name = run_name
        self._parts = frozenset(parts)
        self._outcome: Future[str] = Future()
        self._is_superseded = False

    @property
    def superseded(self) -> bool:
        """Whether a later save took its place before it was begun (`persistence.save_policy=coalesce`)."""
        return self._is_superseded

    @property
    def done(self) -> bool:
        """Whether it is safe on disk, or has failed; of a superseded one, whether that is so of its successor."""
        return self._outcome.done()

    @property
    def path(self) -> Path | None:
        """Directory of the checkpoint when it is safe on disk; None before, or if it failed."""
        outcome = self._outcome
        return Path(outcome.result()) if outcome.done() and outcome.exception() is None else None

    def wait(self, timeout_s: float | None = None) -> Path:
        """Return the directory of the checkpoint when it is safe on disk.

        Args:
            timeout_s: Seconds to wait; None: as long as it takes.

        Raises:
            CheckpointError: It could not be written.
            TimeoutError: It is not written yet.
        """
        try:
            return Path(self._outcome.result(timeout_s))
        except (CheckpointError, TimeoutError):
            raise
        except Exception as error:  # a remote call wraps what happened there
            raise CheckpointError(f"a checkpoint of run {self._run_name!r} was not saved: {error}") from error

    def settle(self) -> None:
        """Wait until it is safe on disk or has failed, whichever it is."""
        futures.wait([self._outcome])

    def __repr__(self) -> str:
        state = "failed" if self.done and self.path is None else "done" if self.done else "under way"
        return f"<trieye.SaveHandle of step {self.step}, {state}>"

    def _give_way(self, successor: "SaveHandle") -> None:
        """End as another save does; others may be waiting for this one already."""
        self._is_superseded = True
        successor._outcome.add_done_callback(self._end_as)  # noqa: SLF001 - its own class

    def _end_as(self, outcome: "Future[str]") -> None:
        if (error := outcome.exception()) is not None:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(outcome.result())


def step_to_save(step: Any) -> int:
    """Return the step that names a checkpoint.

    Raises:
        ConfigurationError: It is negative.
        TypeError: It is no integer.
    """
    try:
        number = index(step)
    except TypeError as error:
        raise TypeError(f"save(step={step!r}): a step is an integer") from error
    if number < 0:
        raise ConfigurationError(f"save(step={number}): steps begin at 0")
    return number


class PendingSaves:
    """The saves of a run that were handed over and not yet reported; used by one thread.

    Args:
        run_name: For messages.
        policy: What happens to a save while two are under way; see `persistence.save_policy`.
    """

    def __init__(self, run_name: str, policy: Literal["queue", "coalesce"] = "queue") -> None:
        self._run_name = run_name
        self._policy = policy
        self._saves: list[SaveHandle] = []
        self._waiting: deque[tuple[SaveHandle, Begin, bool]] = deque()  # two in the moment in which the first begins
        self._known: frozenset[str] = frozenset()
        self._damaged: set[str] = set()  # not to be linked, although a save that was begun before that is known may
        # guards `_waiting` and its place in `_saves`, for the end of a save arrives in the thread that wrote it; taken
        # with no other lock held
        self._lock = threading.RLock()

    @property
    def known_parts(self) -> frozenset[str]:
        """Names of the parts in the newest checkpoint that is safe on disk; see `StateParts`.

        Not those that a save under way leaves behind: that checkpoint may be deleted when such a save is done.
        """
        known = self._known - self._damaged
        return known.intersection(*(save._parts for save in self._saves if not save.done))  # noqa: SLF001 - its own module

    def restored(self, parts: Collection[str]) -> None:
        """Take note of the parts in the checkpoint from which the run goes on."""
        self._known = frozenset(parts)

    def make_room(self, *, rated: bool) -> None:
        """Wait until another save may begin; what failed is left for `report`, so that it costs no later state.

        Args:
            rated: Whether that one says how good its state is; such a save replaces none and is not replaced.
        """
        while len(waiting := [save for save in self._saves if not save.done]) >= MAX_IN_FLIGHT:
            if self._may_replace(rated=rated):
                return
            waiting[0].settle()

    def add(self, step: int, begin: Begin, *, parts: Collection[str], rated: bool) -> SaveHandle:
        """Begin a save now, or when the one under way is done if saves coalesce.

        Args:
            step: The step that it saves.
            begin: Hands the state over.
            parts: Names of its parts.
            rated: Whether it says how good its state is.
        """
        handle = SaveHandle(self._run_name, step, parts)
        with self._lock:
            # who is waiting will be begun by the end of the save before it, and so must be whoever takes its place
            replaced = self._waiting.pop()[0] if self._may_replace(rated=rated) else None
            has_to_wait = self._policy == "coalesce" and any(not save.done for save in self._saves)
            if has_to_wait or replaced is not None:
                self._waiting.append((handle, begin, rated))
                self._saves.append(handle)
                if replaced is not None:
                    replaced._give_way(handle)  # noqa: SLF001 - its own module
                    self._saves.remove(replaced)
                return handle
        try:
            self._saves.append(handle)
            self._begin(handle, begin)
        except BaseException:
            self._saves.remove(handle)  # the caller knows
            raise
        return handle

    def report(self, *, wait: bool, but: SaveHandle | None = None) -> None:
        """Forget the saves that went well.

        Args:
            wait: Wait for those under way, also if one of them fails.
            but: A save of which nothing is to be said yet.

        Raises:
            CheckpointError: A save failed.
        """
        for save in self._saves if wait else ():
            save.settle()
        for save in [save for save in self._saves if save.done and save is not but]:
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

    def _finish(self, handle: SaveHandle, done: "Future[Saved]") -> None:
        error = CheckpointError("it was cancelled") if done.cancelled() else done.exception()
        if error is None:
            path, damaged = done.result()
            self._known = handle._parts  # noqa: SLF001 - its own module
            self._damaged.update(damaged)
            handle._outcome.set_result(path)  # noqa: SLF001 - its own module
        else:
            self._fail(handle, error)
        self._begin_next()

    def _begin_next(self) -> None:
        """Begin the save that waits, here: `Begin` never blocks. Where it fails another one may be waiting by then."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                handle, begin, _ = self._waiting.popleft()
            with contextlib.suppress(Exception):  # whatever it is, the handle has it, and `report` raises it
                self._begin(handle, begin)
                return

    def _fail(self, handle: SaveHandle, error: BaseException) -> None:
        self._known = frozenset()  # whatever may be gone is written with the next save
        handle._outcome.set_exception(error)  # noqa: SLF001 - its own module
