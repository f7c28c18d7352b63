"""A program of the generated project in the working directory, with another default in every field of its config.

`python changed_defaults.py agent=ppo` prints as JSON which keys of `--cfg job` differ from the changed default, and
which keys YAML files set.
"""

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

import trieye
from trieye.config.base import models_in, set_by
from trieye.config.hydra.keys import is_variant
from trieye.config.hydra.loader import ConfigSource, opened

NO_DEFAULTS = {
    "run_name", "persistence.app_name", "persistence.run_name", "persistence.MLFLOW_TRACKING_URI", "stats.metrics",
}  # fmt: skip
"""Generated for each run, set by other keys, computed, or stated in YAML as a whole."""


def changed(model: type[BaseModel], base: type[BaseModel] | None = None) -> type[BaseModel]:
    """Return a model with another default in every field that has one, and in every field of the models in it."""
    fields: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        models, many = models_in(info)
        if name == "agent":  # the newest direct subclass of each kind counts
            kinds = {kind: changed(kind, kind.__bases__[0]) for kind in models}
            default = kinds[type(info.get_default(call_default_factory=True))]
            fields[name] = (info.annotation, Field(default_factory=default.model_construct))
        elif models and not many and not is_variant(info):
            nested = changed(models[0])
            fields[name] = (nested, Field(default_factory=nested.model_construct))
        elif get_origin(info.annotation) is Literal and len(get_args(info.annotation)) == 1:
            fields[name] = (info.annotation, info.default)
        elif not info.is_required() and not set_by(info) and not many:
            fields[name] = (info.rebuild_annotation(), Field(default=_other(info)))
    return create_model(model.__name__, __base__=base or model, **fields)


def _other(info: FieldInfo) -> Any:
    """Return an allowed value that is not the default."""
    default = info.get_default(call_default_factory=True, validated_data={})
    adapter: TypeAdapter[Any] = TypeAdapter(info.rebuild_annotation())
    for candidate in _candidates(default, info.annotation):
        with contextlib.suppress(ValidationError):
            value = adapter.validate_python(candidate)
            if value != default:
                return value
    raise AssertionError(f"no other value for {info}")


def _candidates(default: Any, annotation: Any) -> Iterator[Any]:
    if isinstance(default, bool):
        yield not default
    elif isinstance(default, int | float):
        yield from (default + 1, default / 2, default - 1)
    yield from (choice for option in _options(annotation) for choice in get_args(option) if isinstance(choice, str))
    yield from (
        7,
        0.125,
        True,
        "other",
        "other:Name",
        "file:///other",
        "rows.npz",
        "cpu",
        ["other"],
        [7],
        {"other": "x"},
        {"other": 7},
        {"other": None},
    )
    yield from ([{"name": "other"}], ["mlflow"])


def _options(annotation: Any) -> Sequence[Any]:
    is_union = get_origin(annotation) in {Union, UnionType}
    return get_args(annotation) if is_union else [annotation]


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value with the keys that lead to it."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from leaves(value, (*path, str(key)))
    else:
        yield path, values


def main() -> None:
    """Compose a config, and print its differences from the changed defaults."""
    from my_agent.config import TrainConfig

    config_type, overrides = changed(TrainConfig), sys.argv[1:]
    conf, agent = str(Path.cwd() / "conf"), overrides[0].partition("=")[2]

    def train(config: Any) -> None: ...

    train.__annotations__["config"] = config_type
    sys.argv = ["train.py", "--cfg", "job", *overrides]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        trieye.main(config_path=conf)(train)()
    printed_config = dict(leaves(yaml.safe_load(printed.getvalue())))
    with opened(ConfigSource(conf, "train"), config_type, run_name="x") as loader:
        contents = [values for _, values in loader.contents(overrides) if "hydra" not in values]
    stated = {".".join(path) for values in contents for path, value in leaves(values) if value != {}}
    kinds = models_in(config_type.model_fields["agent"])[0]
    kind = next(kind for kind in kinds if kind.model_fields["kind"].default == agent)
    defaults = {
        **to_jsonable_python(config_type.model_construct()),
        "agent": to_jsonable_python(kind.model_construct()),
    }
    expected = {path: value for path, value in leaves(defaults) if ".".join(path) not in {*stated, *NO_DEFAULTS}}
    wrong = {path: value for path, value in expected.items() if printed_config.get(path) != value}
    differing = {".".join(path): [value, printed_config.get(path)] for path, value in wrong.items()}
    print(json.dumps({"differing": differing, "num": len(expected), "stated": sorted(stated)}))  # noqa: T201


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())
    main()
