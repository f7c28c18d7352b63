"""Lookup of fields and models of a config type by dotted keys; variants and their kinds."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trieye.config.base import is_open, models_in, optional_items, takes_text_only, takes_values

Models = Sequence[type[BaseModel]]


def field_at(model: type[BaseModel], path: Sequence[str]) -> FieldInfo | None:
    """Return the field at a path of keys, or None if there is no such field."""
    holders = models_at(model, path[:-1]) if path else []
    return next((holder.model_fields[path[-1]] for holder in holders if path[-1] in holder.model_fields), None)


def models_at(model: type[BaseModel], path: Sequence[str]) -> Models:
    """Return the models at a path of keys: one, all models of a variant, or none if the path is not a config model."""
    return _models_at(model, tuple(path))


@cache  # a config has many keys below each path
def _models_at(model: type[BaseModel], path: tuple[str, ...]) -> Models:
    holders: Models = [model]
    steps = iter(path)
    for name in steps:
        info = next((holder.model_fields[name] for holder in holders if name in holder.model_fields), None)
        holders, is_collection = models_in(info) if info is not None else ([], False)
        if info is not None and not holders:
            holders = optional_items(info)
            is_collection = bool(holders)
        if is_collection and next(steps, None) is None:
            return []
    return holders


def item_at(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel] | None:
    """Return the model of the items of a keyed collection at a path of keys, or None if it is not a collection."""
    info = field_at(model, path)
    models, is_collection = models_in(info) if info is not None else ([], False)
    return models[0] if is_collection else None


def is_in_variant(model: type[BaseModel], path: Sequence[str]) -> bool:
    """Return True if a path of keys leads to or into a variant."""
    infos = (field_at(model, path[:depth]) for depth in range(1, len(path) + 1))
    return any(info is not None and is_variant(info) for info in infos)


def holds_text(model: type[BaseModel], path: Sequence[str]) -> bool:
    """Return True if the value at a path of keys can only be text, including items of a dict of texts."""
    info, holder = field_at(model, path), field_at(model, path[:-1])
    if info is None and holder is not None and is_open(holder):
        # the annotation may be `dict[str, str] | None`
        dicts = [holder.annotation, *get_args(holder.annotation)]
        return any(get_origin(option) is dict and takes_text_only(get_args(option)[1]) for option in dicts)
    return info is not None and takes_text_only(info.annotation)


def paths_below(models: Models) -> list[tuple[str, ...]]:
    """Return the paths of all keys nested in the models, without the models' own keys and keyed collections."""
    return list(dict.fromkeys(_paths_below(models)))  # the models of a variant share keys


def _paths_below(models: Models) -> Iterator[tuple[str, ...]]:
    for name, info in (item for model in models for item in model.model_fields.items()):
        inner_models, is_collection = models_in(info)
        if not is_collection:
            yield from ((name, key) for model in inner_models for key in model.model_fields)
            yield from ((name, *path) for path in _paths_below(inner_models))


def keys_named(name: str, model: type[BaseModel]) -> list[str]:
    """Return the nested keys of a model with a name, such as `optimizer.lr` for `lr`."""
    return [".".join(path) for path in paths_below([model]) if path[-1] == name]


_SYNONYMS = {
    "buffer_size": "replay.capacity", "clip_coef": "clip_range", "discount": "gamma", "entropy_coef": "ent_coef",
    "env_id": "env.id", "eval_freq": "loop.evaluate_every_steps", "exploration": "epsilon",
    "exploration_fraction": "epsilon", "exploration_final_eps": "epsilon", "exploration_initial_eps": "epsilon",
    "gradient_steps": "updates_per_env_step", "learning_rate": "lr", "n_envs": "env.num", "n_epochs": "epochs",
    "n_step": "replay.n_step", "n_steps": "rollout_steps", "num_envs": "env.num", "num_steps": "rollout_steps",
    "save_freq": "persistence.checkpoint_save_freq_steps", "target_network_frequency": "target_update_interval",
    "timesteps": "loop.env_steps", "total_timesteps": "loop.env_steps", "train_freq": "rollout_steps",
    "update_epochs": "epochs", "value_coef": "vf_coef",
}  # fmt: skip
"""Names in stable-baselines3, CleanRL and other libraries, and the key of trieye or of a generated project."""


def keys_meant(name: str, root: type[BaseModel], parents: Sequence[str] = (), holders: Models = ()) -> list[str]:
    """Return the keys of this config that other libraries call `name`; none if there are none.

    Args:
        name: Last part of the key as typed.
        root: The model of the whole config.
        parents: Parent keys as typed; only a synonym with a full path may refer to a key elsewhere.
        holders: The models at the parent keys.
    """
    path = _SYNONYMS.get(name, "").split(".")
    if len(path) > 1:
        return [".".join(path)] if field_at(root, path) else []
    if parents:
        return [".".join((*parents, *path))] if any(path[0] in holder.model_fields for holder in holders) else []
    return keys_named(path[0], root)


def is_variant(info: FieldInfo) -> bool:
    """Return True if a field is a variant: one of several models, or a model or a plain value."""
    models, is_collection = models_in(info)
    return not is_collection and (len(models) > 1 or (len(models) == 1 and takes_values(info)))


def tag_of(models: Models) -> str | None:
    """Return the key that discriminates models: a `Literal` in each, without common values; None if there is none."""
    names = models[0].model_fields if len(models) > 1 else ()
    return next((name for name in names if _are_disjoint([_literals(model, name) for model in models])), None)


def by_tag(models: Models) -> dict[str, type[BaseModel]]:
    """Return the models by the values of their discriminator, such as `dqn`; empty if they have none."""
    tag = tag_of(models)
    return {} if tag is None else {value: model for model in models for value in _literals(model, tag)}


def meant(models: Models, values: Any) -> Models:
    """Return the model that the discriminator in `values` selects; all models without one, none if it is unknown."""
    tag = tag_of(models)
    if tag is None or not isinstance(values, Mapping) or values.get(tag) is None:
        return models
    model = by_tag(models).get(str(values[tag]))
    return [model] if model is not None else []


def _literals(model: type[BaseModel], name: str) -> list[str]:
    info = model.model_fields.get(name)
    is_literal = info is not None and get_origin(info.annotation) is Literal
    return [str(value) for value in get_args(info.annotation)] if info is not None and is_literal else []


def _are_disjoint(values: Sequence[Sequence[str]]) -> bool:
    all_values = [value for each in values for value in each]
    return all(values) and len(all_values) == len(set(all_values))
