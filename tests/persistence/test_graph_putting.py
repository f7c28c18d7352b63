import subprocess
from collections import namedtuple

import gymnasium as gym
import numpy as np
import pytest

from trieye.exceptions import SerializationError
from trieye.persistence.environments import EnvState

ran = []


class Plain(gym.Env):
    """An environment with one attribute."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 1, (1,))
    value = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.value = 0
        return np.zeros(1), {}

    def destroy(self, *_):
        """What no file may choose to be called."""
        ran.append("destroy")


class Closing:
    """What no file may make: deleting it does something."""

    def __del__(self):
        ran.append("__del__")


class Local(namedtuple("Local", "x")):  # noqa: SLOT002, PYI024 - what a user might write
    """A named tuple."""


def state_with(*entries, value=None, **root):
    """Return the state of a `Plain` whose attribute is the second entry, or what is given."""
    env = Plain()
    env.reset(seed=1)
    state = EnvState(env).state_dict()
    number = len(state["entries"])
    state["entries"] += entries
    state["entries"][0]["attributes"]["value"] = {"at": number} if value is None else value
    state["entries"][0].update(root)
    return state


def number_of_entries():
    return len(state_with(value=0)["entries"])


def made(name):
    return {"kind": "object", "class": name, "attributes": {}, "kept": [], "own": None}


@pytest.mark.parametrize(
    "state",
    [
        state_with(made("subprocess:Popen")),
        state_with(made("threading:Thread")),
        state_with(made("numpy:ndarray")),
        state_with(made(f"{__name__}:Closing")),
        state_with(made(f"{__name__}:Missing")),
        state_with(made("no_such_module:Thing")),
        state_with(value={"enum": "subprocess:Popen", "member": "x"}),
        state_with(value={"tuple": [1], "class": "subprocess:Popen"}),
        state_with(value={"tuple": [1], "class": "os:stat_result"}),
        state_with(value={"constant": "os:system"}),
        state_with({"kind": "function", "name": "os:system", "cells": []}),
        state_with({"kind": "method", "name": "Plain.destroy", "self": {"at": 0}}),
        state_with({"kind": "partial", "function": {"constant": "os:system"}, "arguments": ["ls"], "keywords": []}),
        state_with({"kind": "defaultdict", "factory": "exec", "items": []}),
        state_with({"kind": "eval", "items": []}),
        state_with({"kind": "generator", "state": {"generator": "os.system"}}),
        state_with(own={"take": "destroy", "state": None}),
        state_with(value={"at": 99}),
        state_with(
            {"kind": "array", "array": np.zeros(4), "axes": [0], "writeable": True},
            {
                "kind": "view",
                "owner": {"at": number_of_entries()},
                "offset": 0,
                "like": np.zeros(0),
                "shape": (9,),
                "strides": (8,),
            },
            value={"at": number_of_entries() + 1},
        ),
    ],
    ids=range(19),
)
def test_a_planted_state_makes_and_calls_nothing_but_data(state, monkeypatch):
    def forbidden(*arguments, **_):
        raise AssertionError(arguments)

    monkeypatch.setattr(subprocess.Popen, "__init__", forbidden)
    ran.clear()
    with pytest.raises(SerializationError, match="does not fit this environment"):
        EnvState(Plain()).load_state_dict(state)
    assert ran == []


def test_the_state_that_those_were_made_of_is_a_good_one():
    env = Plain()
    EnvState(env).load_state_dict(state_with({"kind": "list", "items": [1, {"tuple": [2], "class": None}]}))
    assert env.value == [1, (2,)]
    named = f"{__name__}:Local"
    EnvState(env).load_state_dict(state_with(value={"tuple": [3], "class": named}))
    assert env.value == Local(3)
    assert type(env.value) is Local
