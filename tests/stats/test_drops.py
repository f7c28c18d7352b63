import logging

import pytest

from trieye.stats.drops import EXPLANATIONS, MAX_WARNED_NAMES, NON_FINITE_METRIC, Drops, has_diverged


@pytest.mark.parametrize(
    ("non_finite_step", "finite_step", "diverged"), [(5, 4, True), (5, 5, False), (5, None, True), (None, 5, False)]
)
def test_a_metric_has_diverged_if_its_last_values_were_not_finite(non_finite_step, finite_step, diverged):
    steps = {f"{NON_FINITE_METRIC}loss": non_finite_step, "loss": finite_step}
    summary = {name: {"step": step} for name, step in steps.items() if step is not None}
    assert has_diverged(summary, "loss") is diverged


@pytest.mark.parametrize("reason", ["undeclared", "name_too_long", "journal_damage", "gave_up"])
def test_warnings_explain_the_reason_of_a_drop(reason, caplog):
    Drops().add(reason, "loss", 3)
    assert caplog.messages == [f"event 'loss' is not logged ({reason}): {EXPLANATIONS[reason]}"]


def test_a_reason_without_an_explanation_is_logged_verbatim(caplog):
    drops = Drops()
    drops.add("cosmic_ray", "loss", 3)
    assert caplog.messages == ["event 'loss' is not logged (cosmic_ray)"]
    assert drops.by_reason == {"cosmic_ray": 3}


def test_warnings_and_memory_are_bounded_per_reason(caplog):
    drops = Drops()
    for number in range(1000):
        drops.add("undeclared", f"{number}" * 1000)
    drops.add("non_finite", "loss")
    assert len(caplog.messages) == MAX_WARNED_NAMES + 1
    assert max(map(len, caplog.messages)) < 300
    assert drops.by_reason == {"undeclared": 1000, "non_finite": 1}


def test_the_state_includes_the_reported_counts(caplog):
    caplog.set_level(logging.CRITICAL)
    drops = Drops()
    drops.add("a", "x", 2)
    assert drops.has_news
    assert drops.changed() == {"a": 2}
    assert not drops.has_news
    drops.add("b", "x")
    restored = Drops()
    restored.add("c", "is forgotten")
    restored.restore(drops.to_state())
    assert restored.has_news
    assert restored.changed() == {"b": 1}
    assert restored.by_reason == {"a": 2, "b": 1}
