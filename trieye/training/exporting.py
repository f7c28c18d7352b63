"""Exporting: a policy as files that need no trieye: its weights, and where torch can, what acts as a program."""

import copy
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trieye.files.atomic import replacing, write_atomic
from trieye.process.progress import say
from trieye.training.policy import Context, Obs, Policy
from trieye.training.spaces import Spaces

WEIGHTS, PROGRAM = "policy.pt", "policy.pt2"
"""The files: for `torch.load(..., weights_only=True)`, and for `torch.export.load(...)`."""

_LONGEST_REASON = 200
_TRIED = (1, 5)
"""Numbers of observations that a program is compared with its policy for."""


class _Acting(nn.Module):
    """What a policy does without exploring: observations `[n, ...]` in, actions `[n, ...]` out."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Obs) -> torch.Tensor:
        """Act."""
        return self.policy.act(obs, None, Context(explore=False, env_steps=0, generator=torch.default_generator)).action


def export_policy(policy: Policy, export_dir: Path) -> list[Path]:
    """Write a policy, and return the files: `policy.pt`, and `policy.pt2` if torch can export how it acts.

    A program is written only if it acts as the policy does. Where it cannot be, as with a recurrent policy, one
    sentence says why. The policy stays as it is.

    Args:
        policy: What acts.
        export_dir: Where the files go; made if need be. Files of an earlier export are replaced.
    """
    export_dir.mkdir(parents=True, exist_ok=True)
    own = copy.deepcopy(policy).to("cpu").eval()
    weights, program = export_dir / WEIGHTS, export_dir / PROGRAM
    with replacing(weights) as scratch:
        torch.save(own.state_dict(), scratch)
    if own.initial_state(1) is not None:
        say(f"{PROGRAM} is not written: the policy is recurrent, and a program of torch.export has no state")
        program.unlink(missing_ok=True)
        return [weights]
    try:
        _write_program(own, program)
    except Exception as error:  # noqa: BLE001 - whatever torch makes of the code of a user
        reason = " ".join((str(error) or type(error).__name__).split())[:_LONGEST_REASON]
        say(f"{PROGRAM} is not written: torch.export cannot take {type(policy).__name__}.act: {reason}")
        program.unlink(missing_ok=True)  # that of an earlier export acts in another way
        return [weights]
    return [weights, program]


@torch.no_grad()
def _write_program(policy: Policy, path: Path) -> None:
    acting = _Acting(policy)
    obs, num = sampled(policy.spaces, 3), torch.export.Dim("num", min=1)
    shapes: Any = {key: {0: num} for key in obs} if isinstance(obs, dict) else {0: num}
    with warnings.catch_warnings(), _without_words_of_torch():
        warnings.simplefilter("ignore")
        program = torch.export.export(acting, (obs,), dynamic_shapes=(shapes,))
        held = io.BytesIO()
        torch.export.save(program, held)
        held.seek(0)
        loaded = torch.export.load(held).module()
    for size in _TRIED:
        tried = sampled(policy.spaces, size)
        if not torch.allclose(loaded(tried).float(), acting(tried).float(), atol=1e-5):
            raise ValueError(f"the program chooses other actions for {size} observations")
    write_atomic(path, held.getvalue())


@contextmanager
def _without_words_of_torch() -> Iterator[None]:
    """Let torch not show how it exports, by log lines and the code of a graph; what it cannot export it raises."""
    logger = logging.getLogger("torch")
    kept, logger.handlers = logger.handlers, []
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.handlers = kept


def sampled(spaces: Spaces, num: int) -> Obs:
    """Return observations as a policy gets them, `[num, ...]`, drawn from their space."""
    space = spaces.observation
    drawn = [space.sample() for _ in range(num)]
    if isinstance(drawn[0], dict):
        return {key: torch.stack([torch.as_tensor(each[key]) for each in drawn]) for key in drawn[0]}
    return torch.stack([torch.as_tensor(each) for each in drawn])
