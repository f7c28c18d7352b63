"""SyncRules: publishing of weights and start of fragments as functions of counts."""

import random

import pytest

from trieye.config.explorer import SyncConfig
from trieye.training.exploring.pace import SyncRules


@pytest.mark.parametrize(
    ("style", "interval", "step", "published_step", "is_requested", "expected"),
    [
        ("fixed", 1, 0, 0, False, False),
        ("fixed", 1, 1, 0, False, True),
        ("fixed", 3, 2, 0, False, False),
        ("fixed", 3, 3, 0, False, True),
        ("fixed", 3, 3, 3, False, False),
        ("trainer_driven", 2, 3, 2, True, False),
        ("trainer_driven", 2, 4, 2, False, True),
        ("fully_async", 2, 4, 2, False, True),
        ("fully_async", 2, 5, 4, True, False),
        ("explorer_driven", 1, 5, 2, False, False),
        ("explorer_driven", 9, 5, 2, True, True),
        ("explorer_driven", 9, 5, 5, True, False),
    ],
)
def test_need_sync_table(style, interval, step, published_step, is_requested, expected):
    rules = SyncRules(SyncConfig(style=style, interval=interval))
    assert rules.needs_publish(step, published_step, is_requested=is_requested) is expected


def test_styles_and_transports_accept_the_names_of_trinity():
    styles = {"FIXED": "fixed", "DYNAMIC_BY_TRAINER": "trainer_driven", "DYNAMIC_BY_EXPLORER": "explorer_driven"}
    assert [SyncConfig(style=alias).style for alias in styles] == list(styles.values())
    transports = {"NCCL": "collective", "MEMORY": "object_store", "CHECKPOINT": "checkpoint"}
    assert [SyncConfig(transport=alias).transport for alias in transports] == list(transports.values())


def test_an_explorer_in_step_runs_ahead_by_exactly_the_offset():
    for interval, offset, steps, has_fragments, most in (
        (1, 0, 0, False, 1),
        (1, 0, 0, True, 0),
        (2, 0, 0, False, 2),
        (2, 0, 1, False, 1),
        (2, 1, 0, True, 2),
        (1, 1, 0, False, 2),
        (1, 0, 3, False, 1),  # a resume with a smaller interval
    ):
        rules = SyncRules(SyncConfig(interval=interval, offset=offset))
        steps_left = rules.steps_left(steps, has_fragments=has_fragments)
        allowed = [own for own in range(20) if rules.may_begin(own, own, explorers=2, steps_left=steps_left)]
        assert allowed == list(range(most))


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize("explorers", [1, 3])
def test_every_started_fragment_is_learned_from_before_it_is_too_stale(staleness, interval, explorers):
    """Start as many fragments as allowed, with arbitrary durations; neither side waits forever."""
    rules = SyncRules(SyncConfig(style="fully_async", interval=interval, max_staleness=staleness))
    rng = random.Random(100 * staleness + 10 * interval + explorers)
    version = published_step = 0
    in_flight, waiting, lags = [], [], set()
    for step in range(300):
        while True:
            steps_left = rules.steps_left(step - published_step, has_fragments=False)
            outstanding = len(waiting) + len(in_flight)
            while rules.may_begin(0, outstanding, explorers=explorers, steps_left=steps_left):
                in_flight.append(version)
                outstanding += 1
            remaining = sorted(waiting)[explorers:] + in_flight
            steps_left = rules.steps_left(step - published_step, has_fragments=True)
            may_take = rules.may_take(version, remaining, explorers=explorers, steps_left=steps_left)
            if len(waiting) >= explorers and (may_take or not in_flight):
                break
            assert in_flight  # the learner never starves
            waiting.append(in_flight.pop(rng.randrange(len(in_flight))))
        learned, waiting = sorted(waiting)[:explorers], sorted(waiting)[explorers:]
        lags |= {version - started_version for started_version in learned}
        if rules.needs_publish(step + 1, published_step, is_requested=False):
            assert all(rules.is_fresh(started_version, version + 1) for started_version in [*waiting, *in_flight])
            version, published_step = version + 1, step + 1
    assert max(lags) == staleness


def test_explorer_driven_requests_weights_after_enough_fragments_on_one_version():
    rules = SyncRules(SyncConfig(style="explorer_driven", interval=2))
    assert [rules.wants_weights(number) for number in range(4)] == [False, False, True, True]
    assert not SyncRules(SyncConfig(style="fully_async")).wants_weights(9)
