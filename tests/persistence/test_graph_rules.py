import collections
import functools
import importlib.machinery
import logging
import random
import subprocess
import sys
import threading
import types
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import pytest

from trieye.persistence import graph_rules as rules


@dataclass(slots=True)
class Slots:
    a: int
    b: list


class Mixed(Slots):
    """With a dictionary beside the slots."""


class Private:
    __slots__ = ("__hidden",)

    def __init__(self):
        self.__hidden = 1


class Weak:
    __slots__ = ("__weakref__", "a")


@pytest.mark.parametrize("cls", [Slots, Mixed, Private, Weak, gym.Wrapper, types.SimpleNamespace])
def test_classes_written_in_python_are_all_attributes(cls):
    assert rules.is_all_attributes(cls)


@pytest.mark.parametrize(
    "cls",
    [
        dict, list, np.ndarray, np.random.Generator, threading.Thread,
        subprocess.Popen, logging.Handler, ValueError, random.Random, functools.partial,
    ],
)  # fmt: skip
def test_classes_with_more_than_attributes_are_known(cls):
    assert not rules.is_all_attributes(cls)
    bases = () if cls is np.random.Generator else (cls,)
    assert rules.is_all_attributes(type("Own", bases, {})) is (not bases)


def test_attributes_are_found_in_dictionaries_in_slots_and_on_the_class_of_an_environment():
    mixed = Mixed(1, [2])
    mixed.c = 3
    assert rules.attributes(mixed) == {"a": 1, "b": [2], "c": 3}
    assert rules.attributes(Private()) == {"_Private__hidden": 1}

    class Env(gym.Env):
        action_space = gym.spaces.Discrete(2)
        table = (1, 2)

    env = Env()
    assert rules.attributes(env) == {"action_space": Env.action_space}
    env.action_space = gym.spaces.Discrete(3)
    assert rules.attributes(env) == {"action_space": env.action_space}


def test_a_class_is_found_by_its_name_only_where_it_is_loaded_and_says_so_itself():
    assert rules.find_class(rules.class_name(Slots)) is Slots
    assert rules.find_class("collections:OrderedDict") is collections.OrderedDict
    assert rules.find_class(f"{__name__}:OrderedDict") is None
    assert rules.find_class("json.tool_that_nobody_imported:Tool") is None
    assert rules.find_class(f"{__name__}:Slots.a") is None

    class Local:
        """In a function, where nobody finds it."""

    assert rules.find_class(rules.class_name(Local)) is None


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (len, "len"),
        (np.add, "<ufunc 'add'>"),
        (np.dtype("i4"), "dtype('int32')"),
        (Slots, f"{__name__}:Slots"),
        (random, "random"),
        (rules.find_class, "trieye.persistence.graph_rules:find_class"),
        (logging.getLogger("a.b"), "a.b"),
        ([].append, None),
        (3, None),
        (None, None),
    ],
    ids=["builtin", "ufunc", "dtype", "class", "module", "function", "logger", "method", "number", "none"],
)
def test_constants_have_a_name(value, name):
    assert rules.constant_name(value) == name


def test_compiled_modules_are_no_constants_but_pythons_own_are():
    compiled = types.ModuleType("engine")
    compiled.__file__ = "engine" + importlib.machinery.EXTENSION_SUFFIXES[0]
    assert rules.constant_name(compiled) is None
    assert rules.constant_name(sys) == "sys"


def test_what_only_shows_an_environment_is_told_by_its_package():
    surface = type("Surface", (), {"__module__": "pygame.surface"})()
    assert rules.is_shown(surface)
    assert rules.is_shown([surface, {"a": surface}])
    assert not rules.is_shown([surface, 3])
    assert not rules.is_shown([])
