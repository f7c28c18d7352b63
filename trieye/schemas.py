"""Events and saved states that cross the border between user code and the hub."""

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]


class MetricSummary(TypedDict):
    """What is known of a metric without reading its points: last value, extremes, and the step of the last one."""

    last: float
    min: float
    max: float
    step: int


class _Schema(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())


class RawMetricEvent(_Schema):
    """One raw value from user code.

    NumPy scalars, zero-dimensional tensors, booleans and numeric strings are accepted as values.
    """

    name: str
    value: float | int
    global_step: int
    timestamp: float | None = Field(default=None, description="Unix time in seconds; the time of arrival if None.")
    context: dict[str, Any] = Field(default_factory=dict)

    def is_valid(self) -> bool:
        """Tell whether the value is finite.

        Raises:
            TypeError: The value is an integer beyond the range of a float.
        """
        try:
            return math.isfinite(self.value)
        except OverflowError as error:
            raise TypeError(f"event {self.name!r}: value is beyond the range of a float") from error


class CheckpointData(_Schema):
    """What a checkpoint of the drop-in API holds; every `dict` holds plain data, arrays and tensors."""

    run_name: str
    global_step: int = Field(ge=0)
    episodes_played: int = Field(ge=0)
    total_simulations_run: int = Field(ge=0)
    model_state_dict: dict[str, Any] = Field(default_factory=dict)
    optimizer_state_dict: dict[str, Any] = Field(default_factory=dict)
    actor_state: dict[str, Any] = Field(default_factory=dict)
    user_data: dict[str, Any] = Field(default_factory=dict)
    model_config_dict: dict[str, Any] = Field(default_factory=dict)
    env_config_dict: dict[str, Any] = Field(default_factory=dict)


class BufferData(_Schema):
    """The content of a replay buffer of the drop-in API."""

    buffer_list: list[Any]
    state: Any = Field(
        default=None, description="What `load_state_dict` of a buffer gets that was saved as an object, not as a list."
    )


class LoadedTrainingState(_Schema):
    """What `load_initial_state` found; both parts are None on a fresh run."""

    checkpoint_data: CheckpointData | None = None
    buffer_data: BufferData | None = None
    buffer_step: int | None = Field(default=None, description="Step at which the buffer was saved.")
    resumed_from: str | None = Field(default=None, description="Name of the run the state comes from.")


class LogContext(_Schema):
    """Clock and latest values of one processing pass."""

    latest_step: int
    last_log_time: float
    current_time: float
    event_timestamps: dict[str, list[tuple[float, int]]] = Field(default_factory=dict)
    latest_values: dict[str, tuple[int, float]] = Field(default_factory=dict)
