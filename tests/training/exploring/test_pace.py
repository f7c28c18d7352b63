"""SyncRules: publishing of weights and start of fragments as functions of counts."""

import random

import pytest

from trieye.config.explorer import SyncConfig
from trieye.training.exploring.pace import InFlightCounts, SyncRules


def counts(**given):
    zeros = dict.fromkeys(("steps_left", "outstanding", "own_outstanding", "own_on_version"), 0)
    return InFlightCounts(**{"explorers": 2, **zeros, **given})


@pytest.mark.parametrize(
    ("style", "interval", "step", "published_step", "is_asked", "expected"),
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
def test_need_sync_table(style, interval, step, published_step, is_asked, expected):
    pace = SyncRules(SyncConfig(style=style, interval=interval))
    assert pace.needs_publish(step, published_step, is_requested=is_asked) is expected


@pytest.mark.parametrize(
    ("alias", "style"),
    [("FIXED", "fixed"), ("DYNAMIC_BY_TRAINER", "trainer_driven"), ("DYNAMIC_BY_EXPLORER", "explorer_driven")],
)
def test_styles_have_the_names_of_trinity_too(alias, style):
    assert SyncConfig(style=alias).style == style
    assert SyncConfig(transport="NCCL").transport == "collective"
    assert SyncConfig(transport="MEMORY").transport == "object_store"
    assert SyncConfig(transport="CHECKPOINT").transport == "checkpoint"


def test_in_step_an_explorer_is_ahead_by_the_offset_and_no_more():
    for interval, offset, steps, has_taken, most in (
        (1, 0, 0, False, 1),
        (1, 0, 0, True, 0),
        (2, 0, 0, False, 2),
        (2, 0, 1, False, 1),
        (2, 1, 0, True, 2),
        (1, 1, 0, False, 2),
        (1, 0, 3, False, 1),  # a resume with a smaller interval
    ):
        pace = SyncRules(SyncConfig(interval=interval, offset=offset))
        left = pace.steps_left(steps, has_fragments=has_taken)
        allowed = [own for own in range(20) if pace.may_begin(counts(steps_left=left, own_outstanding=own))]
        assert allowed == list(range(most))


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize("explorers", [1, 3])
def test_whatever_is_begun_is_learned_from_before_it_is_too_stale(staleness, interval, explorers):
    """Start as many fragments as allowed, with arbitrary durations; neither side waits forever."""
    pace = SyncRules(SyncConfig(style="fully_async", interval=interval, max_staleness=staleness))
    rng = random.Random(100 * staleness + 10 * interval + explorers)
    version = published_step = 0
    under_way, waiting, seen = [], [], set()
    for step in range(300):
        while True:
            steps_left = pace.steps_left(step - published_step, has_fragments=False)
            outstanding = len(waiting) + len(under_way)
            while pace.may_begin(counts(explorers=explorers, steps_left=steps_left, outstanding=outstanding)):
                under_way.append(version)
                outstanding += 1
            left = sorted(waiting)[explorers:] + under_way
            steps_left = pace.steps_left(step - published_step, has_fragments=True)
            may_take = pace.may_take(version, left, explorers=explorers, steps_left=steps_left)
            if len(waiting) >= explorers and (may_take or not under_way):
                break
            assert under_way  # the learner never starves
            waiting.append(under_way.pop(rng.randrange(len(under_way))))
        taken, waiting = sorted(waiting)[:explorers], sorted(waiting)[explorers:]
        seen |= {version - begun for begun in taken}
        if pace.needs_publish(step + 1, published_step, is_requested=False):
            assert all(pace.is_fresh(begun, version + 1) for begun in [*waiting, *under_way])
            version, published_step = version + 1, step + 1
    assert max(seen) == staleness


def test_an_explorer_asks_after_some_fragments_with_the_same_weights():
    pace = SyncRules(SyncConfig(style="explorer_driven", interval=2))
    assert [pace.wants_weights(counts(own_on_version=number)) for number in range(4)] == [False, False, True, True]
    assert not SyncRules(SyncConfig(style="fully_async")).wants_weights(counts(own_on_version=9))
