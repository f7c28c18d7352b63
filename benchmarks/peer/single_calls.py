"""trieye 0.1.5: a call of its actor for each event and for each 100; arguments 1 and 2: how many events of both."""

import sys
import time
from typing import Any

import ray
from rounds import answer_rounds

from trieye import RawMetricEvent


def measure(actor: Any) -> dict[str, float]:
    """Return what a call takes of the caller, and the events per second until all are processed, single and batched."""
    num_events = int(sys.argv[1])
    ray.get(actor.log_event.remote(RawMetricEvent(name="loss", value=0.5, global_step=0)))
    began = time.perf_counter()
    for step in range(1, num_events + 1):
        actor.log_event.remote(RawMetricEvent(name="loss", value=0.5, global_step=step))
    called = time.perf_counter()
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
        "caller_us": (called - began) / num_events * 1e6,
        "events_per_s": num_events / (processed - began),
        "batched_per_s": num_batched / (batched - processed),
    }


if __name__ == "__main__":
    answer_rounds(measure)
