"""A hub in memory, for senders and flushers."""

import threading
from collections import Counter

from trieye.exceptions import SequenceGapError
from trieye.hub.ledger import Ledger
from trieye.hub.logic import HubLogic


class Hub:
    """Accepts each numbered batch and each keyed call once; it can be unreachable temporarily or permanently.

    Args:
        *answers: Errors that the first calls raise, and None for calls that succeed. A `TimeoutError` means that the
            content was accepted, and the acknowledgement lost.
        key: Equal keys name the same hub.
    """

    run_name, works_at_exit = "run", True

    def __init__(self, *answers, key="hub"):
        self.answers, self.key = list(answers), key
        self.calls, self.batches, self.last_seq, self.keys = [], [], {}, set()
        self.dropped, self.media = Counter(), []
        self.is_reachable, self.accepted, self.rejected = threading.Event(), threading.Event(), threading.Event()
        self.closed_error = None
        self.is_reachable.set()

    def send(self, request, *content, **number):
        if request is Ledger.log_columns:
            self.calls.append((content[0], number["seq"]))
        error = self._error()
        if error is None or isinstance(error, TimeoutError):
            self._accept(request, content[0], **number)
        if error is not None:
            self.rejected.set()
            raise ConnectionError("no answer") if isinstance(error, TimeoutError) else error

    def _error(self):
        if self.closed_error is None and not self.is_reachable.is_set():
            return ConnectionError("gone for now")
        return self.closed_error or (self.answers.pop(0) if self.answers else None)

    def _accept(self, request, content, *, client=None, seq=0, key=None):
        expected = self.last_seq.get(client, 0) + 1
        if seq > expected:
            raise SequenceGapError(f"batch {expected} is missing", expected)
        if request is Ledger.log_columns and seq == expected:
            self.last_seq[client] = seq
            self.batches.append(content)
            self.accepted.set()
        elif key is not None and key not in self.keys:
            self.keys.add(key)
            if request is HubLogic.log_operation:
                self.media.append(content)
            else:
                self.dropped.update({reason: count for reason, _, count in content})

    def values(self):
        return [value for batch in self.batches for value in batch.values.tolist()]
