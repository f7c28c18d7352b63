"""ReplayConfig: how many transitions are kept and how they are drawn."""

from typing import Literal

from pydantic import Field

from trieye.config.base import StrictModel


class ReplayConfig(StrictModel):
    """How many transitions are kept and how they are drawn."""

    kind: Literal["uniform"] = Field(default="uniform", description="How rows are drawn.")
    capacity: int = Field(default=100_000, ge=1, le=1 << 40, description="Rows kept; the oldest is overwritten first.")
