import pytest

from trieye.exceptions import ProcessingError
from trieye.sinks.health import LONGEST_DELAY_S, Retry


class Failing:
    def __init__(self, num, error=None):
        self.left, self.error = num, error or OSError("away")

    def __call__(self):
        self.left -= 1
        if self.left >= 0:
            raise self.error


def never(failures, delay_s):
    return False


@pytest.fixture
def retry():
    return Retry("s", 1.0)


def test_pauses_grow_up_to_a_limit_and_differ_a_little(retry):
    pauses = []

    def again(failures, delay_s):
        pauses.append(delay_s)
        return True

    assert retry.until_it_works(Failing(12), 1, again)
    assert retry.error is None
    for number, delay_s in enumerate(pauses):
        expected = min(LONGEST_DELAY_S, 2.0**number)
        assert 0.75 * expected <= delay_s <= 1.25 * expected
    assert len({delay_s / 2.0 ** min(number, 5) for number, delay_s in enumerate(pauses)}) == 12


def test_giving_up_leaves_the_error(retry):
    assert not retry.until_it_works(Failing(12), 1, lambda failures, _: failures < 3)
    assert retry.error == "OSError: away"


def test_a_refusal_settles_a_call_that_has_something_to_refuse(retry):
    refusal = ProcessingError("no")
    assert retry.until_it_works(Failing(1, refusal), 5, never)
    assert (retry.refused, retry.error) == (5, None)
    assert not retry.until_it_works(Failing(1, refusal), 0, never)
    assert (retry.refused, retry.error) == (5, "ProcessingError: no")
