"""Exporting: writes the policy of a run as files for programs that do not use trieye."""

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

_TRACED_SIZE, _COMPARED_SIZES = 3, (1, 2, 7)
"""Batch sizes of the traced example, and of the batches for the comparison of program and policy."""
_REASON_LENGTH = 200
_MAX_UNIFORM_WIDTH = 1e6
"""Boxes whose bounds are further apart are sampled as if they were unbounded."""


def export_policy(
    policy: Policy, export_dir: Path, *, env_steps: int = 0, origin: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write the weights of a policy and, if torch.export supports its `act`, a program that acts without trieye.

    `policy.pt` is the state dict, for `torch.load(weights_only=True)`. `policy.pt2` is a program of `torch.export`: it
    maps observations `[n, ...]` to the actions `[n, ...]` of the policy without exploration, for any `n`. It is
    written only if it chooses the same actions as the policy; otherwise a message explains why it is missing.
    `export.json` describes the files, and permits a later export to replace them.

    Args:
        policy: On the CPU, in evaluation mode. For the export its `act` is called with tensors without values;
            if it stores them in attributes, they remain there.
        export_dir: Created if missing; other files in it are not touched.
        env_steps: Argument of schedules.
        origin: Additional plain data for `export.json`: the run and the checkpoint.

    Returns:
        The files, `policy.pt` first.

    Raises:
        ConfigurationError: A file of this name exists that no export wrote, or the directory is not writable.
    """
    _check_free(export_dir)
    weights = io.BytesIO()
    torch.save(policy.state_dict(), weights)
    contents = {WEIGHTS: weights.getvalue()}
    program = _program_or_explain(policy, env_steps)
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
        return _write_files(export_dir, contents, json.dumps(note, indent=1).encode())
    except OSError as error:
        raise ConfigurationError(f"{export_dir}: cannot write the export: {error}") from error


def example(spaces: Spaces) -> str:
    """Return Python code for an observation of zeros, as the exported program takes it."""
    obs = _observations(spaces.observation, 1, np.random.default_rng(0))
    if isinstance(obs, dict):
        return f"{{{', '.join(f'{name!r}: {_zeros(tensor)}' for name, tensor in obs.items())}}}"
    return _zeros(obs)


def _zeros(tensor: torch.Tensor) -> str:
    return f"torch.zeros({', '.join(map(str, tensor.shape))}, dtype={tensor.dtype})"


def _check_free(export_dir: Path) -> None:
    """Raise if the export would replace a file that no earlier export wrote."""
    try:
        note = json.loads((export_dir / NOTE).read_bytes())
        own_names = {NOTE, *note["files"]} if note["by"] == "trieye" else set()
    except (OSError, ValueError, KeyError, TypeError):
        own_names = set()
    for name in (WEIGHTS, PROGRAM, NOTE):
        if name not in own_names and os.path.lexists(export_dir / name):
            raise ConfigurationError(f"{export_dir / name} exists, and no export wrote it; choose another directory")


def _write_files(export_dir: Path, contents: Mapping[str, bytes], note: bytes) -> list[Path]:
    export_dir.mkdir(parents=True, exist_ok=True)
    (export_dir / PROGRAM).unlink(missing_ok=True)  # the program never belongs to other weights
    write_atomic(export_dir / NOTE, note)  # first: after a crash a later export may still replace the files
    for name, content in contents.items():
        write_atomic(export_dir / name, content)
    return [export_dir / name for name in (*contents, NOTE)]


def _program_or_explain(policy: Policy, env_steps: int) -> bytes | None:
    """Return the program of a policy, or report why there is none and return None."""
    try:
        if policy.initial_state(1) is None:
            return _program(policy, env_steps)
        reason = "the policy is recurrent, so its actions depend on more than the observations"
    except Exception as error:  # noqa: BLE001 - user code, called with tensors without values
        reason = _reason(error)
    say(f"exported the weights of {type(policy).__name__}, but no program: {reason}")
    return None


def _reason(error: Exception) -> str:
    text = str(error).strip()
    if "Constraints violated" in text:
        return (
            "act() fixes the number of observations, as len(obs) or a loop over obs does; use obs.shape[0], or treat "
            "all observations at once"
        )
    return textwrap.shorten(text.partition("\n")[0], _REASON_LENGTH, placeholder=" ...") or type(error).__name__


class _GreedyModule(nn.Module):
    """A policy without exploration, as a module for torch.export."""

    def __init__(self, policy: Policy, env_steps: int) -> None:
        super().__init__()
        self.policy = policy
        self._ctx = Context(explore=False, env_steps=env_steps, generator=torch.Generator())

    def forward(self, obs: Obs) -> torch.Tensor:
        return self.policy.act(obs, None, self._ctx).action


def _program(policy: Policy, env_steps: int) -> bytes:
    """Return the bytes of a program that chooses the same actions as the policy.

    Raises:
        ValueError: The actions differ.
        Exception: torch.export does not support the policy, for one of many reasons.
    """
    acting, draws, space = _GreedyModule(policy, env_steps), np.random.default_rng(0), policy.spaces.observation
    batches = [_observations(space, n, draws) for n in _COMPARED_SIZES]
    file = io.BytesIO()
    with torch.no_grad(), _silence_torch():
        expected_actions = [acting(obs) for obs in batches]  # before its act is called with tensors without values
        traced_obs = _observations(space, _TRACED_SIZE, draws)
        batch = {0: torch.export.Dim("batch", min=1)}
        shapes = dict.fromkeys(traced_obs, batch) if isinstance(traced_obs, dict) else batch
        torch.export.save(torch.export.export(acting, (traced_obs,), dynamic_shapes=(shapes,), strict=False), file)
        file.seek(0)
        loaded_module = torch.export.load(file).module()
        if not all(_is_same(loaded_module(obs), action) for obs, action in zip(batches, expected_actions, strict=True)):
            raise ValueError(
                "the program exported by torch.export chooses different actions from the policy's act(); make act() "
                "deterministic, without Python branches on values of observations"
            )
    return file.getvalue()


def _is_same(action: torch.Tensor, expected_action: torch.Tensor) -> bool:
    if action.shape != expected_action.shape or action.dtype != expected_action.dtype:
        return False
    if not action.is_floating_point():
        return torch.equal(action, expected_action)
    return torch.allclose(action, expected_action, rtol=1e-4, atol=1e-5, equal_nan=True)


def _observations(space: Any, n: int, draws: np.random.Generator) -> Any:
    """Return random observations `[n, ...]` of a space, in the form that a policy receives."""
    columns = columns_of(_sample(space, n, draws))
    return nested({name: torch.from_numpy(column) for name, column in columns.items()})


def _sample(space: Any, n: int, draws: np.random.Generator) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: _sample(part, n, draws) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        # uniform values between bounds such as 3e38, as Gymnasium samples them, overflow in most networks
        low, high, shape = space.low.astype(np.float64), space.high.astype(np.float64), (n, *space.shape)
        with np.errstate(over="ignore"):
            width = high - low
        uniform_samples = low + draws.random(shape) * np.minimum(width, _MAX_UNIFORM_WIDTH)
        samples = np.where(width < _MAX_UNIFORM_WIDTH, uniform_samples, draws.standard_normal(shape))
        return samples.clip(low, high).astype(space.dtype)
    space_copy = copy.deepcopy(space)  # preserves the random state of the policy's space
    space_copy.seed(int(draws.integers(1 << 31)))
    return np.stack([space_copy.sample() for _ in range(n)])


@contextlib.contextmanager
def _silence_torch() -> Iterator[None]:
    """Suppress torch's developer output on the terminal: warnings, log lines, the graph of a failed export.

    Output of other threads is lost, too, during the second or two of the export.
    """
    logger = logging.getLogger("torch")
    handlers, logger.handlers = logger.handlers, []
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.handlers = handlers
