"""Advantages of what was collected."""

from typing import NamedTuple

import numpy as np
import torch

from trieye.training.rows import Rows


class Advantages(NamedTuple):
    """What `gae` returns.

    Attributes:
        advantages: float32 `[t, n]`; 0 where a row is not valid.
        returns: float32 `[t, n]`, the targets of the values: advantages plus values.
    """

    advantages: torch.Tensor
    returns: torch.Tensor


def gae(rows: Rows, last_value: torch.Tensor, *, gamma: float, lam: float) -> Advantages:
    """Return generalized advantage estimates (Schulman et al. 2016, equation 16).

    An episode that terminated is worth nothing afterwards; one that was truncated is worth the value of the observation
    after its last step, and so are the rows that were collected last.

    Args:
        rows: What was collected, with the value of each observation as the extra `value`, `[t, n]`.
        last_value: `[n]`, the values of the observations after the last row, `rows.after`.
        gamma: Discount.
        lam: Decay of the terms further away: 0 = one step, 1 = all of them.
    """
    values = torch.cat((rows["value"].float(), last_value.float().reshape(1, -1))).cpu().numpy()
    terminated, done = rows.arrays["terminated"], rows.arrays["terminated"] | rows.arrays["truncated"]
    deltas = rows.arrays["reward"] + gamma * ~terminated * values[1:] - values[:-1]
    deltas, decays = deltas * rows.valid, gamma * lam * ~done * rows.valid  # nothing passes the row of a reset
    advantages = np.empty(deltas.shape, np.float32)
    later = np.zeros(deltas.shape[1])
    for t in range(len(deltas) - 1, -1, -1):
        later = deltas[t] + decays[t] * later
        advantages[t] = later
    found = torch.from_numpy(advantages).to(rows.device)
    return Advantages(found, found + rows["value"].float())
