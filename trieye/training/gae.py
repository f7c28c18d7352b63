"""gae: generalized advantage estimates of collected rows."""

from typing import NamedTuple

import numpy as np
import torch

from trieye.training.rows import Rows


class Advantages(NamedTuple):
    """Advantages and value targets.

    Attributes:
        advantages: float32 `[t, n]`; 0 where a row is not valid.
        returns: float32 `[t, n]`, targets of the value function: advantages plus values.
    """

    advantages: torch.Tensor
    returns: torch.Tensor


def gae(rows: Rows, last_value: torch.Tensor, *, gamma: float, lam: float) -> Advantages:
    """Return generalized advantage estimates (Schulman et al. 2016, equation 16).

    After termination the value is 0. After truncation, and after the last row, it is the value of the observation after
    the step.

    Args:
        rows: Collected rows; the extra `value`, `[t, n]`, holds the value of each observation.
        last_value: `[n]`, values of the observations after the last row, `rows.after`.
        gamma: Discount.
        lam: Decay of later temporal differences: 0 = one-step, 1 = Monte Carlo.
    """
    values = torch.cat((rows["value"].float(), last_value.float().reshape(1, -1))).cpu().numpy()
    terminated, done = rows.arrays["terminated"], rows.arrays["terminated"] | rows.arrays["truncated"]
    deltas = rows.arrays["reward"] + gamma * ~terminated * values[1:] - values[:-1]
    deltas, decays = deltas * rows.valid, gamma * lam * ~done * rows.valid  # rows of resets block propagation
    advantages = np.empty(deltas.shape, np.float32)
    later_advantages = np.zeros(deltas.shape[1])
    for t in range(len(deltas) - 1, -1, -1):
        later_advantages = deltas[t] + decays[t] * later_advantages
        advantages[t] = later_advantages
    estimates = torch.from_numpy(advantages).to(rows.device)
    return Advantages(estimates, estimates + rows["value"].float())
