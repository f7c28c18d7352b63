"""Finite: keeps NaN and infinity out of replay, moments and weights, and names their source."""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar, Token
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trieye.exceptions import NonFiniteError
from trieye.process.progress import say
from trieye.run.media import number_of

Array = NDArray[Any]
Kind = Literal["rows", "updates", "losses", "priorities"]
MAX_IN_A_ROW = 100
"""Limit of consecutive refused updates, or refused rows of one environment: skipping does not help then."""

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST_NORMAL = sys.float_info.min
_SHORT = 64
_LONG = 10_000  # above, BLAS may start threads
_FLOAT32_BYTES = 4
_REPORT_INTERVAL_S = 1.0
_CHECK_INTERVAL_S = 1.0
_NUM_FLAGS = 1024


class OnNonfinite:
    """Handles NaN and infinity as `loop.on_nonfinite` selects.

    Args:
        mode: `stop` raises; `skip` counts them, and reports the first of each kind; `warn` reports once per second.
        owner: Owner of the values, for messages, such as ` of explorer 1`.
        show: Shows a message.

    Attributes:
        counts: Number of omitted values, by kind.
        leaves_out: Whether training continues without the values.
        where: Returns the progress of the training, for messages.
        check_weights: Raises if weights are not finite, which would explain non-finite losses and priorities.
    """

    def __init__(self, mode: str = "stop", *, owner: str = "", show: Callable[[str], None] = say) -> None:
        self._mode, self.owner, self._show = mode, owner, show
        self.leaves_out = mode != "stop"
        self.counts: Counter[str] = Counter()
        self.where: Callable[[], str] = str
        self.check_weights: Callable[[], object] = str
        self._last_shown_at: dict[str, float] = {}
        self._last_counts: Counter[str] = Counter()

    def handle(self, kind: Kind, description: str, consequence: str, num: int = 1) -> None:
        """Raise for non-finite values, or count and report them.

        Args:
            kind: Kind of the omitted values.
            description: The value, its source, and when it occurred.
            consequence: Effect on the training if it continues.
            num: Number of omitted values.

        Raises:
            NonFiniteError: The mode is `stop`, or weights are the cause.
        """
        if kind in {"losses", "priorities"}:
            self.check_weights()
        if not self.leaves_out:
            raise NonFiniteError(f"{description} (loop.on_nonfinite=skip would omit it and continue)")
        self.counts[kind] += num
        self.show(kind, f"{description}: {consequence}")

    def show(self, kind: Kind, text: str) -> None:
        """Show a message: the first of its kind, and with the mode `warn` at most one per second."""
        now = time.monotonic()
        is_due = kind not in self._last_shown_at or (
            self._mode == "warn" and now - self._last_shown_at[kind] >= _REPORT_INTERVAL_S
        )
        if is_due:
            self._last_shown_at[kind] = now
            self._show(text)

    def metrics(self) -> dict[str, float]:
        """Return the counts that changed since the last call."""
        changed_counts = {
            f"nonfinite/{kind}": float(num) for kind, num in self.counts.items() if num != self._last_counts[kind]
        }
        self._last_counts = self.counts.copy()
        return changed_counts


def is_finite(row: Array) -> bool:
    """Return whether all numbers `[n]` are finite as float32; large finite numbers may also give False."""
    if not row.size:
        return True
    if row.size > _LONG or (row.size > _SHORT and row.itemsize < _FLOAT32_BYTES):
        return float(np.abs(row).max()) < _LARGEST
    if row.size > _SHORT:
        return float(row.dot(row)) < _LARGEST  # takes less than half the time of `abs` and `max`
    return bool(sum(map(abs, row.tolist())) < _LARGEST)  # for few numbers, a fifth of the time of two NumPy calls


def finite_members(array: Array) -> NDArray[np.bool_]:
    """Return a mask `[n]` of the members of `[n, ...]` whose numbers are all finite as float32."""
    with np.errstate(over="ignore"):
        per_member = np.isfinite(array.astype(np.float32)).reshape(len(array), -1)
    mask: NDArray[np.bool_] = np.all(per_member, axis=1)
    return mask


def first_nonfinite(array: Array) -> float:
    """Return the first number that is not finite as float32."""
    flat = array.reshape(-1)
    return float(flat[~finite_members(flat)][0])


def refused_rows(rows: Mapping[str, Any]) -> tuple[str, NDArray[np.bool_]] | None:
    """Return the first column with NaN or infinity, and the mask `[n]` of affected rows; None if all are finite."""
    floats = {name: array for name, item in rows.items() if (array := np.asarray(item)).dtype.kind == "f"}
    if all(is_finite(array.reshape(-1)) for array in floats.values()):
        return None
    mask_by_name = {name: ~finite_members(array) for name, array in floats.items()}
    names = [name for name, mask in mask_by_name.items() if mask.any()]
    return (names[0], np.logical_or.reduce([mask_by_name[name] for name in names])) if names else None


_ACTIVE: ContextVar["UpdateGuard | None"] = ContextVar("trieye_update_guard", default=None)


def _before_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if (guard := _ACTIVE.get()) is not None:
        guard.check(optimizer)
        # the moments of weights without gradient decay to subnormal numbers, with which a CPU is many times slower
        torch.set_flush_denormal(True)


def _after_step(*_: object) -> None:
    if (guard := _ACTIVE.get()) is not None:
        torch.set_flush_denormal(guard.flushes_denormal)


# hooks for all optimizers, so that algorithms need not register theirs
register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)


class UpdateGuard:
    """Prevents optimizers that step inside `with guard` from applying NaN or infinite gradients.

    On the CPU, and for optimizers that are not fused, each update is checked before it is made. A fused optimizer on
    another device gets a flag that its kernel reads (as from `torch.amp.GradScaler`), so that the host does not wait;
    `settle` fetches the flags. Optimizers under a `GradScaler` are not checked, because it needs infinities to adapt.

    Args:
        engine: The engine, with `updates`, `env_steps`, modules and optimizers.
        on_nonfinite: Handles refused updates.
        in_flags: Use flags on the CPU, too.

    Attributes:
        flushes_denormal: Whether the program has called `torch.set_flush_denormal(True)` itself.
    """

    def __init__(self, engine: Any, on_nonfinite: OnNonfinite, *, in_flags: bool = False) -> None:
        self._engine, self._on_nonfinite, self._in_flags = engine, on_nonfinite, in_flags
        self._plans: dict[int, _Plan] = {}
        self._pending: list[tuple[_Plan, int]] = []
        self._num_refused = 0
        self._next_check_at = time.monotonic() + _CHECK_INTERVAL_S
        self._initially_bad: frozenset[str] = frozenset(name for name, _ in _bad_tensors(engine))
        self._token: Token[UpdateGuard | None] | None = None
        self.flushes_denormal = False

    def __enter__(self) -> None:
        self._num_refused = 0
        self.flushes_denormal = _SMALLEST_NORMAL / 2 == 0
        self._token = _ACTIVE.set(self)

    def __exit__(self, *_: object) -> None:
        assert self._token is not None  # noqa: S101 - __enter__ set it
        _ACTIVE.reset(self._token)
        torch.set_flush_denormal(self.flushes_denormal)  # an optimizer step that raised has not reset it

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Prevent the next step of an optimizer if a gradient is not finite.

        Raises:
            NonFiniteError: The mode is `stop`, or 100 consecutive updates were refused.
        """
        plan = self._plans.get(id(optimizer))
        if plan is None or plan.optimizer is not optimizer:
            plan = self._plans[id(optimizer)] = _Plan(optimizer, in_flags=self._in_flags)
        found_inf = vars(optimizer).get("found_inf")
        if found_inf is not None and found_inf is not plan.assigned_flag:
            return  # set by a GradScaler
        grads = [grad for group in optimizer.param_groups for p in group["params"] if (grad := p.grad) is not None]
        if not grads:
            return
        flag = plan.flag(grads)
        if plan.is_deferred:
            optimizer.found_inf = plan.assigned_flag = flag  # type: ignore[attr-defined]  # read by the fused step
            self._pending.append((plan, self._engine.updates))
            if len(plan.flags) == plan.num_used:
                self._fetch()
        elif flag.item():
            flag.zero_()
            self._refuse(plan, _describe(self._engine, optimizer), self._engine.updates)
            plan.withhold()
        else:
            plan.num_in_a_row = 0

    def settle(self, values: Mapping[str, Any]) -> None:
        """Count the refused updates of a step, check its losses and, once per second, the weights.

        Args:
            values: Metrics of the step; those with `loss` in their name are checked.

        Raises:
            NonFiniteError: The mode is `stop`, or the damage cannot be undone.
        """
        if self._pending:
            self._fetch()
        for name, value in values.items():
            if value is None or "loss" not in name.lower() or math.isfinite(loss := number_of(name, value)):
                continue
            if not self._num_refused:  # otherwise the refused update, already reported, explains the loss
                message = f"metric {name} is {loss:g} {self._on_nonfinite.where()}"
                self._on_nonfinite.handle("losses", message, "its gradients are finite, and the update was made")
        if time.monotonic() >= self._next_check_at:
            self.check_weights()

    def check_weights(self) -> None:
        """Raise if a weight, a buffer or an optimizer moment is NaN or infinite that was finite at the start.

        Raises:
            NonFiniteError: A tensor is not finite.
        """
        self._next_check_at = time.monotonic() + _CHECK_INTERVAL_S
        tensors = [(name, tensor) for name, tensor in _bad_tensors(self._engine) if name not in self._initially_bad]
        reject_nonfinite(tensors, f"{self._on_nonfinite.where()}, although all applied gradients were finite")

    def _fetch(self) -> None:
        """Fetch and process the flags of the updates since the last call; one transfer for each optimizer."""
        pending, self._pending = self._pending, []
        plans = {id(plan): plan for plan, _ in pending}  # a plan may have several updates, and is fetched once
        flags = {key: iter(plan.fetch()) for key, plan in plans.items()}
        for plan, update in pending:
            if next(flags[id(plan)]):
                name = _name_of(self._engine, plan.optimizer)
                self._refuse(plan, f"a gradient of {name} is not finite", update)
            else:
                plan.num_in_a_row = 0

    def _refuse(self, plan: "_Plan", description: str, update: int) -> None:
        self.check_weights()  # non-finite weights would be the cause
        self._num_refused += 1
        plan.num_in_a_row += 1
        message = f"{description} in update {update} at environment step {self._engine.env_steps}"
        if plan.num_in_a_row >= MAX_IN_A_ROW:
            raise NonFiniteError(f"{message}, in the last of {MAX_IN_A_ROW} consecutive refused updates")
        self._on_nonfinite.handle("updates", message, "the update was not made")


class _Plan:
    """Checks the gradients of one optimizer.

    Attributes:
        optimizer: The optimizer.
        is_deferred: Whether the optimizer's kernel reads the flag.
        assigned_flag: The flag last assigned to the optimizer.
        flags: float32 `[n]`, one for each update until they are fetched; a single one if not deferred.
        num_used: Number of flags in use.
        num_in_a_row: Refused updates since the last finite one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, in_flags: bool) -> None:
        self.optimizer = optimizer
        params = [p for group in optimizer.param_groups for p in group["params"]]
        device = params[0].device
        # GradScaler also checks this attribute to find optimizers whose kernel reads the flag
        is_fused = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self.is_deferred = is_fused and (in_flags or device.type != "cpu")
        self.assigned_flag: torch.Tensor | None = None
        self.num_used = self.num_in_a_row = 0
        self.flags = torch.zeros(_NUM_FLAGS if self.is_deferred else 1, device=device)
        self._only_flag = None if self.is_deferred else self.flags[0]  # indexing a tensor takes 1.5 µs
        self._one = torch.ones((), device=device)
        # GradScaler's kernel requires tensors of one device and dtype
        kinds = {(p.device, p.dtype) for p in params}
        is_dense = all(p.grad is None or p.grad.layout is torch.strided for p in params)
        self._is_uniform = is_dense and kinds == {(device, torch.float32)} and device.type in {"cpu", "cuda"}

    def flag(self, grads: list[torch.Tensor]) -> torch.Tensor:
        """Return a flag, a number on the device that is above 0 if a gradient is not finite."""
        flag = self.flags[self.num_used] if self._only_flag is None else self._only_flag
        if self._is_uniform:
            torch._amp_foreach_non_finite_check_and_unscale_(grads, flag, self._one)
        else:
            norms = [torch.linalg.vector_norm(_values(grad).float(), math.inf) for grad in grads]
            flag += (~torch.stack([norm.to(flag.device) for norm in norms]).isfinite()).any()
        self.num_used += self.is_deferred
        return flag

    def fetch(self) -> list[float]:
        """Return the values of the flags in use, and release them."""
        values: list[float] = self.flags[: self.num_used].tolist()
        if any(values):
            self.flags = torch.zeros_like(self.flags)
        self.num_used = 0
        if getattr(self.optimizer, "found_inf", None) is self.assigned_flag:
            self.optimizer.found_inf = None  # type: ignore[attr-defined]
        return values

    def withhold(self) -> None:
        """Remove the gradients until the step ends: without them an optimizer changes nothing."""
        gradients = [(p, p.grad) for group in self.optimizer.param_groups for p in group["params"]]
        for param, _ in gradients:
            param.grad = None

        def restore(*_: object) -> None:
            for param, grad in gradients:
                param.grad = grad
            handle.remove()

        handle = self.optimizer.register_step_post_hook(restore)


def _values(grad: torch.Tensor) -> torch.Tensor:
    return grad if grad.layout is torch.strided else grad.coalesce().values()


def _owned(engine: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules, optimizers and parameters among the attributes of an engine."""
    for name, value in vars(engine).items():
        is_learned = isinstance(value, torch.Tensor) and value.requires_grad
        if name[0] != "_" and (is_learned or isinstance(value, torch.nn.Module | torch.optim.Optimizer)):
            yield name, value


def _named_tensors(engine: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the floating-point tensors of an engine that checkpoints contain, with their names."""
    names: dict[int, str] = {}
    optimizers: list[tuple[str, torch.optim.Optimizer]] = []
    for owner, value in _owned(engine):
        if isinstance(value, torch.optim.Optimizer):
            optimizers.append((owner, value))
            continue
        named_tensors = {"": value} if isinstance(value, torch.Tensor) else {**value.state_dict(keep_vars=True)}
        for name, tensor in named_tensors.items():
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and id(tensor) not in names:
                names[id(tensor)] = f"{owner}.{name}".rstrip(".")
                yield names[id(tensor)], tensor
    for owner, optimizer in optimizers:
        for param, state in optimizer.state.items():
            for name, tensor in state.items():
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    yield f"{owner}: {name} of {names.get(id(param), 'a weight')}", tensor


def reject_nonfinite(weights: Iterable[tuple[str, torch.Tensor]], location: str) -> None:
    """Raise for the first weight that contains NaN or infinity."""
    for name, weight in weights:
        if not torch.isfinite(weight).all():
            raise NonFiniteError(
                f"{name} is {_first_bad(weight):g} {location}; resume from the last checkpoint, and check for code "
                "that changes weights other than optimizers"
            )


def _first_bad(tensor: torch.Tensor) -> float:
    return float(tensor[~torch.isfinite(tensor)][0].item())


def _bad_tensors(engine: Any) -> Iterable[tuple[str, torch.Tensor]]:
    """Return the non-finite tensors of an engine with their names; the results are fetched from a device together."""
    tensors = list(_named_tensors(engine))
    flags = [torch.isfinite(tensor.detach()).all() for _, tensor in tensors]
    are_finite = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist() if flags else []
    return [named_tensor for named_tensor, good in zip(tensors, are_finite, strict=True) if not good]


def _name_of(engine: Any, optimizer: torch.optim.Optimizer) -> str:
    return next((name for name, value in _owned(engine) if value is optimizer), type(optimizer).__name__)


def _describe(engine: Any, optimizer: torch.optim.Optimizer) -> str:
    """Describe the first gradient of an optimizer that is not finite."""
    names = {id(tensor): name for name, tensor in _named_tensors(engine)}
    for group in optimizer.param_groups:
        for index, param in enumerate(group["params"]):
            if param.grad is not None and not torch.isfinite(values := _values(param.grad)).all():
                name = names.get(id(param), f"weight {index}")
                owner = _name_of(engine, optimizer)
                return f"the gradient of {name} is {_first_bad(values):g} ({owner})"
    return f"a gradient of {_name_of(engine, optimizer)} is not finite"
