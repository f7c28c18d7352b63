"""A log of rows that is saved by what is new, as small as it gets."""

import secrets

import numpy as np

from trieye.snapshot.nodes import StateParts


class Log:
    def __init__(self, first=0):
        self.rows = np.zeros(0, np.int64)
        self.first = first
        self._parts = []

    def extend(self, count):
        self.rows = np.arange(len(self.rows) + count)

    def forget(self, below):
        self.first = below

    def state_parts(self, known):
        self._parts = [part for part in self._parts if part[2] in known and part[1] > self.first]
        kept = tuple(name for *_, name in self._parts)
        begin, end = (self._parts[-1][1] if self._parts else self.first), len(self.rows)
        if begin == end:
            return StateParts({"end": end, "first": self.first}, kept)
        name = f"seg-{begin}-{end}-{secrets.token_hex(4)}"
        self._parts.append((begin, end, name))
        new = {name: {"row": self.rows[begin:end].copy(), "half": self.rows[begin:end] / 2}}
        return StateParts({"end": end, "first": self.first}, kept, new)

    def load_state_dict(self, held):
        self.first = held.state["first"]
        self.rows = np.zeros(held.state["end"], np.int64)
        for name in held.names:
            begin, end = map(int, name.split("-")[1:3])
            self.rows[begin:end] = held.read(name)["row"]
            self._parts.append((begin, end, name))
