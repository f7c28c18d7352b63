"""train, evaluate and bench: entry points of a project's commands; engines are imported only when needed."""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from trieye.checkpoints.store import CheckpointStore, Which, load_checkpoint
from trieye.config.locations import checkpoint_reference
from trieye.config.root import TrieyeConfig
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.files.atomic import write_atomic
from trieye.files.run_files import RunFiles
from trieye.process.progress import say
from trieye.runs.finding import RunReference
from trieye.training.config import TrainingConfig
from trieye.training.seeds import FRESH_SEED
from trieye.tune.launch import run_experiment

if TYPE_CHECKING:
    from trieye.training.evaluation import Episode


def train(config: TrieyeConfig) -> float | None:
    """Run `config.mode` with the class named by `config.agent.engine`.

    Args:
        config: The config of the run.

    Returns:
        The best value of `loop.objective`, which sweeps compare; None without one, as with `mode=explore`.

    Raises:
        ConfigurationError: The class does not exist, or the config sets no limit.
        CheckpointError: A checkpoint does not match, or cannot be saved.
        RunInterrupted: A signal asked the run to stop; its state is saved.
    """
    agent: Any = getattr(config, "agent", None)
    if agent is None or not hasattr(agent, "engine"):
        raise ConfigurationError(f"train(): {type(config).__name__} has no agent.engine; derive it from TrainingConfig")
    if isinstance(config, TrainingConfig) and config.mode == "bench":
        return bench(config)
    if isinstance(config, TrainingConfig) and config.mode == "explore":
        from trieye.training.exploring.gathering import explore

        explore(config)
        return None
    return run_experiment(agent.engine, config).objective  # a name: a finished run is reported without importing torch


def evaluate(
    run: RunReference,
    which: Which = "best",
    *,
    episodes: int = 20,
    first_seed: int = FRESH_SEED,
    video: str | Path | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Play whole episodes with the policy of a run, without exploration; the run is not modified.

    If the config of the run has the key `evaluator`, such as `my_agent.sb3:evaluate`, the function that it names is
    called instead, with the same arguments. It may omit figures, and all keys before `return_mean`.

    Args:
        run: A stored run, its directory, or its name: `run` or `app/run`.
        which: `best` (the latest checkpoint if none was rated), `latest`, or a step.
        episodes: Number of episodes.
        first_seed: Seed of the first episode; the following seeds count up from it.
        video: Path of a GIF of the first episode, thinned out until it takes at most 16 MiB; None writes no video.
        device: Device of the policy: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`.

    Returns:
        `run`, `checkpoint` (its path), `is_best` (False if it is only the latest), `step`, `episodes`, `return_mean`,
        `return_std`, `return_min`, `return_max`, `length_mean`, `returns` (one per episode, in the order of seeds), and
        the mean of each metric of `Policy.on_episode`.

    Raises:
        CheckpointError: The checkpoint does not exist, or no engine saved it.
        ConfigurationError: The run's engine, its environment, the device or the directory of `video` does not exist, or
            a number is too small.
    """
    _check_arguments(episodes, first_seed, video)
    import numpy as np

    from trieye.training.evaluation import Evaluation, summary
    from trieye.training.loading import directory_of, evaluator_of, policy_of, recorded_config

    run_dir = directory_of(run)
    checkpoint = load_checkpoint(run_dir, which)
    header = {
        "run": run_dir.resolve().name,
        "checkpoint": str(checkpoint.path),
        "is_best": which == "best" and checkpoint.objective is not None,
        "step": checkpoint.step,
        "episodes": episodes,
    }
    evaluator = evaluator_of(recorded_config(run_dir, checkpoint))
    if evaluator is not None:
        return header | evaluator(run_dir, which, episodes=episodes, first_seed=first_seed, video=video, device=device)
    policy = policy_of(run_dir, checkpoint, device)
    with closing(Evaluation(policy.config.env)) as evaluation, _threads(policy.agent.num_threads):
        played_episodes = evaluation.play(
            policy,
            episodes,
            env_steps=policy.schedule_step,
            first_seed=first_seed,
            with_frames=video is not None,
        )
    if video is not None:
        _write_gif(Path(video), played_episodes[0])
    returns = np.array([episode.total for episode in played_episodes])
    metrics = {name.partition("/")[2]: value for name, value in summary(played_episodes).items()}
    return {
        **header,
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": metrics.pop("length"),
        **{name: value for name, value in metrics.items() if name not in {"return", "return_std"}},
        "returns": returns.tolist(),
    }


def _check_arguments(episodes: int, first_seed: int, video: str | Path | None) -> None:
    """Raise for arguments that would fail after the first episode, or with an error of a library."""
    for name, value, minimum in (("episodes", episodes, 1), ("first_seed", first_seed, 0)):
        if value < minimum:
            raise ConfigurationError(f"evaluate({name}={value}): {name} must be at least {minimum}")
    if video is not None and not (directory := Path(video).parent).is_dir():
        raise ConfigurationError(f"evaluate(video={str(video)!r}): {directory} is not a directory; create it first")
    if video is not None and Path(video).is_dir():
        raise ConfigurationError(f"evaluate(video={str(video)!r}) is a directory; name a file in it")


@contextmanager
def _threads(num_threads: int) -> Iterator[None]:
    """Let torch compute with `num_threads` threads, as in a training; 0 leaves their number as it is."""
    import torch

    old_num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads or old_num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(old_num_threads)


def bench(config: TrainingConfig) -> float:
    """Evaluate checkpoints of the run named by `config.run_name`, and write the results to its `bench.json`.

    Returns:
        The best mean return; NaN if no checkpoint has one.

    Raises:
        CheckpointError: The run has no checkpoint, or none matches `bench.checkpoints`.
    """
    run_dir = RunFiles(config.persistence).run_base_dir
    selected_checkpoints = _selected_checkpoints(run_dir, config.bench.checkpoints)
    reports: list[dict[str, Any]] = []
    for index, which in enumerate(selected_checkpoints, 1):
        report = evaluate(run_dir, which, episodes=config.bench.episodes)
        reports.append(report)
        spread = f"{report['return_mean']:.1f} (standard deviation {report['return_std']:.1f})"
        say(f"{run_dir.name}, step {report['step']} ({index} of {len(selected_checkpoints)}): return {spread}")
    path = run_dir / "bench.json"
    write_atomic(path, to_json(reports, indent=1, inf_nan_mode="null"))
    say(f"wrote {path}: {len(reports)} checkpoints, {config.bench.episodes} episodes each")
    means = (float(report["return_mean"]) for report in reports)
    return max((mean for mean in means if not math.isnan(mean)), default=math.nan)


def _selected_checkpoints(run_dir: Path, which: str) -> list[Which]:
    """Return the checkpoints selected by `latest`, `best`, `step:N`, `each`, or a pattern of their names."""
    reference = checkpoint_reference(which)
    if reference is not None and reference.run_name is None:
        return [reference.which]
    entries = CheckpointStore(run_dir / "checkpoints", read_only=True).entries()
    if not entries:
        raise CheckpointError(f"{run_dir} has no checkpoints; select a run with run_name=NAME")
    matches: list[Which] = [entry.step for entry in entries if which == "each" or fnmatchcase(entry.path.name, which)]
    if not matches:
        names = ", ".join(entry.path.name for entry in entries)
        raise CheckpointError(f"bench.checkpoints={which} matches no checkpoint of {run_dir} (choose from: {names})")
    return matches


def _write_gif(path: Path, episode: "Episode") -> None:
    from trieye.run.video import video

    write_atomic(path, episode.encoded(partial(video, "episode", format="gif", step=0, time=0.0)).content)
    say(f"wrote {path}")
