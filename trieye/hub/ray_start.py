"""Starting a Ray that outlives the signals of a scheduler, or joining a running one; on which node a hub lives."""

import atexit
import contextlib
import logging
import os
import signal
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # stubs would be one more package
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trieye.config import RuntimeConfig
from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.hub.cluster import Node, unreachable
from trieye.hub.ray_cluster import address_to_join, refuse_misfits
from trieye.hub.working_dir import project_of_program, stage
from trieye.process.progress import say
from trieye.process.signals import children_outlive_signals

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable of a program that `ray job submit` runs."""

AUTHENTICATION_LOGGER = "ray._private.authentication.authentication_token_setup"
_PRELOADED = "RAY_preload_python_modules"
_LOOK_S, _INSTALL_S = 60.0, 600.0
"""How long a node may take to say whether it fits; longer where it installs packages for that."""


def join_ray(runtime: RuntimeConfig, group: str = "runtime") -> list[Node]:
    """Start or join Ray as the config says; a Ray that runs already is used as it is.

    Return the nodes of a cluster as they were found; none where there was no need to look.

    Args:
        runtime: What it says.
        group: Where it says so, for messages.

    Raises:
        ConfigurationError: The address of a cluster cannot be reached, or what is sent to its nodes cannot run there.
    """
    _refuse_unknown(runtime.runtime_env, group)
    if ray.is_initialized():
        return []
    # it says at every start that tokens are in use, which they are to stay
    logging.getLogger(AUTHENTICATION_LOGGER).setLevel(logging.ERROR)
    quiet = {"logging_level": logging.WARNING, "namespace": runtime.namespace}
    if runtime.kind == "ray":
        say("starting Ray ...")
        _start_ray(num_cpus=runtime.num_cpus, include_dashboard=False, **quiet)
        return []
    return _join_cluster(runtime, group, quiet)


def _refuse_unknown(env: Mapping[str, Any], group: str) -> None:
    """Refuse what Ray would pass over with a line in a log; plugins of Ray bring parts of their own."""
    known = {name.lstrip("_") for name in ray.runtime_env.RuntimeEnv.known_fields} - {"working_dir"}
    for name in env.keys() - known if "RAY_RUNTIME_ENV_PLUGINS" not in os.environ else ():
        raise ConfigurationError(
            f"{group}.runtime_env: Ray {ray.__version__} knows no {name!r}{did_you_mean(name, known)}; it knows "
            f"{', '.join(sorted(known))}"
        )


def _join_cluster(runtime: RuntimeConfig, group: str, quiet: Mapping[str, Any]) -> list[Node]:
    """Join a cluster with an environment for its workers, and look whether they can run what they are sent."""
    asked = f"{group}.address={runtime.address or 'auto'}"
    address = address_to_join(asked, runtime.address or "auto")
    with tempfile.TemporaryDirectory(prefix="trieye-") as place:
        environment, sent = dict(runtime.runtime_env), ""
        if (source := _working_dir(runtime)) is not None:
            sent = f", its workers get a copy of {stage(source, Path(place))}"
            environment["working_dir"] = place
        say(f"joining Ray at {address}{sent} ...")
        try:
            with children_outlive_signals():  # there are none, but Ray would take SIGTERM for itself
                ray.init(address=address, runtime_env=environment, **quiet)
        except (ConnectionError, TypeError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise ConfigurationError(unreachable(asked, error)) from error
    keep_token_private()
    installs = sorted(runtime.runtime_env.keys() & {"pip", "uv", "conda", "py_modules"})
    if installs:
        say(f"each node installs what {group}.runtime_env.{installs[0]} names, {_INSTALL_S:g} s at most ...")
    try:
        return refuse_misfits(_INSTALL_S if installs else _LOOK_S, is_alone_enough=not runtime.runtime_env)
    except BaseException:
        ray.shutdown()
        raise


def _working_dir(runtime: RuntimeConfig) -> Path | None:
    """Return what workers get a copy of; nothing for a job of Ray, which has what it was submitted with."""
    if runtime.working_dir is None or os.environ.get(JOB_VARIABLE):
        return None
    return project_of_program() if runtime.working_dir == "auto" else Path(runtime.working_dir).expanduser().resolve()


def _start_ray(**options: Any) -> None:
    """Start a Ray that lives on when a scheduler signals every process of a job, until this process ends it."""
    with _preloaded("trieye.hub.ray_worker"), children_outlive_signals():
        ray.init(address="local", **options)
        atexit.register(_leave_at_once)  # runs before Ray's own, which was registered first
        keep_token_private()
        node = getattr(ray._private.worker, "_global_node", None)  # noqa: SLF001 - docs/private_apis.md
        for kind, processes in getattr(node, "all_processes", {}).items():
            for started in processes:
                _make_mortal(started.process, is_raylet=kind == "raylet")


def _leave_at_once() -> None:
    """Let a Ctrl-C while Ray shuts down end the program, without frames of Ray; Ray's reaper ends the rest."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def keep_token_private() -> None:
    """Let nobody else read the token that lets its reader run code in this Ray; Ray writes the file open to all."""
    given = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(given) if given else Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError, RuntimeError):  # there is none, or it is another user's
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)


@contextlib.contextmanager
def _preloaded(module: str) -> Iterator[None]:
    """Let the workers of a Ray that is started in the block import a module before anything else."""
    before = os.environ.get(_PRELOADED)
    os.environ[_PRELOADED] = f"{before},{module}" if before else module
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PRELOADED]
        else:
            os.environ[_PRELOADED] = before


def _make_mortal(process: Any, *, is_raylet: bool) -> None:
    """Let Ray end a process that SIGTERM does not reach: Ray sends SIGTERM, waits 1 s, and then kills the process.

    Workers use that second of the raylet to leave. Its agents would try for a minute to report that it was killed.
    """
    if not is_raylet:
        process.terminate = process.kill
        return
    kill = process.kill

    def kill_with_agents() -> None:
        with contextlib.suppress(psutil.Error, IndexError):
            for child in psutil.Process(process.pid).children():
                if child.cmdline()[0].endswith("Agent"):
                    child.kill()
        kill()

    process.kill = kill_with_agents


def on_this_node() -> NodeAffinitySchedulingStrategy:
    """Return where the hub of a run belongs: on the node of the caller, and nowhere else, since its files are there."""
    return NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
