"""Explorers, evaluations and weights in Ray; the actors only forward calls."""

import platform
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache, partial
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trieye.exceptions import NonFiniteError, TrieyeError
from trieye.hub.ray_start import on_this_node
from trieye.process.niceness import WORKER_NICENESS, limit_niceness
from trieye.replay.remote.actor import ray_call
from trieye.training.exploring.explorer import Explorer, Task
from trieye.training.exploring.places import WorkerHandle
from trieye.training.exploring.transports import Weights, as_arrays

_ADDRESS = re.compile(r"\bip=([^,)\s]+)")
_SMALL_BYTES = 65_536
"""Weights up to this size travel with each assignment, which costs less than the object store."""


class _LazyActor:
    """Creates its object on the first call, so that an actor can report its machine before."""

    def __init__(self, search_paths: list[str], pickled_factory: bytes) -> None:
        limit_niceness(at_least=WORKER_NICENESS)
        self._object = cache(partial(_create, search_paths, pickled_factory))

    def machine(self) -> str:
        """Return the name of the machine."""
        return platform.node()

    def do(self, method: str, *values: Any) -> Any:
        """Call a method of the object."""
        return getattr(self._object(), method)(*values)


class ExplorerActor(_LazyActor):
    """An explorer in a separate process."""


@ray.remote(max_restarts=0, max_task_retries=0, num_cpus=0)
class EvaluationActor(_LazyActor):
    """Evaluates checkpoints in a separate process."""


def start_evaluator(make_evaluator: Callable[[], Any]) -> WorkerHandle:
    """Start a process on this node, which has the checkpoint files, and create `make_evaluator()` in it."""
    options: Any = EvaluationActor.options(scheduling_strategy=on_this_node())  # type: ignore[attr-defined]  # ray.remote adds it
    return _RayWorker(options.remote(sys.path, ray.cloudpickle.dumps(make_evaluator)))


class ObjectStoreTransport:
    """Shares weights through Ray's object store: one copy on each machine, which its explorers read in place.

    Weights leave the store when no handle refers to them. The handle of small weights is a copy of them.
    """

    def publish(self, version: int, weights: Weights) -> Any:
        """Put the weights into the store; see `Transport`."""
        del version
        arrays = as_arrays(weights)
        if sum(array.nbytes for array in arrays.values()) <= _SMALL_BYTES:
            return {name: array.copy() for name, array in arrays.items()}
        return [ray.put(arrays)]  # in a list: Ray replaces a top-level reference by its value

    def fetch(self, handle: Any) -> Mapping[str, Any]:
        """Return read-only arrays."""
        return handle if isinstance(handle, dict) else ray.get(handle[0])


def node_address() -> str:
    """Return the address of this machine for explorers on other machines."""
    return str(ray.util.get_node_ip_address())


class RayExplorerPool:
    """Runs explorers in Ray actors.

    Args:
        placement: Selects the nodes; see `ExplorerConfig.placement`. Inside a placement group, such as a Tune trial's,
            explorers that need resources take them from the group.
        **options: Options of Ray actors, such as `num_cpus`.

    Attributes:
        learner_gpu: The reservation of the learner's GPU, valid while this object lives; None without one.
    """

    learner_gpu: Any = None

    def __init__(self, placement: str = "pack", **options: Any) -> None:
        names = {"spread": "SPREAD", "pack": "DEFAULT"}
        group = ray.util.get_current_placement_group() if any(options.values()) else None
        # a Tune trial reserves the resources of its explorers in its own group, which may be all of the cluster
        strategy = names.get(placement) or on_this_node() if group is None else PlacementGroupSchedulingStrategy(group)
        self._options = {"scheduling_strategy": strategy, **options}

    def start(self, task: Task, index: int, incarnation: int) -> WorkerHandle:
        """Start an actor; see `ExplorerPool`."""
        config: Any = task.config
        # only if needed: with groups no method runs in the main thread, which some environments require
        group_options = {"concurrency_groups": {"tell": 1}} if config.sync.style == "fully_async" else {}
        actor_class: Any = ray.remote(max_restarts=0, max_task_retries=0, **self._options, **group_options)(
            ExplorerActor
        )
        pickled_factory = ray.cloudpickle.dumps(partial(Explorer, task, index, incarnation))
        return _RayWorker(actor_class.remote(sys.path, pickled_factory))


class _RayWorker:
    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def find(self) -> "Future[str]":
        return ray_call(self._actor.machine.remote, _translated)

    def begin(self, method: str, *values: Any) -> "Future[Any]":
        return ray_call(lambda: self._actor.do.remote(method, *values), _translated)

    def tell(self, method: str, *values: Any) -> None:
        self._actor.do.options(concurrency_group="tell").remote(method, *values)

    def kill(self) -> None:
        ray.kill(self._actor)


def _create(search_paths: list[str], pickled_factory: bytes) -> Any:
    """Create an object by a pickled function, importing classes from the driver's search paths."""
    sys.path += [path for path in search_paths if path not in sys.path]
    return ray.cloudpickle.loads(pickled_factory)()


def _translated(error: BaseException) -> BaseException:
    """Translate Ray's errors to `ConnectionError` and `TrieyeError`; explorers' errors keep their traceback."""
    if isinstance(error, ray.exceptions.RayTaskError):
        if isinstance(error.cause, NonFiniteError):  # its message is sufficient
            return error.cause
        cause: BaseException = error.as_instanceof_cause()
        return cause
    if isinstance(error, ray.exceptions.ActorDiedError) and error.actor_init_failed:
        message = str(error).strip()
        address_match = _ADDRESS.search(message)  # the message does not give the node otherwise
        advice = f" (on the node {address_match[1]}; `trieye cluster check` checks all nodes)" if address_match else ""
        return TrieyeError(f"{message}{advice}")
    if isinstance(error, ray.exceptions.RayActorError):
        return ConnectionError("its process died")
    return TrieyeError(str(error))
