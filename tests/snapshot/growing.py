"""A minimal log with incremental state: each save writes only the new rows."""

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

    def state_parts(self, stored_names):
        self._parts = [part for part in self._parts if part[2] in stored_names and part[1] > self.first]
        retained = tuple(name for *_, name in self._parts)
        begin, end = (self._parts[-1][1] if self._parts else self.first), len(self.rows)
        if begin == end:
            return StateParts({"end": end, "first": self.first}, retained)
        name = f"seg-{begin}-{end}-{secrets.token_hex(4)}"
        self._parts.append((begin, end, name))
        new = {name: {"row": self.rows[begin:end].copy(), "half": self.rows[begin:end] / 2}}
        return StateParts({"end": end, "first": self.first}, retained, new)

    def load_state_dict(self, saved):
        self.first = saved.state["first"]
        self.rows = np.zeros(saved.state["end"], np.int64)
        for name in saved.names:
            begin, end = map(int, name.split("-")[1:3])
            self.rows[begin:end] = saved.map(name)["row"]
            self._parts.append((begin, end, name))
