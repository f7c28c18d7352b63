"""Fixtures of small trainings."""

from functools import partial

import pytest

from tests.training.algorithms import small_config


@pytest.fixture
def train_config(tmp_path):
    """Return a function that creates a config below a temporary root; see `small_config`."""
    return partial(small_config, tmp_path)
