import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieye.exceptions import ConfigurationError
from trieye.replay.limiter import RateLimiter


@given(
    st.floats(0.1, 20),
    st.integers(1, 30),
    st.floats(1, 5),
    st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=200),
)
def test_the_ratio_stays_within_the_error_buffer(ratio, min_size, slack, calls):
    error_buffer = slack * max(1.0, ratio) * 4
    limiter = RateLimiter(ratio, min_size_to_sample=min_size, error_buffer=error_buffer)
    inserts = samples = 0
    for is_insert, n in calls:
        if is_insert:
            allowed = limiter.can_insert()
            limiter.inserted(n * allowed)
        else:
            allowed = limiter.can_sample(n)
            assert limiter.sample(n) == allowed
        inserts += n * (allowed and is_insert)
        samples += n * (allowed and not is_insert)
        balance = inserts * ratio - samples
        middle = min_size * ratio
        if not is_insert and allowed:
            assert inserts >= min_size
            assert balance >= middle - error_buffer - 1e-6
        if inserts > min_size:
            assert balance <= middle + error_buffer + 3 * ratio + 1e-6  # batches of up to 4 rows


def test_a_single_thread_that_obeys_the_limiter_reaches_the_ratio():
    limiter = RateLimiter(4.0, min_size_to_sample=100)
    inserts = samples = 0
    while inserts < 2000:
        if limiter.can_insert():
            limiter.inserted(1)
            inserts += 1
        else:
            assert limiter.sample()
            samples += 1
    assert samples == pytest.approx((inserts - 100) * 4, abs=50)


def test_sampling_starts_at_min_size_and_earlier_inserts_need_no_samples():
    limiter = RateLimiter(8.0, min_size_to_sample=50, error_buffer=16)
    for _ in range(50):
        assert not limiter.can_sample()
        assert limiter.can_insert()
        limiter.inserted(1)
    assert limiter.can_sample(16)
    assert not limiter.can_sample(17)
    limiter.inserted(1)
    assert limiter.can_insert()
    limiter.inserted(1)
    assert not limiter.can_insert()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RateLimiter(0), "samples_per_insert is 0"),
        (lambda: RateLimiter(1, min_size_to_sample=0), "min_size_to_sample is 0"),
        (lambda: RateLimiter(4, error_buffer=3), "error_buffer is 3; below 4 for 4 samples per insert"),
        (
            lambda: RateLimiter(4, error_buffer=10).sample(32),
            r"sample\(32\) can never succeed: .* error_buffer of at least 18, got 10",
        ),
    ],
)
def test_impossible_settings_and_requests_are_rejected(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()
