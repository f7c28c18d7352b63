"""Background evaluation of checkpoints, in a Ray actor or in a thread."""

from collections.abc import Mapping
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
from trieye.training.exploring.places import ThreadWorker, WorkerHandle
from trieye.training.policy import Policy


class CheckpointEvaluator:
    """Evaluates checkpoints of an engine on the CPU, from the same initial states each time.

    Args:
        config: Config of the run.
        policy: Class of the policy.
    """

    def __init__(self, config: Any, policy: type[Policy]) -> None:
        self._config = config
        self._policy = policy(config, spaces_of_config(config.env))
        self._evaluation = Evaluation(config.env)

    def evaluate(self, checkpoint: str) -> dict[str, float]:
        """Return the metrics that `TrainEngine.evaluate` would return in the saved state."""
        if self._config.agent.num_threads:
            torch.set_num_threads(self._config.agent.num_threads)
        objects = decode(load_state(Path(checkpoint)), copy=False)["objects"]
        state = objects["experiment"]["state"]
        self._policy.load_state_dict(state["policy"])
        env_steps = int(objects["loop"][self._config.schedule_axis])
        episodes = self._config.env.eval_episodes
        return summary(self._evaluation.play(self._policy, episodes, env_steps=env_steps))

    def cancel(self) -> None:
        """Cancel the current evaluation."""
        self._evaluation.is_cancelled = True


class Evaluator:
    """Starts a `CheckpointEvaluator` on first use, restarts it if it died, and forwards checkpoints to it.

    Args:
        config: Config of the run; `runtime` selects a thread or a Ray actor.
        policy: Class of the policy.
    """

    def __init__(self, config: Any, policy: type[Policy]) -> None:
        self._config, self._make = config, partial(CheckpointEvaluator, config, policy)
        self._worker: WorkerHandle | None = None
        self._last: Future[Mapping[str, float]] | None = None

    def begin(self, checkpoint: Path) -> "Future[Mapping[str, float]]":
        """Start the evaluation of a checkpoint; the future raises `ConnectionError` if the process died."""
        if self._last is not None and self._last.done() and isinstance(self._last.exception(), ConnectionError):
            self.close()
        if self._worker is None and self._config.runtime.kind == "local":
            with preserved_generators():  # the policy's constructor draws initial weights from the global generators
                evaluator = self._make()
            self._worker = ThreadWorker(lambda: evaluator, "trieye-evaluation")
        elif self._worker is None:
            from trieye.training.exploring.in_ray import start_evaluator

            self._worker = start_evaluator(self._make)
        self._last = self._worker.begin("evaluate", str(checkpoint))
        return self._last

    def close(self) -> None:
        """Stop the evaluator."""
        if self._worker is not None:
            self._worker.kill()
        self._worker = self._last = None
