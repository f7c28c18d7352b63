"""Evaluating checkpoints beside training: in a Ray actor, or in a thread; what runs there knows nothing of it."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trieye.checkpoints.directory import load_state
from trieye.snapshot.decode import decode
from trieye.snapshot.generators import preserved_generators
from trieye.training.environments import spaces_of_config
from trieye.training.evaluation import Evaluation, summary
from trieye.training.exploring.places import ThreadWorker, Worker
from trieye.training.policy import Policy


class CheckpointEvaluator:
    """Evaluates checkpoints of an engine on the CPU, from the same starts each time.

    Args:
        config: Of the run.
        policy: Class of the policy.
    """

    def __init__(self, config: Any, policy: type[Policy]) -> None:
        self._config = config
        self._policy = policy(config, spaces_of_config(config.env))
        self._evaluation = Evaluation(config.env)

    def evaluate(self, checkpoint: str) -> dict[str, float]:
        """Return what `TrainEngine.evaluate` would return in the state that was saved."""
        if self._config.agent.num_threads:
            torch.set_num_threads(self._config.agent.num_threads)
        saved = decode(load_state(Path(checkpoint)), copy=False)["objects"]
        state = saved["experiment"]["state"]
        self._policy.load_state_dict(state["policy"])
        env_steps = int(saved["loop"][self._config.schedule_axis])
        episodes = self._config.env.eval_episodes
        return summary(self._evaluation.play(self._policy, episodes, env_steps=env_steps))

    def cancel(self) -> None:
        """Leave the evaluation that is under way."""
        self._evaluation.is_cancelled = True


class Evaluator:
    """The way to a `CheckpointEvaluator`, which is started when it is needed, and again if it died.

    Args:
        config: Of the run; its `runtime` says where.
        policy: Class of the policy.
    """

    def __init__(self, config: Any, policy: type[Policy]) -> None:
        self._config, self._make = config, partial(CheckpointEvaluator, config, policy)
        self._worker: Worker | None = None
        self._last: Future[Mapping[str, float]] | None = None

    def begin(self, checkpoint: Path) -> "Future[Mapping[str, float]]":
        """Begin to evaluate a checkpoint; the future raises `ConnectionError` if the process died."""
        if self._last is not None and self._last.done() and isinstance(self._last.exception(), ConnectionError):
            self.close()
        if self._worker is None:
            self._worker = _started(self._config, self._make)
        self._last = self._worker.begin("evaluate", str(checkpoint))
        return self._last

    def close(self) -> None:
        """End what evaluates."""
        if self._worker is not None:
            self._worker.kill()
        self._worker = self._last = None


def _started(config: Any, make: Callable[[], CheckpointEvaluator]) -> Worker:
    if config.runtime.kind == "local":
        with preserved_generators():  # a policy draws its initial weights from the training's generators
            evaluator = make()
        return ThreadWorker(lambda: evaluator, "trieye-evaluation")
    from trieye.training.exploring.in_ray import start_evaluator

    return start_evaluator(make)
