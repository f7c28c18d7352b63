"""Explorers and their weights in Ray; what is an actor only forwards."""

import platform
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trieye.exceptions import NonFiniteError, TrieyeError
from trieye.hub.ray_start import on_this_node
from trieye.training.exploring.explorer import Explorer, Task
from trieye.training.exploring.places import Worker
from trieye.training.exploring.transports import Weights, as_arrays

_ADDRESS = re.compile(r"\bip=([^,)\s]+)")
_SMALL_BYTES = 65_536
"""Weights up to here are sent with each fragment that is granted, which costs less than the object store."""


class _Made:
    """What an actor is of: made when something is asked of it, so that where it is can be said before."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._made = cache(make)

    def machine(self) -> str:
        """Return the name of the machine."""
        return platform.node()

    def do(self, method: str, *values: Any) -> Any:
        """Call a method of what is made here."""
        return getattr(self._made(), method)(*values)


@ray.remote(max_restarts=0, max_task_retries=0)
class ExplorerActor(_Made):
    """An explorer in a process of its own."""

    def __init__(self, places: list[str], task: bytes, index: int, incarnation: int) -> None:
        super().__init__(lambda: Explorer(_found(places, task), index, incarnation))


@ray.remote(max_restarts=0, max_task_retries=0, num_cpus=0)
class EvaluationActor(_Made):
    """What evaluates checkpoints, in a process of its own."""

    def __init__(self, places: list[str], make: bytes) -> None:
        super().__init__(_found(places, make))


def start_evaluator(make: Callable[[], Any]) -> Worker:
    """Start a process that evaluates checkpoints, where their files are, with what `make` makes there."""
    options: Any = EvaluationActor.options(scheduling_strategy=on_this_node())  # type: ignore[attr-defined]  # ray.remote adds it
    return _RayWorker(options.remote(sys.path, ray.cloudpickle.dumps(make)))


class ObjectStoreTransport:
    """Through the object store of Ray: one copy on each machine, which its explorers read in place.

    Weights that nobody holds a handle of any more leave the store. The handle of small ones is a copy of them.
    """

    def publish(self, version: int, weights: Weights) -> Any:
        """Put the weights into the store; see `Transport`."""
        del version
        arrays = as_arrays(weights)
        if sum(array.nbytes for array in arrays.values()) <= _SMALL_BYTES:
            return {name: array.copy() for name, array in arrays.items()}
        return [ray.put(arrays)]  # in a list: Ray would give what is in it in place of the handle

    def fetch(self, handle: Any) -> Mapping[str, Any]:
        """Return arrays that cannot be written."""
        found: Mapping[str, Any] = handle if isinstance(handle, dict) else ray.get(handle[0])
        return found


def own_address() -> str:
    """Return the address at which explorers on other machines reach this one."""
    return str(ray.util.get_node_ip_address())


class RayPlace:
    """Explorers in Ray actors.

    Args:
        placement: On which nodes; see `ExplorerConfig.placement`. In a placement group, as that of a trial of Tune,
            explorers that need resources take those of the group.
        **options: Those of Ray, such as `num_cpus`.

    Attributes:
        learner_gpu: The reservation of the learner's GPU, which holds as long as this object; None if it has none.
    """

    learner_gpu: Any = None

    def __init__(self, placement: str = "pack", **options: Any) -> None:
        where = {"spread": "SPREAD", "pack": "DEFAULT"}
        group = ray.util.get_current_placement_group() if any(options.values()) else None
        # a trial of Tune: what is reserved for its explorers is in its own group, and may be all that there is
        strategy = where.get(placement) or on_this_node() if group is None else PlacementGroupSchedulingStrategy(group)
        self._options = {"scheduling_strategy": strategy, **options}

    def start(self, task: Task, index: int, incarnation: int) -> Worker:
        """Start an actor; see `Place`."""
        options: Any = ExplorerActor.options(**self._options)  # type: ignore[attr-defined]  # ray.remote adds it
        return _RayWorker(options.remote(sys.path, ray.cloudpickle.dumps(task), index, incarnation))


class _RayWorker:
    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def find(self) -> "Future[str]":
        return self._called(self._actor.machine)

    def begin(self, method: str, *values: Any) -> "Future[Any]":
        return self._called(self._actor.do, method, *values)

    @staticmethod
    def _called(remote: Any, *values: Any) -> "Future[Any]":
        call: Future[Any] = Future()
        try:
            sent = remote.remote(*values).future()
        except ray.exceptions.RayError as error:
            call.set_exception(_meaning(error))
            return call
        sent.add_done_callback(lambda done: _pass_on(done, call))
        return call

    def kill(self) -> None:
        ray.kill(self._actor)


def _found(places: list[str], sent: bytes) -> Any:
    """Return what was sent, with classes from where the driver finds them."""
    sys.path += [place for place in places if place not in sys.path]
    return ray.cloudpickle.loads(sent)


def _pass_on(done: "Future[Any]", call: "Future[Any]") -> None:
    error = done.exception()
    if error is None:
        call.set_result(done.result())
    else:
        call.set_exception(_meaning(error))


def _meaning(error: BaseException) -> BaseException:
    """Return an error that means the same wherever an explorer is; one that it raised shows its traceback, too."""
    if isinstance(error, ray.exceptions.RayTaskError):
        if isinstance(error.cause, NonFiniteError):  # its message says all
            return error.cause
        cause: BaseException = error.as_instanceof_cause()
        return cause
    if isinstance(error, ray.exceptions.ActorDiedError) and error.actor_init_failed:
        told = str(error).strip()
        where = _ADDRESS.search(told)  # nothing else of it says where that was
        advice = f" (on the node {where[1]}; `trieye cluster check` looks at all)" if where else ""
        return TrieyeError(f"{told}{advice}")
    if isinstance(error, ray.exceptions.RayActorError):
        return ConnectionError("its process is gone")
    return TrieyeError(str(error))
