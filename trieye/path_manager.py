"""The module name of PathManager in trieye 0.1.5; it lives in `trieye.checkpoints.path_manager`."""

from trieye.checkpoints.path_manager import PathManager

__all__ = ["PathManager"]
