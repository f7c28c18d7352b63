"""The module name of PathManager in trieye 0.1.5; it lives in `trieye.compat.path_manager`."""

from trieye.compat.path_manager import PathManager

__all__ = ["PathManager"]
