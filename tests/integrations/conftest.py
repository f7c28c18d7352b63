"""Each test is a program of its own: without variables of the user, and the runs that it leaves open end with it."""

import os

import pytest

from trieye.integrations import opening, wandb


def end_program():
    """Close the runs like a program exit, so that the next lines act as its next start."""
    wandb.finish()
    for adopted in list(opening.AdoptedRun._open.values()):
        adopted.close()


@pytest.fixture(autouse=True)
def _own_program(monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_") or name in {opening.ROOT, opening.APP}]:
        monkeypatch.delenv(name)
    yield
    end_program()
