"""Schedule: a number that changes during training, such as a learning rate."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from trieye.config.base import Marker, StrictModel


class Schedule(StrictModel):
    """A number as a function of environment steps, or of updates with `mode=train`; a plain number is a constant.

    Example:
        >>> Schedule(start=1.0, end=0.1, steps=1000)(500)
        0.55
    """

    start: float = Field(description="Initial value.")
    end: float | None = Field(default=None, description="Value from step `steps` onwards; null = constant `start`.")
    steps: int | None = Field(
        default=None, ge=1, description="Environment steps from `start` to `end`; updates with mode=train."
    )
    shape: Literal["linear", "exponential", "cosine"] = Field(
        default="linear", description="Curve from `start` to `end`; exponential = by a constant factor per step."
    )

    @model_validator(mode="before")
    @classmethod
    def _has_a_start(cls, data: Any) -> Any:
        """Raise for a partial schedule; an override such as `lr.steps=3` turns a plain number into one."""
        if isinstance(data, dict) and "start" not in data and data.keys() <= cls.model_fields.keys():
            raise ValueError(
                f"schedule {data} is missing 'start'; expected a number or a whole schedule, such as "
                "'{start: 1e-3, end: 1e-4, steps: 50_000}'"
            )
        return data

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.end is None) != (self.steps is None):
            raise ValueError("end and steps belong together: set both, or a plain number")
        if self.shape == "exponential" and (self.end is None or self.start * self.end <= 0):
            raise ValueError("an exponential schedule needs start and end with the same sign, neither of them 0")
        return self

    def __call__(self, step: int) -> float:
        """Return the value after this many steps; an engine passes `self.schedule_step`."""
        if self.end is None or self.steps is None:
            return self.start
        part = min(step / self.steps, 1.0)
        if self.shape == "exponential":
            return float(self.start * (self.end / self.start) ** part)
        if self.shape == "cosine":
            part = (1.0 - math.cos(math.pi * part)) / 2.0
        return self.start + part * (self.end - self.start)

    @model_serializer
    def _as_typed(self) -> Any:
        if self.end is None:
            return self.start
        return {"start": self.start, "end": self.end, "steps": self.steps, "shape": self.shape}


def _of_number(value: Any) -> Any:
    return {"start": value} if isinstance(value, int | float | str) and not isinstance(value, bool) else value


Scheduled = Annotated[
    Schedule, BeforeValidator(_of_number, json_schema_input_type=float | Schedule), Marker(takes_values=True)
]
"""The type of a field with a schedule, which also accepts a plain number."""
