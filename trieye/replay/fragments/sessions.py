"""Sessions: which training run and version the buffer is in, and what that makes of a fragment."""

from collections.abc import Mapping
from typing import Any, Literal

from trieye.exceptions import ConfigurationError
from trieye.replay.fragments.fragment import FragmentMeta

Verdict = Literal["fits", "early", "stale", "wrong_session"]
Policy = Literal["discard", "resume"]

_MAX_PAST = 1000


class Sessions:
    """The present session and version; before the first update the session is empty and the version -1."""

    def __init__(self, policy: Policy, max_staleness: int | None) -> None:
        self.policy = policy
        self._max_staleness = max_staleness
        self.session = ""
        self.version = -1
        self._past: dict[str, None] = {}  # sessions that were left, oldest first
        self._continued: dict[str, None] = {}  # sessions whose content the present one goes on with

    @property
    def lowest_version(self) -> int | None:
        """The lowest version that is fresh enough; None if every one is."""
        return None if self._max_staleness is None else self.version - self._max_staleness

    def is_fresh(self, version: int) -> bool:
        """Tell whether the version is recent enough."""
        return self._max_staleness is None or self.version - version <= self._max_staleness

    def judge(self, meta: FragmentMeta) -> Verdict:
        """Return what the session and version of a fragment mean now; one of an unknown session is early."""
        is_present = meta.session == self.session
        if not is_present and meta.session not in self._continued:
            return "wrong_session" if meta.session in self._past else "early"
        if meta.model_version > self.version:
            return "early" if is_present else "wrong_session"
        return "fits" if self.is_fresh(meta.model_version) else "stale"

    def check(self, session: str, version: int) -> None:
        """Check an announcement.

        Raises:
            ConfigurationError: The version is lower than one that this session had.
        """
        if session == self.session and version < self.version:
            raise ConfigurationError(
                f"set_version({session!r}, {version}): the session has version {self.version} already and versions "
                "only rise; a run that goes on from an older state needs a session name of its own"
            )

    def change(self, session: str, version: int) -> bool:
        """Take over a session and version, and tell whether what is held has to go."""
        is_other = session != self.session
        if is_other:
            self._continued[self.session] = None
            if self.policy == "discard":
                self._past |= self._continued
                self._continued = {}
            for left in (self._past, self._continued):
                left.pop(session, None)
            while len(self._past) > _MAX_PAST:
                del self._past[next(iter(self._past))]
        self.session, self.version = session, version
        return is_other and self.policy == "discard"

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the policy, as plain data."""
        return {
            "session": self.session,
            "version": self.version,
            "past": list(self._past),
            "continued": list(self._continued),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.session, self.version = str(state["session"]), int(state["version"])
        self._past, self._continued = dict.fromkeys(state["past"]), dict.fromkeys(state["continued"])
