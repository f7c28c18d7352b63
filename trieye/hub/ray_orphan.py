"""Taking a run over from a detached hub that no driver uses any more."""

import contextlib

import ray

from trieye.config import TrieyeConfig
from trieye.exceptions import RunLockedError, TrieyeError
from trieye.hub.detached import find_hub
from trieye.hub.in_ray import RayChannel
from trieye.hub.ray_start import join_ray
from trieye.process.lock import RunLock
from trieye.process.progress import say

ANSWER_TIMEOUT_S = 10.0


def take_over(config: TrieyeConfig, lock: RunLock) -> None:
    """End the hub that holds a run; what it accepted is in the journal, where the next hub goes on.

    Args:
        config: The config of the run.
        lock: Its lock.

    Raises:
        ConfigurationError: The cluster cannot be reached.
        RunLockedError: A driver of the hub lives, or the hub is none of this cluster, or does not answer.
    """
    join_ray(config.runtime)
    hub = find_hub(lock)
    if hub is None:
        raise RunLockedError(lock.refusal())
    try:
        drivers = ray.get(hub.living_drivers.remote(), timeout=ANSWER_TIMEOUT_S)
    except ray.exceptions.ActorDiedError:
        return  # it ends by itself
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise RunLockedError(f"{lock.refusal()} (the hub does not answer: {error})") from error
    if drivers:
        raise RunLockedError(
            f"run {config.run_name!r} is being written by {' and '.join(drivers)}, through a hub that outlives it; "
            "wait for it, stop it, or choose another run_name"
        )
    say(f"run {config.run_name!r}: its hub has no driver any more; this process takes the run over")
    # what it cannot deliver is in the journal; it is gone for good then, which is an error elsewhere
    with contextlib.suppress(TrieyeError, ConnectionError):
        channel = RayChannel(hub, config.run_name, "")
        channel.answer(hub.terminate.remote("KILLED"), config.runtime.stall_timeout_s, tells=True)
    with contextlib.suppress(ray.exceptions.RayError):
        ray.kill(hub)
