"""Runs a task or a sweep in Hydra with a config that is already composed and checked."""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra._internal.utils import run_and_report
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import configure_log
from hydra.types import RunMode
from omegaconf import DictConfig

from trieye.config.hydra.loader import VERSION_BASE, ConfigSource, Loader
from trieye.exceptions import TrieyeError

Job = Callable[[DictConfig], Any]


class ComposedHydra(Hydra):
    """Hydra with a composed config; only the launcher composes again, for jobs of a sweep.

    Args:
        loader: Loader of the config.
        composed: The config, including the node `hydra`.
    """

    def __init__(self, loader: Loader, composed: DictConfig) -> None:
        super().__init__(loader.source.job_name, loader.config_loader)
        self._name = loader.source.name
        self._composed = composed

    def compose_config(self, *_: Any, with_log_configuration: bool = False, **__: Any) -> DictConfig:
        """Return the composed config."""
        if with_log_configuration:
            configure_log(self._composed.hydra.hydra_logging, self._composed.hydra.verbose)
        return self._composed

    def start(self, job: Job) -> None:
        """Run the job or a sweep of it, depending on `hydra.mode`.

        Raises:
            SystemExit: The job failed; Hydra has printed the error.
        """
        run = self.multirun if self._composed.hydra.mode == RunMode.MULTIRUN else self.run
        # `hydra.compose` in a task uses the same search path
        instance, old_hydra = GlobalHydra.instance(), GlobalHydra.instance().hydra
        instance.hydra = self
        try:
            with _own_exit_code():
                run_and_report(lambda: run(self._name, job, []))
        finally:
            instance.hydra = old_hydra

    def show(self, arguments: Namespace) -> None:
        """Print the config for `--cfg`."""
        run_and_report(lambda: self.show_cfg(self._name, [], arguments.cfg, arguments.package, arguments.resolve))


def run_hydra(source: ConfigSource, job: Job, argv: Sequence[str]) -> None:
    """Let Hydra compose and execute one of its flags, such as `--info`."""
    with _argv(argv), _own_exit_code():
        hydra.main(config_path=source.directory, config_name=source.name, **VERSION_BASE)(job)()


@contextmanager
def _own_exit_code() -> Iterator[None]:
    """Exit with the exit code of the error that Hydra has printed."""
    try:
        yield
    except SystemExit as exiting:
        if isinstance(exiting.__context__, TrieyeError):
            raise SystemExit(exiting.__context__.exit_code) from exiting.__context__
        raise


@contextmanager
def _argv(arguments: Sequence[str]) -> Iterator[None]:
    old_argv = sys.argv
    sys.argv = [old_argv[0], *arguments]
    try:
        yield
    finally:
        sys.argv = old_argv
