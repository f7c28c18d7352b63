"""Derives the ConfigStore schema (dataclasses with defaults) from the pydantic models."""

import copyreg
from copy import copy
from dataclasses import Field as DataclassField
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cache, partial
from itertools import count
from typing import Any, get_args, get_origin
from weakref import WeakKeyDictionary, WeakValueDictionary

import hydra
from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from trieye.config.base import Marker, is_open, models_in, set_by
from trieye.config.hydra.keys import is_variant, tag_of
from trieye.config.hydra.prototype import Prototype

SCHEMA_NAME = "schema"
SCHEMA_FILE = f"{SCHEMA_NAME}.yaml"
BEFORE_1_4 = tuple(int(part) for part in hydra.__version__.split(".")[:2]) < (1, 4)
_REPLACE: dict[str, Any] = {} if BEFORE_1_4 else {"replace": True}  # 1.3 always replaces, 1.4 only if asked to

_Path = tuple[str, ...]  # keys that lead to a part of a config; "*" = the keys of a keyed collection
_NUMBERS = count()
_CLASSES: "WeakValueDictionary[str, type]" = WeakValueDictionary()
_NODES: "WeakKeyDictionary[type[BaseModel], tuple[ConfigNode, Prototype[DictConfig]]]" = WeakKeyDictionary()


def register_schema(config_type: type[BaseModel], *, run_name: str) -> None:
    """Store the schema of a config type as `schema`, which primary configs put first in their defaults list.

    Leaves have type `Any`, so that all type errors come from pydantic.

    Args:
        config_type: The model.
        run_name: Default of the key `run_name`.
    """
    config_store = ConfigStore.instance()
    if config_type not in _NODES:  # takes 10 times as long as a copy
        schema = _Derivation(config_type, {"run_name": run_name}).whole()  # the default of the model takes a name
        config_store.store(name=SCHEMA_NAME, node=schema, provider="trieye", **_REPLACE)
        stored = config_store.repo[SCHEMA_FILE]
        _NODES[config_type] = stored, Prototype(stored.node)
    stored, prototype = _NODES[config_type]
    node: Any = _NamedSchema(prototype, run_name)  # annotated as a `DictConfig`, and only copied
    config_store.repo[SCHEMA_FILE] = replace(stored, node=node)


@dataclass
class _NamedSchema:
    """A schema with a default of the key `run_name`; Hydra deep-copies it for each composition.

    A copy for each registration would take 5 ms more.

    Attributes:
        schema: The schema that all registrations of its config type share.
        run_name: The default.
    """

    schema: Prototype[DictConfig]
    run_name: str

    def __deepcopy__(self, memo: dict[int, Any]) -> DictConfig:
        copied_schema = self.schema.copy()
        copied_schema.run_name = self.run_name
        return copied_schema


def name_runs(run_name: str) -> None:
    """Change the default of the key `run_name` in the stored schema."""
    ConfigStore.instance().repo[SCHEMA_FILE].node.run_name = run_name


def defaults_of(model: type[BaseModel], overriding: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of a model as YAML values; `overriding` takes precedence over the model's defaults."""
    defaults: Any = OmegaConf.to_container(OmegaConf.structured(_Derivation(model, overriding).whole))
    return {str(key): value for key, value in defaults.items()}


class _Derived(type):
    """Metaclass of the derived dataclasses, which are pickled as their root model and path.

    cloudpickle would pickle them by value, which fails: in another process `dataclasses.MISSING` is another object. As
    attributes of this module they are pickled by `copyreg` instead.
    """

    origin_: tuple[type[BaseModel], _Path]  # not the name of any key


class _Part(metaclass=_Derived):
    """Base class of the derived dataclasses."""


def _reduced(part: _Derived) -> tuple[Any, ...]:
    return _part_of, part.origin_


copyreg.pickle(_Derived, _reduced)


def __getattr__(name: str) -> type:
    if name in _CLASSES:
        return _CLASSES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _part_of(root: type[BaseModel], path: _Path) -> type:
    """Return the dataclass of a part of a config; called when it is unpickled."""
    return _derivation_of(root).parts[path]


@cache
def _derivation_of(root: type[BaseModel]) -> "_Derivation":
    return _Derivation(root)


class _Derivation:
    """The dataclasses of a config type.

    Attributes:
        whole: The dataclass of the whole config.
        parts: The dataclass at each path.
    """

    def __init__(self, root: type[BaseModel], defaults: dict[str, Any] | None = None) -> None:
        self._root = root
        self.parts: dict[_Path, type] = {}
        self.whole = self._part(root, (), defaults or {})

    def _part(self, model: type[BaseModel], path: _Path, defaults: dict[str, Any]) -> type:
        """Return a dataclass with the fields of a model; `defaults` take precedence over the model's defaults."""
        infos = {name: info for name, info in model.model_fields.items() if not set_by(info)}
        members = [(name, *self._field(info, (*path, name), defaults)) for name, info in infos.items()]
        part: Any = make_dataclass(model.__name__, members, bases=(_Part,))
        part.origin_ = (self._root, path)
        part.__module__, part.__qualname__ = __name__, f"{model.__name__}_{next(_NUMBERS)}"
        dataclass: type = part
        _CLASSES[dataclass.__qualname__] = self.parts[path] = dataclass
        return dataclass

    def _field(self, info: FieldInfo, path: _Path, defaults: dict[str, Any]) -> tuple[Any, DataclassField[Any]]:
        default = defaults[path[-1]] if path[-1] in defaults else default_of(info)
        models, is_collection = models_in(info)
        if is_variant(info):
            # accepts any key: the composed config determines the model
            takes_keys = isinstance(default, dict) or (default == MISSING and tag_of(models) is not None)
            return Any, _open({}) if takes_keys else _constant(default)
        if not models:
            return Any, _open(default) if is_open(info) and isinstance(default, dict) else _constant(default)
        if is_collection:
            element = self._part(models[0], (*path, "*"), {})
            items = default.items() if isinstance(default, dict) else enumerate(default or ())
            return dict[str, element], _constant({str(key): _instance(element, item) for key, item in items})  # type: ignore[valid-type]  # created at run time
        if default is None:
            return Any, _constant(None)
        nested = self._part(models[0], path, default if isinstance(default, dict) else {})
        return nested, field(default_factory=nested)


def default_of(info: FieldInfo) -> Any:
    """Return the default of a field as a YAML value; `???` if it has none.

    For a nested model, only values that differ from the model's defaults: creating an instance would take 5 ms.
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
    """Convert a dict to an instance of a derived dataclass, as OmegaConf requires for structured defaults."""
    if is_dataclass(schema) and isinstance(values, dict):
        types = {item.name: item.type for item in fields(schema)}
        dataclass: Any = schema
        return dataclass(**{name: _instance(types[name], value) for name, value in values.items() if name in types})
    if get_origin(schema) is dict and isinstance(values, dict):
        return {name: _instance(get_args(schema)[1], value) for name, value in values.items()}
    return values


def _constant(value: Any) -> DataclassField[Any]:
    constant: DataclassField[Any] = field(default_factory=partial(copy, value))  # lists are not shared between configs
    return constant


def _open(values: dict[str, Any]) -> DataclassField[Any]:
    """Return a field with a dict that accepts new keys, although Hydra sets the struct flag on the config."""
    create: Any = partial(OmegaConf.create, values, flags={"struct": False})
    open_dict: DataclassField[Any] = field(default_factory=create)
    return open_dict
