"""Layout: which keys a replay buffer takes, which of them it stores, and how the others are made of them."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.replay.rows.dedup import PREFIX, split_pairs
from trieye.replay.rows.schema import Column

ENDS = ("terminated", "truncated", "done")
"""The keys that end an episode where they are true; without `terminated`, `done` stands for a termination wherever
`truncated` is not true as well."""

Padding = Literal["reset", "zero"]
PADDINGS: tuple[Padding, ...] = ("reset", "zero")


@dataclass(frozen=True)
class RowOptions:
    """What is made of the rows that are added.

    Attributes:
        n_step: Rows that a reward is summed over.
        gamma: Discount of each of them.
        frame_stack: Frames in a stack, by key; the rows hold single frames.
        padding: What stands before the first frame of an episode: that frame (`reset`) or zeros (`zero`).
        dedup_next: Keep `next_<key>` once, as the `<key>` of the row that follows.
        links_episodes: Keep which row follows which in any case, for a sampler that needs it.
        counts_steps: Keep the place of each row in its episode in any case.
    """

    n_step: int = 1
    gamma: float = 0.99
    frame_stack: Mapping[str, int] = field(default_factory=dict)
    padding: Padding = "reset"
    dedup_next: bool = False
    links_episodes: bool = False
    counts_steps: bool = False

    def __post_init__(self) -> None:
        if self.n_step < 1:
            raise ConfigurationError(f"replay n_step is {self.n_step}; at least 1 row is needed")
        if not 0 <= self.gamma <= 1:
            raise ConfigurationError(f"replay gamma is {self.gamma}; it must be from 0 to 1")
        if self.padding not in PADDINGS:
            raise ConfigurationError(
                f"replay padding {self.padding!r} is unknown{did_you_mean(self.padding, PADDINGS)} "
                f"(known: {', '.join(PADDINGS)})"
            )
        for name, frames in self.frame_stack.items():
            if frames < 1:
                raise ConfigurationError(f"replay frame_stack of {name!r} is {frames}; at least 1 frame is needed")

    @property
    def needs_episodes(self) -> bool:
        """Whether it matters where an episode ends."""
        return bool(self.n_step > 1 or self.frame_stack or self.dedup_next or self.links_episodes)

    @property
    def spec(self) -> dict[str, Any]:
        """All options as plain data."""
        return {**asdict(self), "frame_stack": dict(self.frame_stack)}

    @property
    def num_earlier(self) -> int:
        """How many earlier rows of its episode a row needs to be made."""
        return max(self.frame_stack.values(), default=1) - 1


class Layout:
    """The columns of a buffer, sorted by what becomes of them.

    Args:
        capacity: Rows of the ring.
        columns: What a row holds when it is added.
        options: What is made of it.

    Attributes:
        columns: What a row holds when it is added, by key.
        stored: Those that the ring stores.
        paired: The columns `next_<key>` that are read from the next row.
        stacks: Frames in a stack, for each key that is handed out as one, `next_<key>` included.
        ends: The keys that end an episode.
        keys: The keys that are handed out.
        num_earlier: How many earlier rows of its episode a row needs to be made.

    Raises:
        ConfigurationError: An option needs keys that are not there.
    """

    def __init__(self, capacity: int, columns: Iterable[Column], options: RowOptions) -> None:
        self.capacity, self.options = capacity, options
        self.columns = {column.name: column for column in columns}
        self.paired = split_pairs(self.columns) if options.dedup_next else {}
        self.stored = [column for name, column in self.columns.items() if name not in self.paired]
        self.ends = [name for name in ENDS if name in self.columns]
        for name in options.frame_stack:
            if name not in self.columns:
                raise ConfigurationError(
                    f"frame_stack key {name!r} is unknown{did_you_mean(name, self.columns)} "
                    f"(known: {', '.join(self.columns)})"
                )
        nexts = {PREFIX + name: frames for name, frames in options.frame_stack.items() if PREFIX + name in self.columns}
        self.stacks = {**options.frame_stack, **nexts}
        self.keys = [*self.columns, *(("discount", "n") if options.n_step > 1 else ())]
        self.num_earlier = options.num_earlier
        if options.needs_episodes and not self.ends:
            raise ConfigurationError(
                "n_step, frame_stack, dedup_next and sequences need to know where an episode ends: add a key "
                f"{', '.join(ENDS[:-1])} or {ENDS[-1]} to the rows (found: {', '.join(self.columns)})"
            )
        if options.n_step > 1 and "reward" not in self.columns:
            raise ConfigurationError(f"n_step needs a key 'reward' (found: {', '.join(self.columns)})")
