import numpy as np
from fragment_rows import FRAGMENT_BYTES, payload
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from slow_reference import Reference

from trieye.replay.fragments import FragmentBuffer, FragmentMeta, FragmentRules
from trieye.snapshot.parts import SavedParts

RULES = st.builds(
    FragmentRules,
    max_chunks=st.integers(1, 4),
    fragments_per_chunk=st.integers(1, 3),
    max_staleness=st.sampled_from([None, 0, 1, 2]),
    max_reuse=st.sampled_from([None, 1, 2]),
    max_bytes=st.sampled_from([None, 4 * FRAGMENT_BYTES, 7 * FRAGMENT_BYTES]),
    max_early=st.sampled_from([0, 2, 100]),
    partial_ttl_s=st.just(10.0),
    lease_ttl_s=st.just(15.0),
    session_policy=st.sampled_from(["discard", "resume"]),
    sampler=st.sampled_from(["uniform", "prioritized"]),
)


class AgainstTheReference(RuleBasedStateMachine):
    @initialize(rules=RULES, seed=st.integers(0, 9))
    def begin(self, rules, seed):
        self.now, self.number, self.files = 0.0, 0, {}
        self.buffer = FragmentBuffer(rules, seed=seed, clock=lambda: self.now)
        self.model = Reference(rules, FRAGMENT_BYTES)

    @rule(
        worker=st.sampled_from("ab"),
        step=st.sampled_from([1] * 12 + [2, 0, -1]),
        restart=st.sampled_from([0] * 12 + [1, -1]),
        age=st.sampled_from([0] * 6 + [1, 2, -1]),
        session=st.sampled_from([None] * 8 + ["one", "two"]),
    )
    def add(self, worker, step, restart, age, session):
        incarnation, fid = self.model.newest.get(worker, (0, -1))
        waiting = [item.meta for item in self.model.early if item.meta.worker == worker]
        if waiting and restart == 0:
            incarnation, fid = waiting[-1].incarnation, waiting[-1].fid
        meta = FragmentMeta(
            worker,
            max(fid + step, 0) if restart <= 0 else 0,
            max(self.model.version - age, -1),
            self.model.session if session is None else session,
            max(incarnation + restart, 0),
        )
        self.number += 1
        result = self.buffer.add(payload(self.number), meta)
        assert result.status == self.model.add(self.number, meta, self.now), result

    @rule(worker=st.sampled_from("abc"), count=st.integers(2, 6))
    def add_many(self, worker, count):
        for _ in range(count):
            self.add(worker, 1, 0, 0, None)

    @rule(rise=st.integers(0, 2), session=st.sampled_from([None] * 5 + ["one", "two"]), back=st.integers(0, 2))
    def announce(self, rise, session, back):
        is_same = session in {None, self.model.session}
        version = max(self.model.version + (rise if is_same else rise - back), -1)
        session = self.model.session if is_same else session
        self.buffer.set_version(session, version)
        self.model.set_version(session, version, self.now)

    @rule(share=st.floats(0, 1))
    @precondition(lambda self: self.model.chunks)
    def fetch(self, share):
        lease = self.buffer.fetch(max(round(share * len(self.model.chunks)), 1), timeout_s=0)
        self.model.fetched(lease, self.now)

    @rule(index=st.integers(0, 9))
    @precondition(lambda self: self.model.leases)
    def release(self, index):
        lease_id = list(self.model.leases)[index % len(self.model.leases)]
        del self.model.leases[lease_id]
        assert self.buffer.release(lease_id)

    @rule(index=st.integers(0, 9), priority=st.floats(0, 100))
    @precondition(lambda self: self.model.chunks)
    def prioritize(self, index, priority):
        chunk = self.model.chunks[index % len(self.model.chunks)]
        assert self.buffer.update_priorities([chunk.id, chunk.id + 1000], [priority, 1.0]) == 1

    @rule(seconds=st.sampled_from([0.5, 0.5, 4.0, 12.0]))
    def wait(self, seconds):
        self.now += seconds
        self.buffer.metrics()
        self.model.sweep(self.now)

    @rule(share=st.floats(0, 1))
    def save_and_restart(self, share):
        known_parts = [name for index, name in enumerate(self.files) if index <= share * len(self.files)]
        parts = self.buffer.state_parts(known_parts)
        assert set(parts.kept) <= set(known_parts)
        self.files |= parts.new
        restarted = FragmentBuffer(self.model.rules, seed=99, clock=lambda: self.now)
        restarted.load_state_dict(SavedParts(parts.state, (*parts.kept, *parts.new), self.files))
        twin = FragmentBuffer(self.model.rules, seed=98, clock=lambda: self.now)
        twin.load_state_dict(SavedParts(parts.state, (*parts.kept, *parts.new), self.files))
        for _ in range(len(self.model.chunks) and 3):
            if len(twin):
                assert ids(twin.fetch(1)) == ids(self.buffer.fetch(1))
        self.buffer, self.model.leases = restarted, {}

    @invariant()
    def looks_the_same(self):
        if not hasattr(self, "model"):
            return
        fragments, rules = self.model.fragment_numbers(), self.model.rules
        metrics = self.buffer.metrics()
        assert len(self.buffer) == len(self.model.chunks) <= rules.max_chunks
        assert metrics["replay/fragments"] == len(fragments)
        assert metrics["replay/bytes"] == len(fragments) * FRAGMENT_BYTES <= (rules.max_bytes or np.inf)
        assert metrics["replay/waiting_fragments"] == len(self.model.early)
        assert metrics["replay/leases"] == len(self.model.leases)
        assert metrics["replay/partial_chunks"] == self.model.num_partial()
        prefix = "replay/dropped/"
        dropped = {name.removeprefix(prefix): count for name, count in metrics.items() if name.startswith(prefix)}
        assert dropped == {reason: count for reason, count in self.model.dropped.items() if count}


def ids(lease):
    return [chunk.id for chunk in lease.chunks]


AgainstTheReference.TestCase.settings = settings(stateful_step_count=30, deadline=None)
test_the_buffer_matches_the_slow_reference = AgainstTheReference.TestCase
