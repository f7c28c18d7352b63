"""RayHub: the hub as an actor in a process of its own."""

import hashlib
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import ray

from trieye.checkpoints.serializer import Serializer
from trieye.config import TrieyeConfig
from trieye.exceptions import TrieyeError
from trieye.files.run_record import MetricSummary, RunStatus
from trieye.hub.actor import TrieyeActor, actor_name
from trieye.hub.detached import on_this_node
from trieye.hub.directory import HUB_GONE_AFTER_S
from trieye.hub.ray_start import join_ray
from trieye.hub.save_thread import SaveThread
from trieye.process.progress import say
from trieye.process.waiting import wait_while_moving
from trieye.snapshot.encode import EncodedState
from trieye.stats.batch import EventBatch
from trieye.stats.operations import Operation

START_TIMEOUT_S = 120.0
"""At least: a hub that starts cannot say how far it is."""

ANSWER_TIMEOUT_S = 5.0
"""For the question how far the hub is."""

CALL_TIMEOUT_S = 60.0
"""For an answer that is there, or that the hub gives in a time that it was told."""

SEND_TIMEOUT_S = 10.0
"""After which the user is told that the hub does not answer, and it is asked again."""


class RayChannel:
    """The way to the actor of a run, from any process that it is sent to by Ray.

    Args:
        actor: The actor.
        run_name: Name of its run.
        key: What tells this actor from every other one.
    """

    # Ray disconnects its workers before Python's exit handlers run, and ends a process that calls anything then
    works_at_exit = False

    def __init__(self, actor: Any, run_name: str, key: str) -> None:
        self.key = key
        self.run_name = run_name
        self._actor = actor

    def log(self, batch: EventBatch, *, client: str, seq: int) -> None:
        """Return when the actor has accepted the batch."""
        self._send(self._actor.log_columns, batch, client=client, seq=seq)

    def count_dropped(self, reason: str, count: int, *, key: str) -> None:
        """Return when the actor has counted events that had to be dropped before they reached it."""
        self._send(self._actor.count_dropped, reason, count, key=key)

    def log_operation(self, operation: Operation, *, key: str) -> None:
        """Return when the actor has accepted the histogram, the picture or the text."""
        self._send(self._actor.log_operation, operation, key=key)

    def _send(self, method: Any, *values: Any, **numbers: Any) -> None:
        # not repeated by Ray, which would say nothing meanwhile: the sender does, and tells the user
        self._get(method.options(max_task_retries=0).remote(*values, **numbers), SEND_TIMEOUT_S)

    def progress(self, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
        """Return what takes long in the hub and how far it is, or that it does not answer."""
        try:
            return str(ray.get(self._actor.progress.remote(), timeout=timeout_s))
        except Exception:  # noqa: BLE001 - a remote call that only asks: those that do something say what is wrong
            return "it does not answer"

    def answer(self, reference: Any, still_s: float, *, tells: bool = False) -> Any:
        """Wait for an answer as long as the hub makes progress, with errors as those of the other calls.

        Args:
            reference: Stands for the answer.
            still_s: Seconds without progress after which nobody waits any more.
            tells: Tell the user now and then what for.

        Raises:
            ConnectionError: There is no progress, or the actor restarts.
            TrieyeError: The actor is dead for good, or what it raised itself.
        """
        seen = ""

        def is_there(timeout_s: float) -> bool:
            return bool(ray.wait([reference], timeout=timeout_s)[0])

        def progress() -> str:
            nonlocal seen
            seen = self.progress(min(ANSWER_TIMEOUT_S, still_s))
            return seen

        def tell(progress: object) -> None:
            say(f"run {self.run_name!r}: waiting for its hub: {progress}")

        if not wait_while_moving(is_there, progress, still_s, tell=tell if tells else None):
            raise ConnectionError(f"the hub of run {self.run_name!r} made no progress for {still_s:g} s: {seen}")
        return self._get(reference)

    def _get(self, reference: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Wait for an answer, with errors that mean the same for every hub.

        Raises:
            ConnectionError: The actor restarts, or does not answer in time.
            TrieyeError: It is dead for good, or what it raised itself.
        """
        try:
            return ray.get(reference, timeout=timeout_s)
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        except ray.exceptions.GetTimeoutError as error:
            raise ConnectionError(f"the hub of run {self.run_name!r} did not answer in {timeout_s:.0f} s") from error
        except ray.exceptions.ActorDiedError as error:
            raise TrieyeError(f"the hub of run {self.run_name!r} is gone for good: {_why(error)}") from error
        except ray.exceptions.RayActorError as error:
            raise ConnectionError(
                f"the hub of run {self.run_name!r} is gone for now; Ray starts it again if it died"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return RayChannel, (self._actor, self.run_name, self.key)


class RayHub(RayChannel):
    """A hub in a Ray actor, so that logging and saving take nothing from the training process.

    Ray starts the actor again when it dies. Sent to another process, this arrives as the channel that it is.

    Args:
        config: The config of the run, whose lock this process holds.
        extra_config: What configs.json holds besides.

    Raises:
        ConfigurationError: The cluster cannot be reached.
        TrieyeError: The actor did not start.
    """

    works_at_exit = True  # in the driver, which ends Ray after that

    def __init__(self, config: TrieyeConfig, extra_config: Mapping[str, Any]) -> None:
        join_ray(config.runtime)
        # two apps may have runs of the same name; a run has one directory
        place = hashlib.sha256(str(config.persistence.get_run_base_dir()).encode()).hexdigest()[:8]
        options = TrieyeActor.options(  # type: ignore[attr-defined]  # ray.remote adds it
            name=f"{actor_name(config.run_name)}_{place}",
            namespace=config.runtime.namespace,
            num_cpus=0,
            scheduling_strategy=on_this_node(),
        )
        try:
            # with the key of this process: the actor's one may be on another node, or have another environment
            trusting = Serializer.of_this_process()
            arguments = {"_serializer": trusting, "_owns_run": False, "_extra_config": dict(extra_config)}
            actor = _once_free(lambda: options.remote(config=config, **arguments))
            super().__init__(actor, config.run_name, uuid.uuid4().hex)
            self._still_s, self._run_dir = config.runtime.stall_timeout_s, config.persistence.get_run_base_dir()
            self.answer(self._actor.get_actor_name.remote(), max(START_TIMEOUT_S, self._still_s), tells=True)
            self._sender = SaveThread()
        except (ValueError, ConnectionError, TrieyeError) as error:
            raise TrieyeError(f"the hub of run {config.run_name!r} did not start: {error}") from error

    def flush(self, complete_step: int | None = None) -> None:
        """Return when every accepted event is in its window, and windows up to a step are closed."""
        self._answer(self._actor.flush.remote(complete_step))

    def get_state(self, complete_step: int) -> dict[str, Any]:
        """Return what a checkpoint keeps of the hub, after closing windows up to a step."""
        # waited for: when Ray repeats calls after the death of the actor, it does not keep their order
        state: dict[str, Any] = self._answer(self._actor.get_state.remote(complete_step))
        return state

    def save(
        self, step: int, state: EncodedState, metadata: Mapping[str, Any], hub_state: Mapping[str, Any]
    ) -> "Future[str]":
        """Hand the state to the actor, which writes it beside its other work, from a thread: Ray copies it."""
        return self._sender.submit(self._save, step, state, dict(metadata), dict(hub_state))

    def _save(self, step: int, state: EncodedState, metadata: dict[str, Any], hub_state: dict[str, Any]) -> str:
        path: str = self._answer(self._actor.save_checkpoint.remote(step, ray.put(state), metadata, hub_state))
        return path

    def restore(self, *, group: str | None, config_hash: str | None) -> tuple[EncodedState, dict[str, Any]] | None:
        """Return the state to go on with and its origin."""
        found: tuple[EncodedState, dict[str, Any]] | None = self.answer(
            self._actor.restore.remote(group=group, config_hash=config_hash), self._still_s, tells=True
        )
        return found

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters."""
        self._answer(self._actor.log_params.remote(dict(params)))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        self._answer(self._actor.set_tags.remote(dict(tags)))

    def log_artifact(self, path: Path, artifact_path: str | None) -> None:
        """Keep a file with the run."""
        self._answer(self._actor.log_artifact.remote(path, artifact_path))

    def summary(self) -> dict[str, MetricSummary]:
        """Return the extremes of the points of each metric."""
        seen: dict[str, MetricSummary] = self._answer(self._actor.summary.remote())
        return seen

    def mlflow_run_id(self, timeout_s: float) -> str | None:
        """Return the id of the MLflow run, None if it is not known in time."""
        run_id: str | None = self._get(self._actor.wait_mlflow_run_id.remote(timeout_s), timeout_s + CALL_TIMEOUT_S)
        return run_id

    def health(self) -> dict[str, Any]:
        """Return the state of the sinks and what was dropped."""
        state: dict[str, Any] = self._answer(self._actor.health.remote())
        return state

    def close(self, status: RunStatus) -> None:
        """Wait for saves, log what is left, and end the actor."""
        try:
            self._sender.close()
            self._answer(self._actor.shutdown.remote(status, patient=status != "KILLED"))
        except ConnectionError as error:
            raise TrieyeError(
                f"{error}; it is ended now, and what it accepted is in its journal: `trieye close {self._run_dir}` "
                "delivers it"
            ) from error
        finally:
            ray.kill(self._actor)

    def _answer(self, reference: Any) -> Any:
        return self.answer(reference, self._still_s)


def _once_free(start: Callable[[], Any]) -> Any:
    """Start an actor; after the death of a driver it takes Ray a moment to take the name from the last one."""
    deadline = time.monotonic() + HUB_GONE_AFTER_S
    while True:
        try:
            return start()
        except ValueError as error:  # older versions of Ray have no class of its own for it
            if "already taken" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _why(error: ray.exceptions.RayActorError) -> str:
    """Return what is worth reading of Ray's message: its first line, and the one that says what happened."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if error.actor_init_failed:
        return lines[-1]
    return " ".join([lines[0], *(line for line in lines[1:] if line.startswith("The actor"))])


def _cause(error: ray.exceptions.RayTaskError) -> Exception:
    cause = error.cause
    return cause if isinstance(cause, TrieyeError) else TrieyeError(str(error))
