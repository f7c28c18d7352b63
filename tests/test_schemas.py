import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import trieye


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1), (2.5, 2.5), (True, 1), ("3.5", 3.5), (np.float32(2), 2.0), (np.int64(3), 3), (torch.tensor(2.5), 2.5)],
)
def test_an_event_accepts_every_kind_of_number(value, expected):
    event = trieye.RawMetricEvent(name="m", value=value, global_step=-3)
    assert event.value == expected
    assert event.is_valid()


def test_a_missing_value_is_rejected_and_a_non_finite_value_is_invalid():
    with pytest.raises(ValidationError):
        trieye.RawMetricEvent(name="m", value=None, global_step=1)
    for value in (math.nan, math.inf):
        assert not trieye.RawMetricEvent(name="m", value=value, global_step=1).is_valid()
    with pytest.raises(TypeError, match="range"):
        trieye.RawMetricEvent(name="m", value=10**400, global_step=1).is_valid()


def test_negative_checkpoint_counters_are_rejected():
    with pytest.raises(ValidationError, match="episodes_played"):
        trieye.CheckpointData(run_name="r", global_step=0, episodes_played=-1, total_simulations_run=0)
