"""Steps: consecutive vector steps of environments, before they become rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.training.finite import finite_members, first_nonfinite, is_finite
from trieye.training.rows import Array


class Steps:
    """Consecutive vector steps of environments, `[t, n, ...]`.

    Args:
        obs: The observations before the first step, by column.
        done: Environments that the first step resets instead of stepping them.
        steps: Number of steps to allocate.

    Attributes:
        obs_columns: Observations by column, including the ones after the last step.
        rewards: float64.
        terminated: Whether an episode terminated in the step.
        truncated: Whether an episode was truncated in the step.
        resets: Whether a step resets the environment instead of stepping it; includes the step after the last one.
        cuts: (t, n) of omitted steps that cut an episode.
    """

    __slots__ = ("_flat", "cuts", "obs_columns", "resets", "rewards", "terminated", "truncated")

    def __init__(self, obs: Mapping[str, Array], done: NDArray[np.bool_], steps: int) -> None:
        num = len(done)
        self.obs_columns = {name: np.empty((steps + 1, *item.shape), item.dtype) for name, item in obs.items()}
        self.rewards = np.empty((steps, num))
        self.terminated, self.truncated = np.empty((2, steps, num), bool)
        self.resets = np.empty((steps + 1, num), bool)
        self.cuts: list[tuple[int, int]] = []
        self._flat = [item.reshape(steps + 1, -1) for item in self.obs_columns.values() if item.dtype.kind == "f"]
        for name, item in obs.items():
            self.obs_columns[name][0] = item
        self.resets[0] = done

    def store_obs(self, obs: Any, t: int) -> None:
        """Store the observations at `t`; they are cast to the dtypes of `columns_of`."""
        if "obs" in self.obs_columns:
            self.obs_columns["obs"][t] = obs
            return
        for key, item in obs.items():
            self.obs_columns[f"obs/{key}"][t] = item

    def is_finite(self, first_step: int, end: int) -> bool:
        """Return True if rewards and next observations of some steps are finite; False needs a check by `faults`."""
        if not is_finite(self.rewards[first_step:end].reshape(-1)):
            return False
        for flat in self._flat:  # noqa: SIM110 - all() takes longer
            if not is_finite(flat[first_step + 1 : end + 1].reshape(-1)):
                return False
        return True

    def faults(self, t: int) -> dict[int, str]:
        """Return a description of each environment's non-finite observation or reward after step `t`."""
        fault_by_env = self.obs_faults(t + 1)
        for n in np.flatnonzero(~finite_members(self.rewards[t])).tolist():
            fault_by_env[n] = f"the reward {self.rewards[t, n]:g}"
        return fault_by_env

    def obs_faults(self, t: int) -> dict[int, str]:
        """Return a description of each environment's non-finite observation at `t`."""
        fault_by_env: dict[int, str] = {}
        for name, item in self.obs_columns.items():
            if item.dtype.kind == "f":
                label = name.replace("obs", "the observation", 1).replace("/", " ")
                for n in np.flatnonzero(~finite_members(item[t])).tolist():
                    fault_by_env[n] = f"{label} with {first_nonfinite(item[t, n]):g}"
        return fault_by_env

    def has_row_before(self, t: int, n: int) -> bool:
        """Return whether step `t - 1` is a row, not a reset; False for `t=0`."""
        return t > 0 and not self.resets[t - 1, n]

    def cut(self, members: NDArray[np.bool_], t: int) -> None:
        """Omit step `t` of some environments, which were reset, and truncate the row before it."""
        for n in np.flatnonzero(members & ~self.resets[t]).tolist():
            self.cuts.append((t, n))
            if self.has_row_before(t, n):
                self.truncated[t - 1, n] = True
        self.resets[t, members] = True
        self.rewards[t, members] = 0.0
        self.terminated[t, members] = self.truncated[t, members] = False
