"""Column and Layout: the keys of rows, their storage, and the keys derived from them."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.snapshot.arrays import FORMATS

PREFIX = "next_"
"""Prefix of the key of a row's next observation."""

ENDS = ("terminated", "truncated", "done")
"""The keys that end an episode where they are true. Without `terminated`, `done` is a termination unless `truncated` is
true as well.
"""

Padding = Literal["reset", "zero"]

_PYTHON_SCALARS: dict[type, DTypeLike] = {bool: np.bool_, int: np.int64, float: np.float32}
_CONVERSION_ERRORS = (ValueError, TypeError, RuntimeError, ArithmeticError, AttributeError, LookupError)
"""Errors of NumPy and of objects that convert themselves to arrays."""

_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2}


@dataclass(frozen=True, slots=True)
class Column:
    """One key of a row.

    Attributes:
        name: The key.
        shape: Shape of one value, without the row axis.
        dtype: Type of its elements: boolean, integer or float, of at most 64 bits.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ConfigurationError(f"replay key {self.name!r}: a key must be a string that is not empty")

    @classmethod
    def from_dtype(cls, name: str, dtype_like: DTypeLike) -> Self:
        """Create a column from a NumPy dtype: `np.int64`, or `(np.float32, (4,))` for an array.

        Raises:
            ConfigurationError: The dtype is invalid, or neither boolean nor numeric.
        """
        try:
            dtype = np.dtype(dtype_like)
        except TypeError as error:
            raise ConfigurationError(
                f"replay key {name!r}: {dtype_like!r} is not a dtype; write np.int64, or (np.float32, (4,)) for an "
                "array"
            ) from error
        return cls(name, dtype.shape, _numeric(name, dtype.base))

    @classmethod
    def from_value(cls, name: str, value: Any, *, rows: bool) -> Self:
        """Create a column for values like this one.

        A Python float becomes float32, an int int64; arrays keep their dtype.

        Args:
            name: The key.
            value: One value, or an array `[n, ...]` of values.
            rows: Whether `value` has a leading row axis.
        """
        array = as_array(name, value)
        dtype = _numeric(name, np.dtype(_PYTHON_SCALARS.get(type(value), array.dtype)))
        return cls(name, array.shape[1:] if rows else array.shape, dtype)

    @property
    def spec(self) -> tuple[str, tuple[int, ...]]:
        """Dtype and shape as plain data, for `from_dtype`."""
        return self.dtype.str, self.shape

    def conform(self, value: Any, *, rows: int | None = None) -> NDArray[Any]:
        """Return the value as an array of the column's dtype.

        Args:
            value: One value of shape `shape`, or `[rows, *shape]`.
            rows: Length of the row axis; None without a row axis.

        Raises:
            ConfigurationError: The shape or the kind of number differs, or an integer is out of range.
        """
        array = as_array(self.name, value)
        shape = self.shape if rows is None else (rows, *self.shape)
        if array.shape != shape:
            raise ConfigurationError(f"replay key {self.name!r}: expected shape {shape}, got {array.shape}")
        if array.dtype == self.dtype:
            return array
        if _RANKS.get(array.dtype.kind, 9) > _RANKS[self.dtype.kind]:
            raise ConfigurationError(
                f"replay key {self.name!r}: expected {self.dtype}, got {array.dtype}; the first row or the schema "
                "determines the dtype of all rows: change it there, or convert this value"
            )
        return self._cast(array)

    def _cast(self, array: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(over="ignore"):  # a float beyond the range of float32 becomes inf, as in NumPy
            cast = array.astype(self.dtype)
        if self.dtype.kind in "iu" and not np.array_equal(cast, array):
            raise ConfigurationError(
                f"replay key {self.name!r}: a value of {array.tolist()!r:.80} is out of range of {self.dtype}"
            )
        return cast


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Return the value of a key as an array.

    Raises:
        ConfigurationError: It cannot be converted, such as lists of different lengths.
    """
    try:
        return np.asarray(value)
    except _CONVERSION_ERRORS as error:
        raise ConfigurationError(f"replay key {name!r}: cannot convert the value to an array: {error}") from error


def check_keys(keys: Iterable[str], schema: Mapping[str, Any] | Iterable[str]) -> None:
    """Check that a row has the keys of the schema.

    Raises:
        ConfigurationError: A key is missing or unknown.
    """
    row_keys, schema_keys = set(keys), list(schema)
    if row_keys == set(schema_keys):
        return
    for name in sorted(row_keys - set(schema_keys), key=str):
        check_known(f"replay key {name!r}", name, schema_keys)
    if missing_keys := [name for name in schema_keys if name not in row_keys]:
        raise ConfigurationError(
            f"replay row without {', '.join(map(repr, missing_keys))}; every row needs: {', '.join(schema_keys)}"
        )


def check_known(label: str, name: Any, choices: Iterable[str]) -> None:
    """Check that a name is one of the choices.

    Args:
        label: The kind of name and the name, for the message.
        name: The name.
        choices: The valid names.

    Raises:
        ConfigurationError: The name is not among the choices.
    """
    words = list(choices)
    if name not in words:
        near = did_you_mean(str(name), words)
        raise ConfigurationError(f"{label} is unknown{near} (known: {', '.join(words) or 'none'})")


def describe(columns: Mapping[str, Column]) -> str:
    """Return the columns in one line: `obs float32[4], action int64[]`."""
    return ", ".join(f"{name} {column.dtype}{list(column.shape)}" for name, column in columns.items())


def checked_integer(name: str, value: Any, minimum: int = 1) -> int:
    """Return a value as an int.

    Raises:
        ConfigurationError: The value is not an integer, or is below `minimum`.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ConfigurationError(f"{name} is {value!r}; it must be an integer, at least {minimum}")
    return int(value)


def _numeric(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    native = dtype.newbyteorder("=")
    if native not in FORMATS:
        raise ConfigurationError(
            f"replay key {name!r}: dtype {dtype} cannot be stored; encode it as numbers (bool, integer, float) of at "
            "most 64 bits"
        )
    return np.dtype(native.str)  # by name: returns the object that NumPy's own arrays use


@dataclass(frozen=True)
class RowOptions:
    """How rows are stored and combined.

    Attributes:
        n_step: Number of rows whose rewards are summed.
        gamma: Discount factor per row.
        frame_stack: Frames per stack, by key; the rows store single frames.
        padding: Frames before the first one of an episode: that frame (`reset`) or zeros (`zero`).
        dedup_next: Store `next_<key>` once, as the `<key>` of the following row.
        walks: Track the order of rows and their position in the episode in any case, since a sampler needs it.
    """

    n_step: int = 1
    gamma: float = 0.99
    frame_stack: Mapping[str, int] = field(default_factory=dict)
    padding: Padding = "reset"
    dedup_next: bool = False
    walks: bool = False

    def __post_init__(self) -> None:
        checked_integer("replay n_step", self.n_step)
        if not isinstance(self.gamma, Real) or not 0 <= self.gamma <= 1:
            raise ConfigurationError(f"replay gamma is {self.gamma!r}; it must be a number from 0 to 1")
        check_known(f"replay padding {self.padding!r}", self.padding, get_args(Padding))
        if not isinstance(self.frame_stack, Mapping):
            raise ConfigurationError(
                f"replay frame_stack is {self.frame_stack!r}; expected frames by key: {{'obs': 4}}"
            )
        object.__setattr__(self, "frame_stack", dict(self.frame_stack))  # the caller may change its own
        for name, frames in self.frame_stack.items():
            checked_integer(f"replay frame_stack of {name!r}", frames)

    @property
    def needs_episodes(self) -> bool:
        """Whether episode ends matter."""
        return bool(self.n_step > 1 or self.frame_stack or self.dedup_next or self.walks)

    @property
    def spec(self) -> dict[str, Any]:
        """All options as plain data. Saved states contain them, so their names must not change."""
        options = {**asdict(self), "frame_stack": dict(self.frame_stack)}
        walks = options.pop("walks")
        return {**options, "links_episodes": walks, "counts_steps": walks}

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options that determine the stored form of a row, as in `spec`; all others apply when rows are drawn."""
        return {name: self.spec[name] for name in ("frame_stack", "dedup_next", "counts_steps")}

    @property
    def num_earlier(self) -> int:
        """Number of earlier rows of its episode that a row depends on."""
        return max(self.frame_stack.values(), default=1) - 1


class Layout:
    """The columns of a buffer, grouped by their use.

    Args:
        capacity: Capacity of the ring in rows.
        columns: Columns of an added row.
        options: How rows are stored and combined.

    Attributes:
        columns: Columns of an added row, by key.
        stored: The columns that the ring stores.
        paired: The columns `next_<key>` that are read from the next row.
        stacks: Frames per stack for each stacked key, including `next_<key>`.
        ends: The keys that end an episode.
        derived: The keys of a batch that rows do not have: `discount`, and `n` with n-step returns.
        keys: The keys of a batch.
        num_earlier: Number of earlier rows of its episode that a row depends on.

    Raises:
        ConfigurationError: An option needs keys that are missing.
    """

    def __init__(self, capacity: int, columns: Iterable[Column], options: RowOptions) -> None:
        self.capacity, self.options = capacity, options
        self.columns = {column.name: column for column in columns}
        if "env_id" in self.columns:
            raise ConfigurationError(
                "replay key 'env_id' is reserved: pass the environment as add(env_id, obs=...) or "
                "extend(rows, env_ids=...); rename the column"
            )
        self.paired = _pairs_in(self.columns) if options.dedup_next else {}
        self.stored = [column for name, column in self.columns.items() if name not in self.paired]
        self.ends = [name for name in ENDS if name in self.columns]
        for name in options.frame_stack:
            check_known(f"frame_stack key {name!r}", name, self.columns)
        nexts = {PREFIX + name: frames for name, frames in options.frame_stack.items() if PREFIX + name in self.columns}
        self.stacks = {**options.frame_stack, **nexts}
        self.derived = _derived_keys(self.columns, options)
        self.keys = [*self.columns, *self.derived]
        self.num_earlier = options.num_earlier
        if options.needs_episodes and not self.ends:
            raise ConfigurationError(
                "n_step, frame_stack, dedup_next and sequences require episode ends: add a key "
                f"{', '.join(ENDS[:-1])} or {ENDS[-1]} to the rows (keys: {', '.join(self.columns)})"
            )
        if options.n_step > 1 and "reward" not in self.columns:
            raise ConfigurationError(f"n_step needs a key 'reward' (keys: {', '.join(self.columns)})")


def _derived_keys(columns: Mapping[str, Column], options: RowOptions) -> tuple[str, ...]:
    """Return the derived keys of a batch; one-step rows may have their own `discount`.

    Raises:
        ConfigurationError: The rows have such a key, with n-step returns.
    """
    if options.n_step == 1:
        return () if "discount" in columns else ("discount",)
    keys = ("discount", "n")
    if conflicts := [name for name in keys if name in columns]:
        raise ConfigurationError(
            f"replay key {conflicts[0]!r} is reserved for the result of n_step={options.n_step}; rename the column"
        )
    return keys


def _pairs_in(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns `next_<key>` with a column `<key>` of the same shape and dtype.

    Raises:
        ConfigurationError: There are none, or one differs from its partner.
    """
    pairs = {name: column for name, column in columns.items() if name.removeprefix(PREFIX) in columns.keys() - {name}}
    if not pairs:
        raise ConfigurationError(
            f"dedup_next needs keys <key> and next_<key>, such as obs and next_obs (keys: {', '.join(columns)})"
        )
    for name, column in pairs.items():
        partner = columns[name.removeprefix(PREFIX)]
        if (column.dtype, column.shape) != (partner.dtype, partner.shape):
            raise ConfigurationError(
                f"dedup_next: {name!r} is {column.dtype}{list(column.shape)} and {partner.name!r} is "
                f"{partner.dtype}{list(partner.shape)}; they must be equal"
            )
    return pairs


def saved_columns(rows_state: Mapping[str, Any], layout: Layout | None, options: RowOptions) -> list[Column]:
    """Return the columns of saved rows.

    Args:
        rows_state: The result of `RowStore.state_dict`.
        layout: The layout of the buffer being restored, if it has one.
        options: The row options of that buffer.

    Raises:
        ConfigurationError: The columns differ from `layout`, or the rows were saved without data that `options` need.
    """
    columns = [Column.from_dtype(name, (spec[0], tuple(spec[1]))) for name, spec in rows_state["columns"].items()]
    if layout is not None and list(layout.columns.values()) != columns:
        saved_schema = describe({column.name: column for column in columns})
        raise ConfigurationError(
            f"replay state holds rows of {saved_schema}, this buffer of {describe(layout.columns)}; "
            "load it into a buffer of the same schema"
        )
    for name, value in options.storage_options.items():
        saved_value = rows_state["options"][name]
        if saved_value != value and not (name == "counts_steps" and saved_value):
            raise ConfigurationError(
                f"replay state was made with {name}={saved_value}, this buffer with {name}={value}; "
                "load it into a buffer of the same options"
            )
    return columns
