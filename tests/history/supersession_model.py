"""Reference model of supersession: which of the points that the attempts of a run logged are shown.

An attempt is one start of the program, or one opening of the run where a process opens it several times.

1. A restore from a trieye checkpoint has an exact position in the history: all later points are superseded, so that a
   resumed run shows the points of an uninterrupted one. Values of the checkpoint's step are kept, as a program that
   saves before it logs does not repeat the step; if it does, its new points supersede them by rule 3, and no others.
   They are superseded if the run has left the branch of the checkpoint since.
2. A restore at a known step s supersedes the points and media at s or later. A metric that never reached s (validation
   over epochs, a restore in iterations) has nothing to compare, and a metric evidently on a finer axis (loss over
   iterations, a restore in epochs) must not lose almost everything: rule 3 decides about both. Finer means that it
   stood beyond 2x when the last metric to reach s did so at its step x, within one attempt. s <= 0 supersedes all.
3. Otherwise each metric is on its own. A point supersedes older points (from earlier attempts) of its metric at the
   same step. It supersedes a range, all older points from a step on, once a second, larger step shows that the curve
   continues. Calls without a step, texts, images, histograms and hyperparameters supersede nothing.

   The range begins at the first step of the attempt, unless the jump to the second step leaves out older points, as
   from a constant logged at step 0 to a resume at 500. Then the third step decides: if it is about as far away (more
   than half the jump), the curve is logged less often now, and the range begins at the first step; otherwise the first
   step was isolated, and the second one replaces it. A step below the beginning of the range begins a curve there.

   A training that restarts from scratch thus supersedes its older curve at its second step, not step by step: the new
   curve with the tail of the older one would look like a single training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple


class Call(NamedTuple):
    """One call of a program; `step` is None for a call without one, which is shown at step 0."""

    metric: str
    step: int | None
    value: float
    kind: Literal["scalar", "medium"] = "scalar"


@dataclass(frozen=True)
class Attempt:
    """One start of a program: an optional restore, then calls."""

    calls: Sequence[Call]
    restored: int | None = None  # the step where logging resumes
    checkpoint: tuple[int, int] | None = None
    """An attempt, and the number of its calls before the checkpoint, whose step is one more than this number."""


class Shown(NamedTuple):
    """A shown point, and the attempt that logged it."""

    call: Call
    attempt: int

    @property
    def step(self) -> int:
        return self.call.step or 0


def shown(attempts: Sequence[Attempt]) -> list[Shown]:
    """Return the points that are shown after some attempts, in logging order."""
    points: list[Shown] = []
    for number, attempt in enumerate(attempts):
        if attempt.checkpoint is not None:
            of, num_calls = attempt.checkpoint
            saved = attempts[of]
            before = shown([*attempts[:of], Attempt(saved.calls[:num_calls], saved.restored, saved.checkpoint)])
            is_on_branch = points[: len(before)] == before
            later = points[len(before) :] if is_on_branch else []
            of_step = [point for point in later if point.step == num_calls + 1 and point.call.kind == "scalar"]
            kept = _with_calls(of_step, attempt, number)
            points = [*before, *kept]
            continue
        if attempt.restored is not None:
            points = _without_later(points, attempt.restored)
        points = _with_calls(points, attempt, number)
    return points


def _with_calls(points: list[Shown], attempt: Attempt, number: int) -> list[Shown]:
    curves: dict[str, _Curve] = {}
    for call in attempt.calls:
        if call.kind == "scalar" and call.step is not None:
            curve = curves.setdefault(call.metric, _Curve())
            points = curve.without_superseded(points, call.metric, call.step, number)
        points = [*points, Shown(call, number)]
    return points


def _without_later(points: list[Shown], restored: int) -> list[Shown]:
    if restored <= 0:
        return []
    reached: dict[str, int] = {}
    for index, point in enumerate(points):
        if point.step >= restored:
            reached.setdefault(point.call.metric, index)
    last = max(reached.values(), default=0)
    finer = {
        point.call.metric
        for point in points[:last]
        if point.attempt == points[last].attempt and point.step > 2 * points[last].step
    }
    return [point for point in points if point.step < restored or point.call.metric in finer]


@dataclass
class _Curve:
    """The calls of one attempt for a metric: candidates for the start of its curve, and the newest step."""

    start: int | None = None
    last: int = 0
    range_start: int | None = None

    def without_superseded(self, points: list[Shown], metric: str, step: int, number: int) -> list[Shown]:
        older = {p.step for p in points if p.call.metric == metric and p.attempt < number and p.call.kind == "scalar"}
        if self.range_start is None or step < self.range_start:
            self._note(step, older)

        def is_superseded(point: Shown) -> bool:
            is_older = point.call.metric == metric and point.attempt < number and point.call.kind == "scalar"
            is_in_range = self.range_start is not None and point.step >= self.range_start
            return is_older and (point.step == step or is_in_range)

        return [point for point in points if not is_superseded(point)]

    def _note(self, step: int, older: set[int]) -> None:
        if self.start is None or step < self.last or self.range_start is not None:
            self.start, self.last, self.range_start = step, step, None
        elif step > self.last:
            before, self.last = self.last, step
            if before > self.start and step - before <= (before - self.start) / 2:
                self.start = before
            elif before > self.start:
                self.range_start = self.start
                return
            if not any(self.start < other < step for other in older):
                self.range_start = self.start


def curves(attempts: Sequence[Attempt]) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of the shown points of each metric, in ascending order."""
    shown_curves: dict[str, list[tuple[int, float]]] = {}
    for point in shown(attempts):
        if point.call.kind == "scalar":
            shown_curves.setdefault(point.call.metric, []).append((point.step, point.call.value))
    return {metric: sorted(curve) for metric, curve in shown_curves.items()}


def scalars(metric: str, steps: Sequence[int | None], value: float) -> list[Call]:
    """Return calls that log a value at some steps."""
    return [Call(metric, step, value) for step in steps]


def epochs(numbers: Sequence[int], value: float) -> list[Call]:
    """Return the calls of a classic script: the learning rate, the losses, then the validation of each epoch."""
    calls: list[Call] = []
    for epoch in numbers:
        calls += scalars("lr", [epoch], value)
        calls += scalars("loss", range(epoch * 10, (epoch + 1) * 10), value)
        calls += scalars("val", [epoch], value)
    return calls


@dataclass(frozen=True)
class Scenario:
    """Attempts, each logging its own number as value, and the number expected at each step."""

    name: str
    attempts: Sequence[Attempt]
    expected: dict[str, list[tuple[int, float]]] = field(default_factory=dict)


def parts(*spans: tuple[int, int, float]) -> list[tuple[int, float]]:
    """Return a curve of (first step, end, value) parts."""
    return [(step, value) for first, end, value in spans for step in range(first, end)]


def _classic(resumed: int, end: int) -> dict[str, list[tuple[int, float]]]:
    """Return the curves of `epochs` in which the second attempt logged the epochs from `resumed` on."""
    by_epoch = parts((0, resumed, 1.0), (resumed, end, 2.0))
    return {"loss": parts((0, 10 * resumed, 1.0), (10 * resumed, 10 * end, 2.0)), "lr": by_epoch, "val": by_epoch}


_TRAINING = Attempt(scalars("loss", range(200), 1.0))
SCENARIOS = [
    Scenario(
        "a: an evaluation script without steps erases nothing",
        [
            _TRAINING,
            Attempt([Call("loss", None, 2.0), Call("note", None, 2.0, "medium"), Call("hparam/score", None, 2.0)]),
        ],
        {"loss": [(0, 1.0), (0, 2.0), *parts((1, 200, 1.0))], "hparam/score": [(0, 2.0)]},
    ),
    Scenario(
        "a: an evaluation script that logs at step 0 replaces step 0",
        [_TRAINING, Attempt([Call("loss", 0, 2.0)])],
        {"loss": parts((0, 1, 2.0), (1, 200, 1.0))},
    ),
    Scenario(
        "b: a test after a training keeps the training",
        [
            Attempt([*scalars("loss", range(192), 1.0), *scalars("epoch", range(0, 192, 64), 1.0)]),
            Attempt([Call("test_loss", 192, 2.0), Call("epoch", 0, 2.0)]),
        ],
        {"loss": parts((0, 192, 1.0)), "epoch": [(0, 2.0), (64, 1.0), (128, 1.0)], "test_loss": [(192, 2.0)]},
    ),
    Scenario(
        "c: a classic script resumed at epoch 6 keeps epochs 0 to 5 on each axis",
        [Attempt(epochs(range(8), 1.0)), Attempt(epochs(range(6, 10), 2.0))],
        _classic(6, 10),
    ),
    Scenario(
        "c: a classic script restored at iteration 60 keeps epochs 0 to 5 on each axis",
        [Attempt(epochs(range(8), 1.0)), Attempt(epochs(range(6, 8), 2.0), restored=60)],
        _classic(6, 8),
    ),
    Scenario(
        "c: a classic script restored at epoch 6 does not lose losses from iteration 6 on",
        [Attempt(epochs(range(8), 1.0)), Attempt(epochs(range(6, 8), 2.0), restored=6)],
        _classic(6, 8),
    ),
    Scenario(
        "d: a constant that each start logs at step 0 replaces itself",
        [
            Attempt([Call("params", 0, 1.0), *scalars("loss", range(80), 1.0)]),
            Attempt([Call("params", 0, 2.0), *scalars("loss", [0, *range(50, 60)], 2.0)]),
        ],
        {"params": [(0, 2.0)], "loss": parts((0, 1, 2.0), (1, 50, 1.0), (50, 60, 2.0))},
    ),
    Scenario(
        "e: a program resumed within the first twentieth keeps earlier points",
        [Attempt(scalars("loss", range(200), 1.0)), Attempt(scalars("loss", range(4, 14), 2.0))],
        {"loss": parts((0, 4, 1.0), (4, 14, 2.0))},
    ),
    Scenario(
        "e: a training restarted from scratch shows only its own curve, and metrics it no longer logs",
        [Attempt([*scalars("loss", range(100), 1.0), Call("old", 7, 1.0)]), Attempt(scalars("loss", range(3), 2.0))],
        {"loss": parts((0, 3, 2.0)), "old": [(7, 1.0)]},
    ),
    Scenario(
        "e: a training restarted from scratch that logs less often shows only its own curve",
        [Attempt(scalars("loss", range(100), 1.0)), Attempt(scalars("loss", [0, 10, 20], 2.0))],
        {"loss": [(0, 2.0), (10, 2.0), (20, 2.0)]},
    ),
    Scenario(
        "f: validation over epochs appears once after a resume",
        [Attempt(scalars("val", range(8), 1.0)), Attempt(scalars("val", range(6, 10), 2.0))],
        {"val": parts((0, 6, 1.0), (6, 10, 2.0))},
    ),
    Scenario(
        "a restore from a checkpoint shows the points of an uninterrupted run",
        [
            Attempt([*scalars("loss", range(10), 1.0), Call("eval", 9, 1.0), *scalars("loss", range(10, 20), 1.0)]),
            Attempt([Call("eval", 9, 2.0), *scalars("loss", range(10, 12), 2.0)], checkpoint=(0, 11)),
        ],
        {"loss": parts((0, 10, 1.0), (10, 12, 2.0)), "eval": [(9, 1.0), (9, 2.0)]},
    ),
    Scenario(
        "values of the step of a checkpoint that were logged after the save are kept, unless the step is repeated",
        [
            Attempt(
                [
                    *scalars("loss", range(2, 9), 1.0),
                    *[Call("eval", 8, 1.0), Call("repeated", 8, 1.0), Call("repeated", 9, 1.0)],
                    *scalars("loss", range(9, 15), 1.0),
                ]
            ),
            Attempt([Call("repeated", 8, 2.0), *scalars("loss", range(9, 12), 2.0)], checkpoint=(0, 7)),
            Attempt([*scalars("loss", range(9, 11), 3.0)], checkpoint=(0, 7)),
        ],
        {"loss": parts((2, 9, 1.0), (9, 11, 3.0)), "eval": [(8, 1.0)], "repeated": [(8, 2.0)]},
    ),
]
