"""An engine whose first background evaluation is killed, in a module that other processes can import."""

import os
import signal
from pathlib import Path

from tests.training.algorithms import DQN, QPolicy
from trieye.training.evaluating import CheckpointEvaluator


class Killed(QPolicy):
    """Kills the process of its first background evaluation."""

    def act(self, obs, state, ctx):
        flag = os.environ.get("FIRST_EVALUATION")
        if not ctx.explore and flag and Path(flag).exists():
            Path(flag).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().act(obs, state, ctx)


class Killing(DQN, policy=Killed):
    def setup(self, config):
        super().setup(config)
        (self.run.dir / "flag").touch()

    def evaluate_saved(self, checkpoint):
        self._evaluator._make = Flagged(self.config, Killed, self.run.dir / "flag")
        return super().evaluate_saved(checkpoint)


class Flagged:
    def __init__(self, config, policy, flag):
        self.arguments, self.flag = (config, policy), flag

    def __call__(self):
        os.environ["FIRST_EVALUATION"] = str(self.flag)
        return CheckpointEvaluator(*self.arguments)
