"""Public names of trieye, for type checkers and editors; `python tests/test_layout.py` writes it."""

from trieye.checkpoints.path_manager import PathManager as PathManager
from trieye.checkpoints.serializer import BufferData as BufferData
from trieye.checkpoints.serializer import CheckpointData as CheckpointData
from trieye.checkpoints.serializer import LoadedTrainingState as LoadedTrainingState
from trieye.checkpoints.serializer import Serializer as Serializer
from trieye.checkpoints.store import load_checkpoint as load_checkpoint
from trieye.config import AggregationMethod as AggregationMethod
from trieye.config import DEFAULT_METRICS as DEFAULT_METRICS
from trieye.config import DataSource as DataSource
from trieye.config import LogTarget as LogTarget
from trieye.config import MetricConfig as MetricConfig
from trieye.config import PersistenceConfig as PersistenceConfig
from trieye.config import StatsConfig as StatsConfig
from trieye.config import TrieyeConfig as TrieyeConfig
from trieye.config import XAxis as XAxis
from trieye.config.base import StrictModel as StrictModel
from trieye.config.base import did_you_mean as did_you_mean
from trieye.config.hydra.compose import compose as compose
from trieye.config.hydra.registration import register as register
from trieye.exceptions import CheckpointError as CheckpointError
from trieye.exceptions import ConfigurationError as ConfigurationError
from trieye.exceptions import ProcessingError as ProcessingError
from trieye.exceptions import RunClosedError as RunClosedError
from trieye.exceptions import RunInterrupted as RunInterrupted
from trieye.exceptions import RunLockedError as RunLockedError
from trieye.exceptions import SerializationError as SerializationError
from trieye.exceptions import TrieyeError as TrieyeError
from trieye.exceptions import UntrustedPickleError as UntrustedPickleError
from trieye.experiment.experiment import Experiment as Experiment
from trieye.experiment.experiment import run_experiment as run_experiment
from trieye.hub.actor import TrieyeActor as TrieyeActor
from trieye.hub.fold import ActorState as ActorState
from trieye.hub.logic import ActorLogic as ActorLogic
from trieye.hub.processor import LogContext as LogContext
from trieye.hub.processor import RawMetricEvent as RawMetricEvent
from trieye.hub.processor import StatsProcessor as StatsProcessor
from trieye.replay import ReplayBuffer as ReplayBuffer
from trieye.run.application import main as main
from trieye.run.recorder import RunClient as RunClient
from trieye.run.run import Run as Run
from trieye.run.saves import SaveHandle as SaveHandle
from trieye.snapshot.environments import EnvState as EnvState

__version__: str
