"""The ConfigStore schema, derived from the pydantic models."""

import copyreg
from copy import copy
from dataclasses import Field as DataclassField
from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import cache, partial
from itertools import count
from typing import Any, get_args, get_origin
from weakref import WeakValueDictionary

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from trieye.config.base import Marker, is_open, models_in, set_by
from trieye.config.hydra.keys import is_variant, tag_of

SCHEMA_NAME = "schema"
BEFORE_1_4 = tuple(int(part) for part in hydra.__version__.split(".")[:2]) < (1, 4)
_REPLACE: dict[str, Any] = {} if BEFORE_1_4 else {"replace": True}  # 1.3 always replaces, 1.4 wants to be told

_Place = tuple[str, ...]  # the keys that lead to a part of a config; "*" stands for those of a keyed collection
_NUMBERS = count()
_IN_USE: "WeakValueDictionary[str, type]" = WeakValueDictionary()


def register_schema(config_type: type[BaseModel], *, run_name: str) -> None:
    """Store the schema of a config type under the name that primary configs put first in their defaults list.

    Leaves have no type, so that pydantic makes every type error.

    Args:
        config_type: The model.
        run_name: The default of the key `run_name`.
    """
    schema = _Derivation(config_type).whole(run_name=run_name)
    ConfigStore.instance().store(name=SCHEMA_NAME, node=schema, provider="trieye", **_REPLACE)


def name_runs(run_name: str) -> None:
    """Change the default of the key `run_name` in the schema that is stored."""
    ConfigStore.instance().repo[f"{SCHEMA_NAME}.yaml"].node.run_name = run_name


def defaults_of(model: type[BaseModel], given: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of a model as they would stand in YAML; `given` wins over the model's own."""
    defaults: Any = OmegaConf.to_container(OmegaConf.structured(_Derivation(model, given).whole))
    return {str(key): value for key, value in defaults.items()}


class _Derived(type):
    """The type of the derived dataclasses, which are pickled as the model and the place that they come from.

    By value, as cloudpickle takes classes that are in no module, they would not survive: in another process
    `dataclasses.MISSING` is another object. So they are attributes of this module, and `copyreg` has the last word.
    """

    origin_: tuple[type[BaseModel], _Place]  # a name that no key has


class _Part(metaclass=_Derived):
    """The base of the derived dataclasses."""


def _reduced(part: _Derived) -> tuple[Any, ...]:
    return _part_of, part.origin_


copyreg.pickle(_Derived, _reduced)


def __getattr__(name: str) -> type:
    if name in _IN_USE:
        return _IN_USE[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _part_of(root: type[BaseModel], place: _Place) -> type:
    """Return the dataclass of a part of a config, in the process that unpickles it."""
    return _derivation_of(root).parts[place]


@cache
def _derivation_of(root: type[BaseModel]) -> "_Derivation":
    return _Derivation(root)


class _Derivation:
    """The dataclasses of a config type.

    Attributes:
        whole: The dataclass of the whole config.
        parts: Each of them by its place.
    """

    def __init__(self, root: type[BaseModel], defaults: dict[str, Any] | None = None) -> None:
        self._root = root
        self.parts: dict[_Place, type] = {}
        self.whole = self._part(root, (), defaults or {})

    def _part(self, model: type[BaseModel], place: _Place, defaults: dict[str, Any]) -> type:
        """Return a dataclass with the fields of a model; `defaults` win over the defaults of the model."""
        infos = {name: info for name, info in model.model_fields.items() if not set_by(info)}
        members = [(name, *self._field(info, (*place, name), defaults)) for name, info in infos.items()]
        part: Any = make_dataclass(model.__name__, members, bases=(_Part,))
        part.origin_ = (self._root, place)
        part.__module__, part.__qualname__ = __name__, f"{model.__name__}_{next(_NUMBERS)}"
        made: type = part
        _IN_USE[made.__qualname__] = self.parts[place] = made
        return made

    def _field(self, info: FieldInfo, place: _Place, defaults: dict[str, Any]) -> tuple[Any, DataclassField[Any]]:
        default = defaults[place[-1]] if place[-1] in defaults else default_of(info)
        models, many = models_in(info)
        if is_variant(info):
            # it takes any key until the config is whole and shows which model it is
            takes_keys = isinstance(default, dict) or (default == MISSING and tag_of(models) is not None)
            return Any, _open({}) if takes_keys else _constant(default)
        if not models:
            return Any, _open(default) if is_open(info) and isinstance(default, dict) else _constant(default)
        if many:
            element = self._part(models[0], (*place, "*"), {})
            items = default.items() if isinstance(default, dict) else enumerate(default or ())
            return dict[str, element], _constant({str(key): _instance(element, item) for key, item in items})  # type: ignore[valid-type]  # made at run time
        if default is None:
            return Any, _constant(None)
        nested = self._part(models[0], place, default if isinstance(default, dict) else {})
        return nested, field(default_factory=nested)


def default_of(info: FieldInfo) -> Any:
    """Return the default of a field as it would stand in YAML; `???` if it has none.

    Of a model it is what differs from the model's own defaults: making an instance would cost 5 ms.
    """
    marker = next((item for item in info.metadata if isinstance(item, Marker)), Marker())
    if marker.yaml_default is not None:
        return dict(marker.yaml_default)
    if info.is_required():
        return MISSING
    if info.default_factory in models_in(info)[0] and not is_variant(info):
        return {}
    return to_jsonable_python(info.get_default(call_default_factory=True, validated_data={}))


def _instance(schema: Any, values: Any) -> Any:
    """Return an instance of a dataclass of schemas, which OmegaConf wants to see in place of a dict."""
    if is_dataclass(schema) and isinstance(values, dict):
        known = {item.name: item.type for item in fields(schema)}
        made: Any = schema
        return made(**{name: _instance(known[name], value) for name, value in values.items() if name in known})
    if get_origin(schema) is dict and isinstance(values, dict):
        return {name: _instance(get_args(schema)[1], value) for name, value in values.items()}
    return values


def _constant(value: Any) -> DataclassField[Any]:
    constant: DataclassField[Any] = field(default_factory=partial(copy, value))  # a list belongs to one config only
    return constant


def _open(values: dict[str, Any]) -> DataclassField[Any]:
    """Return a dict that takes new keys, although Hydra closes the config as a whole."""
    create: Any = partial(OmegaConf.create, values, flags={"struct": False})
    made: DataclassField[Any] = field(default_factory=create)
    return made
