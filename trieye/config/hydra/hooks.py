"""Hooks: callbacks of the command line into packages above `trieye.config`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trieye.config.root import TrieyeConfig


@dataclass(frozen=True)
class Hooks:
    """Callbacks of the command line into packages above `trieye.config`.

    Attributes:
        check: Raises if a valid config cannot run here; called before anything is created.
        check_lock: Raises if another process writes to a run directory; the flag is True for runs on a cluster.
        announce: Records in a new run directory that this process is about to start the run.
        print_config: Prints a config as YAML.
        say: Prints a line on stderr.
    """

    check: Callable[[Any], None]
    check_lock: Callable[[Path, bool], None]
    announce: Callable[[Path], None]
    print_config: Callable[[TrieyeConfig], None]
    say: Callable[[str], None]
