"""trieye 0.1.5: actor calls with one event, and with 100 events. Arguments: the number of events for each form."""

import sys
import time
from typing import Any

import ray
from rounds import answer_rounds

from trieye import RawMetricEvent


def measure(actor: Any) -> dict[str, float]:
    """Return the time for which a call blocks, and events/s until all are processed, with single and batched calls."""
    num_events = int(sys.argv[1])
    ray.get(actor.log_event.remote(RawMetricEvent(name="loss", value=0.5, global_step=0)))
    start = time.perf_counter()
    for step in range(1, num_events + 1):
        actor.log_event.remote(RawMetricEvent(name="loss", value=0.5, global_step=step))
    submitted = time.perf_counter()
    ray.get(actor.force_process_and_log.remote(num_events))
    processed = time.perf_counter()
    num_batched = int(sys.argv[2])
    for first in range(num_events + 1, num_events + num_batched + 1, 100):
        steps = range(first, first + 100)
        events = [RawMetricEvent(name="loss", value=0.5, global_step=step) for step in steps]
        actor.log_batch_events.remote(events)
    ray.get(actor.force_process_and_log.remote(num_events + num_batched))
    batched = time.perf_counter()
    return {
        "caller_us": (submitted - start) / num_events * 1e6,
        "events_per_s": num_events / (processed - start),
        "batched_per_s": num_batched / (batched - processed),
    }


if __name__ == "__main__":
    answer_rounds(measure)
