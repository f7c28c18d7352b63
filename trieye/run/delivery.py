"""Delivery: hands things over to a hub, in order and each of them until it is accepted."""

import threading
import time
import uuid
from collections.abc import Callable

from trieye.exceptions import JournalError, RunClosedError, SequenceGapError
from trieye.hub.hub import Channel
from trieye.process.progress import say
from trieye.process.waiting import Backoff
from trieye.stats.batch import EventBatch
from trieye.stats.operations import Operation

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0


class Delivery:
    """One sender: it numbers what it sends, and repeats a call with the same content and number until it is answered.

    All methods but `give_up` belong to one thread, which no signal interrupts; so nothing is lost or sent twice. What a
    hub has acknowledged is in its journal: one call is under way at a time, and nothing is kept after its answer. Rows
    of a replay buffer need more (`trieye.replay.remote.delivery`): an actor may lose them until its next snapshot.

    Args:
        channel: The way to the hub.

    Attributes:
        client: Name of the sender, different from every other one's.
        trouble: Why the hub does not take what is being sent; None while it does.
    """

    def __init__(self, channel: Channel) -> None:
        self.client = uuid.uuid4().hex
        self.trouble: Exception | None = None
        self._channel = channel
        self._seq = 0
        self._num_keys = 0
        self._given_up = threading.Event()

    def log(self, batch: EventBatch) -> None:
        """Hand over events, as the batch that follows the one before.

        Raises:
            TrieyeError: The hub will never take it, or nobody waits for that any more.
        """
        self._seq += 1
        while True:
            try:
                self._until_accepted(lambda: self._channel.log(batch, client=self.client, seq=self._seq))
            except SequenceGapError as gap:
                self._renumber(gap)
            else:
                return

    def count_dropped(self, reason: str, count: int) -> None:
        """Report events that are not sent; raises as `log` does."""
        key = self._next_key()
        self._until_accepted(lambda: self._channel.count_dropped(reason, count, key=key))

    def log_operation(self, operation: Operation) -> None:
        """Hand over a histogram, a picture or a text; raises as `log` does."""
        key = self._next_key()
        self._until_accepted(lambda: self._channel.log_operation(operation, key=key))

    def give_up(self) -> None:
        """Begin no further call."""
        self._given_up.set()

    def _next_key(self) -> str:
        self._num_keys += 1
        return f"{self.client}:{self._num_keys}"

    def _renumber(self, gap: SequenceGapError) -> None:
        # one batch is under way at a time, so none was skipped: a journal that was damaged has forgotten some
        if gap.expected == self._seq:
            raise gap
        say(
            f"run {self._channel.run_name!r}: the hub has forgotten values that it had accepted, because its journal "
            f"was damaged (batches {gap.expected} to {self._seq - 1} of this process); those that follow are logged"
        )
        self._seq = gap.expected

    def _until_accepted(self, call: Callable[[], None]) -> None:
        began, backoff = time.monotonic(), Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while self._given_up.is_set() or not self._try(call):
            if self._given_up.wait(backoff.failed()):
                raise RunClosedError(f"run {self._channel.run_name!r} is closed")
        if self.trouble is not None:
            self.trouble = None
            say(f"run {self._channel.run_name!r} takes values again, after {time.monotonic() - began:.1f} s")

    def _try(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except SequenceGapError:
            raise
        except (ConnectionError, JournalError) as error:
            if self.trouble is None:
                say(
                    f"run {self._channel.run_name!r} takes no values now ({error}); "
                    "they are kept, and sent again until it does"
                )
            self.trouble = error
            return False
        return True
