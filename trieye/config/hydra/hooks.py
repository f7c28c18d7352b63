"""Hooks: calls from a command line into the packages above the config."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trieye.config.root import TrieyeConfig


@dataclass(frozen=True)
class Hooks:
    """Calls from a command line into the packages above the config.

    Attributes:
        check: Refuses a valid config that cannot run, before anything is created.
        check_lock: Refuses the directory of a run that another process writes to; True for a run on a cluster.
        print_config: Prints a config as a tree.
        say: Prints a line on stderr.
    """

    check: Callable[[Any], None]
    check_lock: Callable[[Path, bool], None]
    print_config: Callable[[TrieyeConfig], None]
    say: Callable[[str], None]
