"""Compatibility alias for trieye 0.1.5: PathManager from `trieye.compat.path_manager`."""

from trieye.compat.path_manager import PathManager

__all__ = ["PathManager"]
