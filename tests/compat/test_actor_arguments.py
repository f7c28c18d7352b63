"""Arguments of calls of the actor: references in containers, and contexts of events above the limit."""

import pickle

import numpy as np
import pytest

import trieye
from trieye.compat.actor_arguments import resolved
from trieye.compat.events import SentEvents


def test_a_class_of_named_tuples_is_a_value_not_a_container():
    state = {"kind": SentEvents, "items": [1.0]}
    assert resolved(state) == state


@pytest.mark.parametrize("blob", ["x" * 1_000_000, b"x" * 1_000_000, np.zeros(1_000_000), {"deep": ["x" * 1_000_000]}])
def test_a_context_above_the_limit_is_dropped_and_its_value_is_sent(blob):
    large = trieye.RawMetricEvent(name="reward", value=1.0, global_step=1, context={"score": 2.0, "frames": blob})
    small = trieye.RawMetricEvent(name="reward", value=3.0, global_step=1, context={"score": 4.0, "text": "x" * 1000})
    sent = SentEvents.of([large, small])
    assert [(name, value, context) for name, value, _, _, context in sent.rows] == [
        ("reward", 1.0, None),
        ("reward", 3.0, small.context),
    ]
    assert sent.drops == [("context_too_large", "reward", 1)]
    assert len(pickle.dumps(sent)) < 5000
