"""A reference fragment buffer that scans lists."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Item:
    number: int
    meta: object
    arrived: float
    acceptance: int = 0  # its rank; an early fragment is accepted later than it arrives


@dataclass
class Group:
    id: int
    items: list
    uses: int = 0

    @property
    def version(self):
        return min(item.meta.model_version for item in self.items)


@dataclass
class Reference:
    rules: object
    size_bytes: int
    session: str = ""
    version: int = -1
    past: set = field(default_factory=set)
    continued: set = field(default_factory=set)
    newest: dict = field(default_factory=dict)
    pending: dict = field(default_factory=dict)
    chunks: list = field(default_factory=list)
    early: list = field(default_factory=list)
    leases: dict = field(default_factory=dict)
    dropped: Counter = field(default_factory=Counter)
    next_chunk: int = 0
    num_accepted: int = 0

    def fragment_numbers(self):
        groups = [*self.pending.values(), self.early, *(chunk.items for chunk in self.chunks)]
        groups += [chunk.items for _, chunks in self.leases.values() for chunk in chunks]
        return {item.number for group in groups for item in group}

    def num_partial(self):
        return sum(bool(items) for items in self.pending.values())

    def sweep(self, now):
        self.leases = {key: (end, chunks) for key, (end, chunks) in self.leases.items() if end > now}
        before = now - self.rules.partial_ttl_s
        for items in self.pending.values():
            if items and items[-1].arrived < before:
                self.drop(items, "expired")
        for item in list(self.early):
            if item.arrived < before:
                self.early.remove(item)
                self.dropped["expired"] += 1

    def drop(self, items, reason):
        self.dropped[reason] += len(items)
        items.clear()

    def leave(self, chunk, reason):
        self.chunks.remove(chunk)
        if not chunk.uses:
            self.dropped[reason] += len(chunk.items)

    def is_fresh(self, version):
        return self.rules.max_staleness is None or self.version - version <= self.rules.max_staleness

    def judge(self, meta):
        if meta.session == self.session and meta.model_version > self.version:
            return "early"
        if meta.session in self.continued and meta.model_version > self.version:
            return "wrong_session"
        if meta.session == self.session or meta.session in self.continued:
            return "fits" if self.is_fresh(meta.model_version) else "stale"
        return "wrong_session" if meta.session in self.past else "early"

    def classify(self, meta):
        if meta.worker not in self.newest:
            return "next"
        incarnation, fid = self.newest[meta.worker]
        if meta.incarnation != incarnation:
            return "restarted" if meta.incarnation > incarnation else "old_incarnation"
        return "duplicate" if meta.fid <= fid else "next" if meta.fid == fid + 1 else "gap"

    def add(self, number, meta, now):
        self.sweep(now)
        status = self.status_of(meta)
        if status in {"stale", "wrong_session"}:
            self.pass_over(meta)
        if status in {"accepted", "gap"}:
            self.take_in(Item(number, meta, now))
        elif status == "early":
            self.early.append(Item(number, meta, now))
        elif status not in {"full", "future_version"}:
            self.dropped[status] += 1
        return status

    def status_of(self, meta):
        continuation, verdict = self.classify(meta), self.judge(meta)
        if continuation in {"duplicate", "old_incarnation"}:
            return continuation
        key = (meta.worker, meta.incarnation, meta.fid)
        if key in [(item.meta.worker, item.meta.incarnation, item.meta.fid) for item in self.early]:
            return "duplicate"
        if verdict in {"stale", "wrong_session"}:
            return verdict
        if verdict == "fits":
            self.give_up_before(meta)
            continuation = self.classify(meta)
        is_early = verdict == "early" or any(item.meta.worker == meta.worker for item in self.early)
        if is_early and len(self.early) >= self.rules.max_early:
            return "future_version"
        if not self.make_room(meta, continuation):
            return "full"
        return "early" if is_early else "gap" if continuation == "gap" else "accepted"

    def make_room(self, meta, continuation):
        if self.rules.max_bytes is None:
            return True
        own = self.pending.get(meta.worker, []) if continuation == "next" else []
        room = self.rules.max_bytes // self.size_bytes
        leased = [chunk for _, chunks in self.leases.values() for chunk in chunks]
        if len({item.number for chunk in leased for item in chunk.items}) + len(own) + 1 > room:
            return False
        while len(self.fragment_numbers()) >= room:
            free = [chunk for chunk in self.chunks if chunk.id not in {other.id for other in leased}]
            partial = [items for items in self.pending.values() if items and items is not own]
            if free:
                self.leave(free[0], "evicted")
            elif partial:
                self.drop(min(partial, key=lambda items: items[-1].acceptance), "evicted")
            else:
                self.early.pop(0)
                self.dropped["evicted"] += 1
        return True

    def give_up_before(self, meta):
        for item in list(self.early):
            came_before = (item.meta.incarnation, item.meta.fid) < (meta.incarnation, meta.fid)
            if item.meta.worker == meta.worker and came_before and item.meta.session != self.session:
                self.early.remove(item)
                if self.classify(item.meta) not in {"duplicate", "old_incarnation"}:
                    self.pass_over(item.meta)
                self.dropped["wrong_session"] += 1

    def pass_over(self, meta):
        continuation = self.classify(meta)
        self.drop(self.pending.setdefault(meta.worker, []), "gap" if continuation == "next" else continuation)
        self.newest[meta.worker] = (meta.incarnation, meta.fid)

    def take_in(self, item):
        continuation, items = self.classify(item.meta), self.pending.setdefault(item.meta.worker, [])
        if continuation != "next":
            self.drop(items, continuation)
        self.num_accepted += 1
        item.acceptance = self.num_accepted
        items.append(item)
        self.newest[item.meta.worker] = (item.meta.incarnation, item.meta.fid)
        if len(items) == self.rules.fragments_per_chunk:
            while len(self.chunks) >= self.rules.max_chunks:
                self.leave(self.chunks[0], "evicted")
            self.chunks.append(Group(self.next_chunk, list(items)))
            self.next_chunk += 1
            items.clear()

    def set_version(self, session, version, now):
        self.sweep(now)
        self.change_session(session)
        self.session, self.version = session, version
        for chunk in list(self.chunks):
            if chunk.version > version:
                self.leave(chunk, "future_version")
            elif not self.is_fresh(chunk.version):
                self.leave(chunk, "stale")
        for items in self.pending.values():
            fits = [item.meta.model_version <= version and self.is_fresh(item.meta.model_version) for item in items]
            cut = len(fits) - fits[::-1].index(False) if False in fits else 0
            self.dropped["stale"] += cut
            del items[:cut]
        waiting, self.early = self.early, []
        for item in waiting:
            self.reconsider(item, now)

    def change_session(self, session):
        if session == self.session:
            return
        left = self.past if self.rules.session_policy == "discard" else self.continued
        left.add(self.session)
        for sessions in (self.past, self.continued):
            sessions.discard(session)
        if self.rules.session_policy == "discard":
            for chunk in list(self.chunks):
                self.leave(chunk, "wrong_session")
            for items in self.pending.values():
                self.drop(items, "wrong_session")

    def reconsider(self, item, now):
        verdict = self.judge(item.meta)
        if verdict == "fits":
            self.give_up_before(item.meta)
        continuation = self.classify(item.meta)
        if continuation in {"duplicate", "old_incarnation"}:
            self.dropped[continuation] += 1
        elif verdict == "early" or any(other.meta.worker == item.meta.worker for other in self.early):
            self.early.append(item)
        elif verdict == "fits":
            item.arrived = now
            self.take_in(item)
        else:
            self.pass_over(item.meta)
            self.dropped[verdict] += 1

    def fetched(self, lease, now):
        """Check that a lease is valid here, and record it."""
        self.sweep(now)
        groups = [next(chunk for chunk in self.chunks if chunk.id == got.id) for got in lease.chunks]
        for group, got in zip(groups, lease.chunks, strict=True):
            group.uses += 1
            assert [int(fragment["number"]) for fragment in got.fragments] == [item.number for item in group.items]
            assert [fragment.meta for fragment in got.fragments] == [item.meta for item in group.items]
            assert (got.num_uses, got.staleness) == (group.uses, self.version - group.version)
            assert got.staleness >= 0
            assert self.is_fresh(got.model_version)
            if self.rules.max_reuse is not None and group.uses >= self.rules.max_reuse:
                self.leave(group, "exhausted")
        assert len({got.id for got in lease.chunks}) == len(lease.chunks)
        self.leases[lease.id] = (now + self.rules.lease_ttl_s, groups)
