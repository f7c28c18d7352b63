"""RunOutput: an output format of the Stable-Baselines3 logger that logs to a run."""

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import Figure, HParam, Image, KVWriter, Video

from trieye.integrations import media
from trieye.run.run import Run


class RunOutput(KVWriter):
    """Logs every recorded value at its timestep, including values that other outputs exclude.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last: dict[str, tuple[int, Any]] = {}

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Log values, except those excluded for `trieye` and repetitions at the same step."""
        for name, value in key_values.items():
            if "trieye" in (key_excluded.get(name) or ()):
                continue
            if isinstance(value, str):
                media.log_text(self._run, name, value, step)
            elif isinstance(value, np.ScalarType):
                if self._last.get(name) != (step, value):  # evaluations and rollouts record the same counters
                    self._run.log(name, value, step=step)
                self._last[name] = (step, value)
            else:
                self._write_medium(name, value, step)

    def _write_medium(self, name: str, value: Any, step: int) -> None:
        if isinstance(value, torch.Tensor | np.ndarray):
            self._run.log_histogram(name, value, step)
        elif isinstance(value, Figure):
            self._run.log_image(name, media.drawn(name, value.figure, close=value.close), step)
        elif isinstance(value, Image):
            self._run.log_image(name, media.picture(name, value.image, value.dataformats), step)
        elif isinstance(value, Video):
            self._run.log_video(name, media.frames(name, value.frames), step, fps=value.fps)
        elif isinstance(value, HParam):
            self._run.log_params(value.hparam_dict)

    def close(self) -> None:
        """Do nothing: the owner of the run closes it."""
