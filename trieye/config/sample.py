"""SampleConfig: where the rows of a batch come from."""

from typing import Literal

from pydantic import Field

from trieye.config.base import StrictModel
from trieye.config.names import ClassPath


class SampleConfig(StrictModel):
    """Where the rows of a batch come from: the replay buffer, or `data` that others collected."""

    kind: Literal["default", "mix", "warmup"] | ClassPath = Field(
        default="default",
        description="default = the replay buffer; mix = a part of each batch from `data`; warmup = the first batches "
        "are from `data`; or a class of your own, as `my_agent.sampling:MyStrategy`.",
    )
    data_ratio: float = Field(default=0.25, gt=0, lt=1, description="Part of each batch from `data`, for kind=mix.")
    table_every_steps: int = Field(
        default=0,
        ge=0,
        description="Steps between two tables of rows of the newest batch, `sample/rows`, as `loop.axis` counts; 0 = "
        "none.",
    )
    warmup_updates: int = Field(default=1000, ge=1, description="Updates on `data` alone, for kind=warmup.")
