from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trieye.journal.ranges import mask, merged, of_indices, overlapping, uncovered

RANGE = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: tuple(sorted(pair)))


def indices(ranges):
    return [index for first, end in ranges for index in range(first, end)]


@given(st.lists(RANGE))
def test_merged_ranges_contain_each_index_once(ranges):
    result = merged(ranges)
    assert indices(result) == sorted(set(indices(ranges)))
    assert all(end < after for (_, end), (after, _) in pairwise(result))


@given(RANGE, st.lists(RANGE).map(merged))
def test_overlapping_and_uncovered_ranges_match_the_mask(span, ranges):
    covered, rest = overlapping(*span, ranges), uncovered(*span, ranges)
    assert indices(covered) == (np.flatnonzero(mask(*span, ranges)) + span[0]).tolist()
    assert indices(rest) == (np.flatnonzero(~mask(*span, ranges)) + span[0]).tolist()


@given(st.lists(st.integers(0, 40)))
def test_of_indices_returns_the_merged_ranges_of_the_indices(numbers):
    ranges = of_indices(np.array(numbers, np.int64))
    assert indices(ranges) == sorted(set(numbers))
    assert ranges == merged(ranges)
