"""The synchronizer in Ray, as a process that imports no torch; the actor only forwards."""

from typing import Any

import ray

from trieye.training.exploring.synchronizer import Published, Synchronizer

_ANSWER_TIMEOUT_S = 120.0
"""So long may its process take to start, with the explorers' all starting beside it."""


@ray.remote(max_restarts=-1, max_task_retries=-1)  # whatever is asked may be asked again
class SynchronizerActor:
    """A synchronizer in a process of its own, whose waits hold up nobody."""

    def __init__(self) -> None:
        self._board = Synchronizer()

    async def publish(self, published: Published) -> None:
        """Announce weights; see `Synchronizer`."""
        self._board.publish(published)

    async def latest(self) -> Published | None:
        """Return the newest ones."""
        return self._board.latest()

    async def wait_newer(self, version: int, timeout_s: float) -> Published | None:
        """Return the newest ones once they are newer than a version."""
        return await self._board.await_newer(version, timeout_s)


class RayBoard:
    """The way to a synchronizer in Ray, from any process that it is sent to.

    If the actor dies, Ray starts it again, and the next version is the first that it knows.
    """

    def __init__(self) -> None:
        self._actor: Any = SynchronizerActor.options(num_cpus=0, max_concurrency=10_000).remote()  # type: ignore[attr-defined]  # ray.remote adds it

    def publish(self, published: Published) -> None:
        """Announce weights, again if the actor is being started.

        Raises:
            ConnectionError: It does not answer.
        """
        self._get(self._actor.publish.remote(published), _ANSWER_TIMEOUT_S)

    def latest(self) -> Published | None:
        """Return the newest ones; raises what `publish` raises."""
        found: Published | None = self._get(self._actor.latest.remote(), _ANSWER_TIMEOUT_S)
        return found

    def wait_newer(self, version: int, timeout_s: float) -> Published | None:
        """Return the newest ones once they are newer than a version; raises what `publish` raises."""
        answer = self._actor.wait_newer.options(max_task_retries=0).remote(version, timeout_s)
        found: Published | None = self._get(answer, timeout_s + _ANSWER_TIMEOUT_S)
        return found

    def close(self) -> None:
        """End the actor."""
        ray.kill(self._actor)

    @staticmethod
    def _get(reference: Any, timeout_s: float) -> Any:
        try:
            return ray.get(reference, timeout=timeout_s)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            raise ConnectionError(f"the synchronizer does not answer: {error}") from error
