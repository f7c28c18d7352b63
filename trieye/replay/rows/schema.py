"""Column and Layout: the keys that a replay buffer takes, and what it stores and makes of them."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.snapshot.arrays import FORMATS

PREFIX = "next_"
"""Of the key of a row's next observation."""

ENDS = ("terminated", "truncated", "done")
"""The keys that end an episode where they are true; without `terminated`, `done` stands for a termination wherever
`truncated` is not true as well."""

Padding = Literal["reset", "zero"]
PADDINGS: tuple[Padding, ...] = ("reset", "zero")

_PYTHON_SCALARS: dict[type, DTypeLike] = {bool: np.bool_, int: np.int64, float: np.float32}
_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


@dataclass(frozen=True, slots=True)
class Column:
    """One key of a row.

    Attributes:
        name: The key.
        shape: Shape of one value, without the row axis.
        dtype: Type of its elements: boolean, integer, float or complex.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def from_dtype(cls, name: str, spec: DTypeLike) -> Self:
        """Make a column from a NumPy dtype: `np.int64`, or `(np.float32, (4,))` for an array.

        Raises:
            ConfigurationError: It is no dtype, or one that holds neither booleans nor numbers.
        """
        try:
            dtype = np.dtype(spec)
        except TypeError as error:
            raise ConfigurationError(
                f"replay key {name!r}: {spec!r} is no dtype; write np.int64, or (np.float32, (4,)) for an array"
            ) from error
        return cls(name, dtype.shape, _numeric(name, dtype.base))

    @classmethod
    def from_value(cls, name: str, value: Any, *, rows: bool) -> Self:
        """Make the column that takes values like this one.

        A Python float becomes float32, an int int64; arrays keep their dtype.

        Args:
            name: The key.
            value: One value, or an array `[n, ...]` of them.
            rows: Whether `value` has a leading row axis.
        """
        array = as_array(name, value)
        dtype = _numeric(name, np.dtype(_PYTHON_SCALARS.get(type(value), array.dtype)))
        if rows and not array.ndim:
            raise ConfigurationError(
                f"replay key {name!r}: extend() takes arrays [n, ...], found the single value {value!r}"
            )
        return cls(name, array.shape[1:] if rows else array.shape, dtype)

    @property
    def spec(self) -> tuple[str, tuple[int, ...]]:
        """Dtype and shape as plain data; `from_dtype` takes it."""
        return self.dtype.str, self.shape

    def conform(self, value: Any, *, rows: int | None = None) -> NDArray[Any]:
        """Return the value as an array of the column's dtype.

        Args:
            value: One value `shape`, or `[rows, *shape]`.
            rows: Length of the row axis, None without one.

        Raises:
            ConfigurationError: The shape differs, the kind of number differs, or an integer is out of range.
        """
        array = as_array(self.name, value)
        shape = self.shape if rows is None else (rows, *self.shape)
        if array.shape != shape:
            raise ConfigurationError(f"replay key {self.name!r}: shape {shape} is expected, found {array.shape}")
        if array.dtype == self.dtype:
            return array
        if _RANKS.get(array.dtype.kind, 9) > _RANKS[self.dtype.kind]:
            raise ConfigurationError(
                f"replay key {self.name!r}: {self.dtype} is expected, found {array.dtype}; the first row or the schema "
                "decides on the dtype of all rows: change it there, or convert this value"
            )
        return self._cast(array)

    def restored(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the values `[n, ...]` of which `as_saved` made an array."""
        found = np.asarray(array)
        return found if found.dtype == self.dtype else found.view(self.dtype).reshape(len(found), *self.shape)

    def _cast(self, array: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(over="ignore"):  # a float beyond the range of float32 becomes inf, as everywhere in NumPy
            cast = array.astype(self.dtype)
        if self.dtype.kind in "iu" and not np.array_equal(cast, array):
            raise ConfigurationError(
                f"replay key {self.name!r}: a value of {array.tolist()!r:.80} is out of range of {self.dtype}"
            )
        return cast


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Return the value of a key as an array.

    Raises:
        ConfigurationError: No array can be made of it, as of lists of different lengths.
    """
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(f"replay key {name!r}: no array can be made of the value: {error}") from error


def as_saved(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of a dtype that safetensors knows: numbers that it lacks, such as complex ones, as bytes."""
    if array.dtype in FORMATS:
        return array
    return np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape, array.itemsize)


def check_keys(found: Iterable[str], expected: Mapping[str, Any] | Iterable[str]) -> None:
    """Check that a row has the keys of the schema.

    Raises:
        ConfigurationError: A key is missing or unknown.
    """
    found, known = set(found), list(expected)
    if found == set(known):
        return
    for name in sorted(found - set(known)):
        check_known(f"replay key {name!r}", name, known)
    if missing := [name for name in known if name not in found]:
        raise ConfigurationError(
            f"replay row without {', '.join(map(repr, missing))}; every row needs: {', '.join(known)}"
        )


def check_known(what: str, name: Any, known: Iterable[str]) -> None:
    """Check that a name is one of those that there are.

    Args:
        what: What it is the name of, and the name, for the message.
        name: The name.
        known: Those that there are.

    Raises:
        ConfigurationError: It is another one.
    """
    words = list(known)
    if name not in words:
        near = did_you_mean(str(name), words)
        raise ConfigurationError(f"{what} is unknown{near} (known: {', '.join(words) or 'none'})")


def describe(columns: Mapping[str, Column]) -> str:
    """Return the columns as one line: `obs float32[4], action int64[]`."""
    return ", ".join(f"{name} {column.dtype}{list(column.shape)}" for name, column in columns.items())


def checked_capacity(capacity: Any) -> int:
    """Return a capacity in rows.

    Raises:
        ConfigurationError: It is no whole number from 1 on.
    """
    if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or capacity < 1:
        raise ConfigurationError(f"replay capacity is {capacity!r}; it must be a whole number of rows, at least 1")
    return int(capacity)


def _numeric(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in _RANKS:
        raise ConfigurationError(
            f"replay key {name!r}: dtype {dtype} cannot be stored; encode it as numbers (bool, integer, float, complex)"
        )
    return np.dtype(dtype.newbyteorder("=").str)  # through the name: the one object that NumPy's own arrays carry


@dataclass(frozen=True)
class RowOptions:
    """What is made of the rows that are added.

    Attributes:
        n_step: Rows that a reward is summed over.
        gamma: Discount of each of them.
        frame_stack: Frames in a stack, by key; the rows hold single frames.
        padding: What stands before the first frame of an episode: that frame (`reset`) or zeros (`zero`).
        dedup_next: Keep `next_<key>` once, as the `<key>` of the row that follows.
        walks: Keep in any case which row follows which, and the place of each in its episode: a sampler needs it.
    """

    n_step: int = 1
    gamma: float = 0.99
    frame_stack: Mapping[str, int] = field(default_factory=dict)
    padding: Padding = "reset"
    dedup_next: bool = False
    walks: bool = False

    def __post_init__(self) -> None:
        if self.n_step < 1:
            raise ConfigurationError(f"replay n_step is {self.n_step}; at least 1 row is needed")
        if not 0 <= self.gamma <= 1:
            raise ConfigurationError(f"replay gamma is {self.gamma}; it must be from 0 to 1")
        check_known(f"replay padding {self.padding!r}", self.padding, PADDINGS)
        for name, frames in self.frame_stack.items():
            if frames < 1:
                raise ConfigurationError(f"replay frame_stack of {name!r} is {frames}; at least 1 frame is needed")

    @property
    def needs_episodes(self) -> bool:
        """Whether it matters where an episode ends."""
        return bool(self.n_step > 1 or self.frame_stack or self.dedup_next or self.walks)

    @property
    def spec(self) -> dict[str, Any]:
        """All options as plain data; saved states hold them, so their names stay."""
        options = {**asdict(self), "frame_stack": dict(self.frame_stack)}
        walks = options.pop("walks")
        return {**options, "links_episodes": walks, "counts_steps": walks}

    @property
    def kept(self) -> dict[str, Any]:
        """The options that decide what is kept of a row, as in `spec`; all others apply when rows are drawn."""
        return {name: self.spec[name] for name in ("frame_stack", "dedup_next", "counts_steps")}

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
        made: The keys that are handed out and not added: `discount`, and with n-step returns `n`.
        keys: The keys that are handed out.
        num_earlier: How many earlier rows of its episode a row needs to be made.

    Raises:
        ConfigurationError: An option needs keys that are not there.
    """

    def __init__(self, capacity: int, columns: Iterable[Column], options: RowOptions) -> None:
        self.capacity, self.options = capacity, options
        self.columns = {column.name: column for column in columns}
        if "env_id" in self.columns:
            raise ConfigurationError(
                "replay key 'env_id' is no key of a row: the environment stands first in add(env_id, obs=...), and in "
                "extend(rows, env_ids=...); a column of that kind needs another name"
            )
        self.paired = _pairs_in(self.columns) if options.dedup_next else {}
        self.stored = [column for name, column in self.columns.items() if name not in self.paired]
        self.ends = [name for name in ENDS if name in self.columns]
        for name in options.frame_stack:
            check_known(f"frame_stack key {name!r}", name, self.columns)
        nexts = {PREFIX + name: frames for name, frames in options.frame_stack.items() if PREFIX + name in self.columns}
        self.stacks = {**options.frame_stack, **nexts}
        self.made = _made_beside(self.columns, options)
        self.keys = [*self.columns, *self.made]
        self.num_earlier = options.num_earlier
        if options.needs_episodes and not self.ends:
            raise ConfigurationError(
                "n_step, frame_stack, dedup_next and sequences need to know where an episode ends: add a key "
                f"{', '.join(ENDS[:-1])} or {ENDS[-1]} to the rows (found: {', '.join(self.columns)})"
            )
        if options.n_step > 1 and "reward" not in self.columns:
            raise ConfigurationError(f"n_step needs a key 'reward' (found: {', '.join(self.columns)})")


def _made_beside(columns: Mapping[str, Column], options: RowOptions) -> tuple[str, ...]:
    """Return the keys that are made of the rows, besides theirs; one-step rows may bring a `discount` of their own.

    Raises:
        ConfigurationError: The rows have such a key, with n-step returns.
    """
    if options.n_step == 1:
        return () if "discount" in columns else ("discount",)
    made = ("discount", "n")
    if taken := [name for name in made if name in columns]:
        raise ConfigurationError(
            f"replay key {taken[0]!r} is what n_step={options.n_step} makes; give the column of the rows another name"
        )
    return made


def _pairs_in(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns `next_<key>` that a column `<key>` of the same shape and dtype goes with.

    Raises:
        ConfigurationError: There is none, or one differs from its partner.
    """
    pairs = {name: column for name, column in columns.items() if name.removeprefix(PREFIX) in columns.keys() - {name}}
    if not pairs:
        raise ConfigurationError(
            f"dedup_next needs keys <key> and next_<key>, such as obs and next_obs; found: {', '.join(columns)}"
        )
    for name, column in pairs.items():
        partner = columns[name.removeprefix(PREFIX)]
        if (column.dtype, column.shape) != (partner.dtype, partner.shape):
            raise ConfigurationError(
                f"dedup_next: {name!r} is {column.dtype}{list(column.shape)} and {partner.name!r} is "
                f"{partner.dtype}{list(partner.shape)}; they must be alike"
            )
    return pairs
