"""SampleConfig: whether batches come from the replay buffer, from recorded data, or from both."""

from typing import Literal

from pydantic import Field

from trieye.config.base import StrictModel
from trieye.config.names import ClassPath


class SampleConfig(StrictModel):
    """Source of the rows in a batch: the replay buffer, recorded rows (`data`), or both."""

    kind: Literal["default", "mix", "warmup"] | ClassPath = Field(
        default="default",
        description="Source of the rows in a batch: default = the replay buffer; mix = a fraction from `data`; "
        "warmup = `data` alone for the first updates; or your own class, such as `my_agent.sampling:MyStrategy`.",
    )
    data_ratio: float = Field(
        default=0.25, gt=0, lt=1, description="Fraction of a batch from `data`, for kind=mix; at least one row."
    )
    table_every_steps: int = Field(
        default=0,
        ge=0,
        description="Steps, counted in `loop.axis`, between two logged tables of rows of the latest batch, "
        "`sample/rows`; 0 = no tables.",
    )
    warmup_updates: int = Field(default=1000, ge=1, description="First updates, on `data` alone, for kind=warmup.")
