"""Which points of a run are shown after several attempts, compared with the reference model."""

import pytest

from tests.history.supersession_model import SCENARIOS, curves


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_reference_model_shows_the_curves_of_each_scenario(scenario):
    assert curves(scenario.attempts) == scenario.expected
