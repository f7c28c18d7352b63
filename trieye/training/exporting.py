"""Exporting: the policy of a run as files for programs that know nothing of trieye."""

import contextlib
import copy
import io
import json
import logging
import os
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from trieye.exceptions import ConfigurationError
from trieye.files.atomic import write_atomic
from trieye.process.progress import say
from trieye.training.policy import Context, Obs, Policy
from trieye.training.spaces import Spaces, columns_of, nested

WEIGHTS, PROGRAM, NOTE = "policy.pt", "policy.pt2", "export.json"

_TRACED, _COMPARED = 3, (1, 2, 7)
"""Numbers of observations with which a program is made, and with which it is tried."""
_REASON_LENGTH = 200
_WIDE = 1e6
"""Between bounds that are further apart, observations are drawn as if there were none."""


def export_policy(
    policy: Policy, export_dir: Path, *, env_steps: int = 0, origin: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write the weights of a policy, and where torch.export can take its `act`, a program that acts without trieye.

    `policy.pt` holds the state dict, for `torch.load(weights_only=True)`. `policy.pt2` holds a program of
    `torch.export`: observations `[n, ...]` to the actions `[n, ...]` that the policy takes when it does not explore,
    for any `n`. It is written only if it acts as the policy does; if not, a sentence says why there is none.
    `export.json` says what they are, and lets a later export replace them.

    Args:
        policy: On the CPU, in its evaluation mode. To make the program, its `act` is called with tensors that have no
            values; what it keeps of them in attributes stays there.
        export_dir: Made if it is missing; other files in it are left alone.
        env_steps: For schedules.
        origin: What else is noted in `export.json`, as plain data: the run and the checkpoint.

    Returns:
        The files, `policy.pt` first.

    Raises:
        ConfigurationError: A file of such a name is there that no export has written, or nothing can be written there.
    """
    _check_free(export_dir)
    weights = io.BytesIO()
    torch.save(policy.state_dict(), weights)
    contents = {WEIGHTS: weights.getvalue()}
    program = _program_or_sentence(policy, env_steps)
    if program is not None:
        contents[PROGRAM] = program
    note = {
        "by": "trieye",
        "files": [*contents],
        "policy": f"{type(policy).__module__}:{type(policy).__qualname__}",
        "observation": str(policy.spaces.observation),
        "action": str(policy.spaces.action),
        **(origin or {}),
    }
    try:
        return _written(export_dir, contents, json.dumps(note, indent=1).encode())
    except OSError as error:
        raise ConfigurationError(f"{export_dir}: nothing can be exported to it: {error}") from error


def example(spaces: Spaces) -> str:
    """Return Python code of one observation of zeros, as the program of a policy takes it."""
    obs = _observations(spaces.observation, 1, np.random.default_rng(0))
    if isinstance(obs, dict):
        return f"{{{', '.join(f'{name!r}: {_zeros(tensor)}' for name, tensor in obs.items())}}}"
    return _zeros(obs)


def _zeros(tensor: torch.Tensor) -> str:
    sizes = ", ".join(map(str, tensor.shape))
    return f"torch.zeros({sizes}" + (")" if tensor.dtype == torch.float32 else f", dtype={tensor.dtype})")


def _check_free(export_dir: Path) -> None:
    """Make sure that what would be replaced is of an earlier export."""
    try:
        note = json.loads((export_dir / NOTE).read_bytes())
        own = {NOTE, *note["files"]} if note["by"] == "trieye" else set()
    except (OSError, ValueError, KeyError, TypeError):
        own = set()
    for name in (WEIGHTS, PROGRAM, NOTE):
        if name not in own and os.path.lexists(export_dir / name):
            raise ConfigurationError(
                f"{export_dir / name} is there, and no export has written it; move it away, or export to another "
                "directory"
            )


def _written(export_dir: Path, contents: Mapping[str, bytes], note: bytes) -> list[Path]:
    export_dir.mkdir(parents=True, exist_ok=True)
    (export_dir / PROGRAM).unlink(missing_ok=True)  # at no time is there a program of other weights
    write_atomic(export_dir / NOTE, note)  # the first one: after a kill, what is there is still known as an export
    for name, content in contents.items():
        write_atomic(export_dir / name, content)
    return [export_dir / name for name in (*contents, NOTE)]


def _program_or_sentence(policy: Policy, env_steps: int) -> bytes | None:
    """Return the program of a policy; None if it has none, after a sentence that says why."""
    try:
        if policy.initial_state(1) is None:
            return _program(policy, env_steps)
        reason = "it is recurrent, and its actions depend on more than the observations"
    except Exception as error:  # noqa: BLE001 - act is the user's, and here it is called as it was never meant to be
        reason = _reason(error)
    say(f"the weights of {type(policy).__name__} are exported, but no program: {reason}")
    return None


def _reason(error: Exception) -> str:
    text = str(error).strip()
    if "Constraints violated" in text:
        return (
            "its act fixes the number of observations, as len(obs) and a loop over them do; obs.shape[0] does not, and "
            "neither does what treats all at once"
        )
    return textwrap.shorten(text.partition("\n")[0], _REASON_LENGTH, placeholder=" ...") or type(error).__name__


class _Acting(nn.Module):
    """What a policy does when it does not explore, as a module that torch.export takes."""

    def __init__(self, policy: Policy, env_steps: int) -> None:
        super().__init__()
        self.policy = policy
        self._ctx = Context(explore=False, env_steps=env_steps, generator=torch.Generator())

    def forward(self, obs: Obs) -> torch.Tensor:
        return self.policy.act(obs, None, self._ctx).action


def _program(policy: Policy, env_steps: int) -> bytes:
    """Return the bytes of a program that was seen to act as the policy does.

    Raises:
        ValueError: It acts otherwise.
        Exception: torch.export cannot take it, for one of many reasons.
    """
    acting, draws, space = _Acting(policy, env_steps), np.random.default_rng(0), policy.spaces.observation
    tried = [_observations(space, n, draws) for n in _COMPARED]
    file = io.BytesIO()
    with torch.no_grad(), _quiet():
        expected = [acting(obs) for obs in tried]  # before its act is called with tensors that have no values
        traced = _observations(space, _TRACED, draws)
        batch = {0: torch.export.Dim("batch", min=1)}
        shapes = dict.fromkeys(traced, batch) if isinstance(traced, dict) else batch
        torch.export.save(torch.export.export(acting, (traced,), dynamic_shapes=(shapes,), strict=False), file)
        file.seek(0)
        loaded = torch.export.load(file).module()
        if not all(_is_same(loaded(obs), action) for obs, action in zip(tried, expected, strict=True)):
            raise ValueError("the program that torch.export makes of its act takes other actions than the policy does")
    return file.getvalue()


def _is_same(action: torch.Tensor, expected: torch.Tensor) -> bool:
    if action.shape != expected.shape or action.dtype != expected.dtype:
        return False
    if not action.is_floating_point():
        return torch.equal(action, expected)
    return torch.allclose(action, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def _observations(space: Any, n: int, draws: np.random.Generator) -> Any:
    """Return observations `[n, ...]` as a policy gets them, which an environment might make."""
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else None
    drawn = _drawn(space, n, draws) if parts is None else {key: _drawn(part, n, draws) for key, part in parts.items()}
    return nested({name: torch.from_numpy(column) for name, column in columns_of(drawn).items()})


def _drawn(space: Any, n: int, draws: np.random.Generator) -> Any:
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        # between bounds such as 3e38, as Gymnasium draws, are numbers of which most networks make infinite ones
        low, high, shape = space.low.astype(np.float64), space.high.astype(np.float64), (n, *space.shape)
        with np.errstate(over="ignore"):
            width = high - low
        within = low + draws.random(shape) * np.minimum(width, _WIDE)
        return np.where(width < _WIDE, within, draws.standard_normal(shape)).clip(low, high).astype(space.dtype)
    own = copy.deepcopy(space)  # the generator of the policy's space is left where it is
    own.seed(int(draws.integers(1 << 31)))
    return np.stack([own.sample() for _ in range(n)])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch tells its developers off the terminal: warnings, log lines, the graph of what failed.

    The terminal is that of all threads, whose lines are lost for the second or two that this takes.
    """
    handlers = logging.getLogger("torch").handlers
    silent = logging.Filter("nothing that there is")
    for handler in handlers:
        handler.addFilter(silent)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(silent)
