"""The version registry in Ray: an actor process that does not import torch and only forwards calls."""

import asyncio
import contextlib
import threading
import time
import uuid
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray

from trieye.process.progress import say
from trieye.training.exploring.synchronizer import Published, Synchronizer

_CALL_TIMEOUT_S = 120.0
"""Includes the start of the actor process, while all explorers start at the same time."""

SILENT_AFTER_S = 10.0
"""Seconds without an answer after which a message is shown."""


@ray.remote(max_restarts=-1, max_task_retries=-1)  # every call may be repeated
class SynchronizerActor:
    """A synchronizer in a separate process; waiting calls do not block others."""

    def __init__(self) -> None:
        self._board, self._identity = Synchronizer(), uuid.uuid4().hex
        self._changed = asyncio.Condition()

    async def publish(self, published: Published) -> str:
        """Announce weights, and return the identity of this actor, by which a restart is recognized."""
        async with self._changed:
            self._board.publish(published)
            self._changed.notify_all()
        return self._identity

    async def wait_newer(self, version: int, timeout_s: float) -> Published | None:
        """Wait until the newest announcement is newer than `version`, and return it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._board.wait_newer(version, 0.0) is not None)
        return self._board.wait_newer(version, 0.0)


class RayBoard:
    """A version registry in a Ray actor; picklable, for other processes.

    Announcements do not wait for the actor, because explorers get the newest weights with each assignment anyway. If
    the actor dies, Ray restarts it, and the newest version is sent again.
    """

    def __init__(self) -> None:
        self._actor: Any = SynchronizerActor.options(num_cpus=0, max_concurrency=10_000).remote()  # type: ignore[attr-defined]  # ray.remote adds it
        self._init_state()

    def _init_state(self) -> None:
        # guards all fields below, which Ray's callback thread changes, too; acquired while holding no other lock
        self._lock = threading.RLock()
        self._newest: Published | None = None
        self._sent_weights: Published | None = None
        self._sent_at, self._is_silent = 0.0, False
        self._fault: BaseException | None = None
        self._identity: str | None = None

    def __getstate__(self) -> Any:
        return self._actor

    def __setstate__(self, actor: Any) -> None:
        self._actor = actor
        self._init_state()

    def publish(self, published: Published) -> None:
        """Announce weights without waiting for the actor; unsent older versions are skipped.

        Raises:
            ConfigurationError: An earlier version was not above the newest one.
        """
        with self._lock:
            if self._fault is not None:
                raise self._fault
            self._newest = published
            if self._sent_weights is None:
                self._send()
            elif not self._is_silent and time.monotonic() - self._sent_at > SILENT_AFTER_S:
                self._is_silent = True
                say(
                    f"the version registry has not answered for {time.monotonic() - self._sent_at:.0f} s (its process "
                    "may be stopped); the training continues, and explorers get new weights with each fragment only"
                )

    def _send(self, *, is_again: bool = False) -> None:
        self._sent_weights, self._sent_at = self._newest, time.monotonic()
        # Ray retries only the second call, until the new process runs; the first one must fail, to report the death
        publish = self._actor.publish.options(max_task_retries=-1 if is_again else 0)
        answer = publish.remote(self._sent_weights).future()
        answer.add_done_callback(partial(self._on_answer, is_again=is_again))

    def _on_answer(self, done: "Future[Any]", *, is_again: bool) -> None:
        error = done.exception()
        with self._lock:
            if isinstance(error, ray.exceptions.RayActorError) and not is_again:
                self._identity = None
                say("the version registry died; Ray restarts it, and explorers get new weights with each fragment only")
                self._send(is_again=True)
                return
            if error is not None and not is_again:  # a repeated call may have arrived the first time
                cause = getattr(error, "as_instanceof_cause", lambda: error)
                self._fault = cause()
            if error is None:
                before, self._identity = self._identity, done.result()
                if before not in {None, self._identity}:  # a call during a restart may wait for it instead of failing
                    say("the version registry died, and Ray restarted it")
            if self._is_silent:
                self._is_silent = False
                say(f"the version registry answers again, after {time.monotonic() - self._sent_at:.0f} s")
            if self._newest is not self._sent_weights and self._fault is None:
                self._send()
                return
            self._sent_weights = None

    def wait_newer(self, version: int, timeout_s: float) -> Published | None:
        """Wait until the newest announcement is newer than `version`, and return it.

        Raises:
            ConnectionError: The actor does not answer.
        """
        answer = self._actor.wait_newer.options(max_task_retries=0).remote(version, timeout_s)
        try:
            newer: Published | None = ray.get(answer, timeout=timeout_s + _CALL_TIMEOUT_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            raise ConnectionError(f"the version registry does not answer: {error}") from error
        return newer

    def close(self) -> None:
        """Kill the actor."""
        ray.kill(self._actor)
