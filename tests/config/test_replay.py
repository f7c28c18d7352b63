import pytest
from pydantic import ValidationError

from trieye.config import ReplayConfig
from trieye.replay.fragments import FragmentRules


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prioritized": {"alpha": 1.0}}, "prioritized.* is only for kind=prioritized, but kind is uniform"),
        ({"kind": "prioritized", "sequence": {"length": 3}}, "sequence.* is only for kind=sequence"),
        ({"storage": "mmap"}, "storage_dir is required by storage=mmap"),
        ({"storage_dir": "rows"}, "storage_dir is required by storage=mmap and only for it"),
        ({"kind": "sequence", "max_reuse": 2}, "not to kind=sequence"),
        ({"kind": "unifrom"}, "Input should be 'uniform', 'prioritized'"),
        ({"gamma": 2}, "less than or equal to 1"),
    ],
)
def test_settings_without_effect_or_meaning_are_rejected(settings, message):
    with pytest.raises(ValidationError) as caught:
        ReplayConfig(**settings)
    assert message in str(caught.value)


def test_defaults_of_other_kinds_can_be_stated():
    assert ReplayConfig(prioritized={"alpha": 0.6}).kind == "uniform"


def test_fragment_settings_become_the_rules_of_the_buffer():
    config = ReplayConfig(
        kind="fragment", capacity=7, max_reuse=2, fragment={"fragments_per_chunk": 3, "max_bytes": 99}
    )
    expected = FragmentRules(max_chunks=7, max_reuse=2, fragments_per_chunk=3, max_bytes=99)
    assert FragmentRules(**config.fragment_rules) == expected
