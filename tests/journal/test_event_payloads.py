"""Events are stored with the parts of their contexts that metrics read, as plain values."""

import numpy as np

from trieye.journal.event_payloads import admit, decode_events, encode_events
from trieye.stats.batch import EventBatch, EventRow


class Odd:
    """An object of a user whose conversion fails."""

    def __float__(self):
        raise RuntimeError("it has no value")


def test_contexts_are_stored_as_plain_values_of_the_keys_that_metrics_read():
    values = [1.5, np.float32(0.5), 3, 2**70, True, np.True_, "long", "x" * 1001, None, [1], Odd()]
    rows = [EventRow("loss", 1.0, step, 0.0, {"read": value, "unread": step}) for step, value in enumerate(values)]
    admitted, drops = admit(EventBatch.from_rows(rows), frozenset({"read"}))
    stored, _ = decode_events(encode_events(admitted, drops))
    contexts = [context["read"] for _, context in sorted(stored.contexts.items())]
    assert contexts == [1.5, 0.5, 3, 2.0**70, 1, 1, "long", None, None, None, None]
    assert all(context.keys() == {"read"} for context in stored.contexts.values())
    assert drops == []
