"""Starts a Ray that survives a scheduler's signals, or joins a running one; pins hubs to the node of their caller."""

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
from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.hub.cluster import Node, unreachable
from trieye.hub.ray_cluster import address_to_join, refuse_incompatible_nodes
from trieye.hub.working_dir import project_of_program, stage
from trieye.process.niceness import SERVICE_NICENESS
from trieye.process.progress import say
from trieye.process.signals import children_outlive_signals, interrupt_deferred

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable that `ray job submit` sets for the program it runs."""

AUTHENTICATION_LOGGER = "ray._private.authentication.authentication_token_setup"
_PRELOADED, _NICENESS = "RAY_preload_python_modules", "RAY_worker_niceness"
_CHECK_S, _INSTALL_S = 60.0, 600.0
"""Seconds that a node may take to answer the compatibility check, without and with packages to install first."""


def join_ray(runtime: RuntimeConfig, group: str = "runtime", *, log_to_driver: bool = True) -> list[Node]:
    """Start or join Ray according to the config; a Ray that this process has already initialized is used unchanged.

    Args:
        runtime: The runtime config.
        group: Config path of `runtime`, for messages.
        log_to_driver: Whether this process prints the output of workers and the notices of Ray.

    Returns:
        The nodes of the cluster that answered the compatibility check; empty if no check was needed.

    Raises:
        ConfigurationError: The cluster is unreachable, or a node cannot run code sent from here.
    """
    _refuse_unknown(runtime.runtime_env, group)
    if ray.is_initialized():
        return []
    # it logs at every start that token authentication is on; that is intended
    logging.getLogger(AUTHENTICATION_LOGGER).setLevel(logging.ERROR)
    quiet = {"logging_level": logging.WARNING, "namespace": runtime.namespace, "log_to_driver": log_to_driver}
    if runtime.kind == "ray":
        say("starting Ray ...")
        _start_ray(num_cpus=runtime.num_cpus, include_dashboard=False, **quiet)
        return []
    return _join_cluster(runtime, group, quiet)


def _refuse_unknown(env: Mapping[str, Any], group: str) -> None:
    """Refuse keys that Ray would ignore with a log line; nothing is refused if Ray plugins may define further keys."""
    allowed_keys = {name.lstrip("_") for name in ray.runtime_env.RuntimeEnv.known_fields} - {"working_dir"}
    for name in env.keys() - allowed_keys if "RAY_RUNTIME_ENV_PLUGINS" not in os.environ else ():
        raise ConfigurationError(
            f"{group}.runtime_env: Ray {ray.__version__} has no key {name!r}{did_you_mean(name, allowed_keys)} "
            f"(choose from: {', '.join(sorted(allowed_keys))})"
        )


def _join_cluster(runtime: RuntimeConfig, group: str, quiet: Mapping[str, Any]) -> list[Node]:
    """Join a cluster with a runtime environment for its workers, and check that they can run code sent from here."""
    setting = f"{group}.address={runtime.address or 'auto'}"
    address = address_to_join(setting, runtime.address or "auto")
    with tempfile.TemporaryDirectory(prefix="trieye-") as upload_dir:
        environment, upload = dict(runtime.runtime_env), ""
        if (source := _working_dir(runtime)) is not None:
            upload = f", sending its workers a copy of {stage(source, Path(upload_dir))}"
            environment["working_dir"] = upload_dir
        say(f"joining Ray at {address}{upload} ...")
        try:
            with _signals_deferred():
                ray.init(address=address, runtime_env=environment, **quiet)
        except (ConnectionError, TypeError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise ConfigurationError(unreachable(setting, error)) from error
    keep_token_private()
    installs = sorted(runtime.runtime_env.keys() & {"pip", "uv", "conda", "py_modules"})
    if installs:
        say(f"each node installs the packages of {group}.runtime_env.{installs[0]}, for at most {_INSTALL_S:g} s ...")
    try:
        return refuse_incompatible_nodes(
            _INSTALL_S if installs else _CHECK_S, skips_single_node=not runtime.runtime_env
        )
    except BaseException:
        ray.shutdown()
        raise


def _working_dir(runtime: RuntimeConfig) -> Path | None:
    """Return the directory to copy to the workers; None for a Ray job, whose files were sent when it was submitted."""
    if runtime.working_dir is None or os.environ.get(JOB_VARIABLE):
        return None
    return project_of_program() if runtime.working_dir == "auto" else Path(runtime.working_dir).expanduser().resolve()


def _start_ray(**options: Any) -> None:
    """Start a Ray that survives a scheduler's signal to every process of a job, until this process ends it."""
    with environment(_worker_settings()), _signals_deferred():
        try:
            ray.init(address="local", **options)
        except Exception as error:
            if type(error) is not Exception:
                raise
            # Ray's error after 30 s on an overloaded machine has no type
            raise TrieyeError(f"Ray did not start: {' '.join(str(error).split())} Try again with less load") from error
        atexit.register(_leave_at_once)  # runs before Ray's exit handler, which was registered first
        keep_token_private()
        node = getattr(ray._private.worker, "_global_node", None)  # noqa: SLF001 - docs/private_apis.md
        for kind, processes in getattr(node, "all_processes", {}).items():
            for ray_process in processes:
                _make_mortal(ray_process.process, is_raylet=kind == "raylet")


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer signals while Ray initializes: it replaces the SIGTERM handler, and may crash at exit if interrupted."""
    with interrupt_deferred("exiting once Ray is ready; Ctrl-C exits at once ..."), children_outlive_signals():
        yield


def _leave_at_once() -> None:
    """Let Ctrl-C during Ray's shutdown end the program without a traceback; Ray's reaper ends its other processes."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def keep_token_private() -> None:
    """Make Ray's token file private: Ray writes it world-readable, and its reader can run code in this Ray."""
    env_path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(env_path) if env_path else Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError, RuntimeError):  # the file does not exist, or belongs to another user
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)


def _worker_settings() -> dict[str, str]:
    """Return the environment of a Ray whose workers import `trieye.hub.ray_worker` before anything else.

    They start with the niceness of services, unless the user has set another: with Ray's default of 15, a hub starts
    for a minute on a busy machine, and users other than root cannot lower the niceness of a process.
    """
    modules = filter(None, (os.environ.get(_PRELOADED), "trieye.hub.ray_worker"))
    return {_PRELOADED: ",".join(modules), _NICENESS: os.environ.get(_NICENESS, str(SERVICE_NICENESS))}


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block, and restore them at its end."""
    old_values = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in old_values.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _make_mortal(process: Any, *, is_raylet: bool) -> None:
    """Kill a process that blocks SIGTERM without delay: Ray would send SIGTERM and wait 1 s before SIGKILL.

    The raylet keeps that second, because its workers use it to exit. Its agents are killed with it: they would try for
    a minute to report its death.
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
    """Return the strategy that pins a run's hub to the caller's node, where the run's files are."""
    return NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
