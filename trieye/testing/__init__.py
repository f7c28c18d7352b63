"""Fakes and contract tests for extensions of trieye; the import requires neither pytest nor torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trieye.renames import no_attribute
from trieye.testing.experiment_contract import ExperimentContract
from trieye.testing.sink_contract import SinkContract
from trieye.testing.sinks import FlakySink, MemoryHistory, MemorySink, make_run_info

if TYPE_CHECKING:
    from trieye.testing.training_contracts import (
        PolicyContract,
        SamplingContract,
        TrainEngineContract,
        TransportContract,
    )

__all__ = [
    "ExperimentContract",
    "FlakySink",
    "MemoryHistory",
    "MemorySink",
    "PolicyContract",
    "SamplingContract",
    "SinkContract",
    "TrainEngineContract",
    "TransportContract",
    "make_run_info",
]


def __getattr__(name: str) -> Any:
    if name in __all__:  # torch takes seconds to import, and tests of sinks do not need it
        return getattr(import_module("trieye.testing.training_contracts"), name)
    raise no_attribute(__name__, name)
