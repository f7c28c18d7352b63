"""Arguments of `save_training_state` of the drop-in API."""

from typing import Any


def training_state(step: int = 3, **changes: Any) -> dict[str, Any]:
    """Return all arguments for a small state; its buffer has an item per step and is not saved."""
    numbers = {"global_step": step, "episodes_played": 2, "total_simulations_run": 7}
    state = {"nn_state_dict": {"w": 1.0}, "optimizer_state_dict": {"lr": 0.1}, "buffer_content": [*range(step)]}
    dicts = {"model_config_dict": {"layers": 2}, "env_config_dict": None, "user_data": None}
    return {**numbers, **state, **dicts, "is_best": False, "save_buffer": False, **changes}
