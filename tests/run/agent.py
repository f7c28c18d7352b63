"""Agents and sinks for trainings in these tests, in this process and in separate programs."""

import numpy as np


class Agent:
    def __init__(self) -> None:
        self.weights = np.zeros(3)

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        self.weights = state["weights"]


class Lines:
    """A user-defined sink that writes a line for each point."""

    name = "lines"

    def __init__(self, path):
        self.path = path

    def open(self, run):
        self.file = self.path.open("a")

    def write(self, points):
        self.file.writelines(f"{point.metric} {point.step} {point.value}\n" for point in points)

    def close(self, status):
        self.file.write(f"{status}\n")
        self.file.close()
