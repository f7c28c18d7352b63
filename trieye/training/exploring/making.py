"""Creates explorers, their transport, queue and replay from the config."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trieye.config.replay import ReplayConfig
from trieye.files.run_files import RunFiles
from trieye.process.stopping import StopRequest
from trieye.replay.fragments import FragmentRules
from trieye.replay.remote import LocalChannel, RemoteReplay, ReplayServer, Writer
from trieye.replay.remote.channel import ReplayChannel
from trieye.replay.remote.handle import shared_arguments
from trieye.training.config import project_class
from trieye.training.exploring.experience import RemoteExperience
from trieye.training.exploring.explorer import Task
from trieye.training.exploring.explorers import Explorers
from trieye.training.exploring.inbox import Fragments, Reports
from trieye.training.exploring.places import ExplorerPool, ThreadExplorerPool
from trieye.training.exploring.transports import CheckpointTransport, LocalTransport, Transport
from trieye.training.finite import OnNonfinite
from trieye.training.policy import Policy


def make_explorers(
    config: Any,
    policy: Policy,
    replay: ReplayConfig | None,
    on_nonfinite: OnNonfinite | None = None,
    stop: StopRequest | None = None,
) -> tuple[Explorers, RemoteExperience | None]:
    """Create explorers, which start with the first `collect`, and the replay that they fill.

    Args:
        config: Config of the run, a `TrainingConfig`.
        policy: Policy of the learner; explorers have policies of the same class.
        replay: Config of the replay; None: rows travel to the learner.
        on_nonfinite: Handles the non-finite rows that explorers report.
        stop: The stop request of the run.
    """
    in_threads = config.runtime.kind == "local"
    pool, transport = pool_and_transport(config, policy.device)  # first, because it starts Ray
    experience = None if replay is None else _make_experience(config, replay, in_threads=in_threads)
    if config.sync.transport == "checkpoint":
        transport = CheckpointTransport(
            RunFiles(config.persistence).weights_dir, keep=config.explorer.max_in_flight + 1
        )
    if config.sync.transport == "collective":
        transport = _make_collective(config, policy)
    if ":" in config.sync.transport:
        transport = project_class("sync.transport", config.sync.transport)(config)
    task = Task(
        config=config,
        policy=type(policy),
        spaces=policy.spaces,
        transport=transport,
        make_writer=None if experience is None else partial(Writer, experience.channel),
    )
    queue = _make_queue(config, policy, experience)
    explorers = Explorers(
        task,
        pool,
        queue,
        policy,
        on_nonfinite=on_nonfinite,
        leave=(lambda _: None) if experience is None else experience.leave,
        stop=stop,
    )
    return explorers, experience


def _make_queue(config: Any, policy: Policy, experience: RemoteExperience | None) -> Reports | Fragments:
    """Create the queue of results, whose rows are in the replay, in a fragment buffer, or in the results."""
    max_staleness = None if config.sync.style == "fixed" else config.sync.max_staleness
    if experience is not None:
        is_bounded = config.replay.max_staleness is not None
        publish_version = experience.set_version if is_bounded else lambda _: None
        return Reports(config.env.num, policy.device, publish_version=publish_version)
    if config.replay.kind == "fragment":
        values = {key: item for key, item in config.replay.fragment_rules.items() if item is not None}
        rules, min_capacity = FragmentRules(**{"max_staleness": max_staleness, **values}), config.min_waiting_fragments
        return Fragments(rules, config.run_name, policy.device, seed=config.seed, min_capacity=min_capacity)
    return Reports(config.env.num, policy.device, max_staleness=max_staleness)  # each used once, and none too stale


def pool_and_transport(config: Any, learner: torch.device | None = None) -> tuple[ExplorerPool, Transport]:
    """Return the explorer pool of a config and its default transport; start Ray if necessary.

    Args:
        config: Config of the run.
        learner: Device of the learner, reserved in Ray if explorers use whole GPUs.

    Raises:
        ConfigurationError: No GPU remains for an explorer.
    """
    if config.runtime.kind == "local":
        return ThreadExplorerPool(), LocalTransport()
    from trieye.hub.ray_start import join_ray
    from trieye.training.exploring.in_ray import ObjectStoreTransport, RayExplorerPool

    join_ray(config.runtime)
    options = config.explorer
    pool = RayExplorerPool(
        options.placement, num_cpus=options.num_cpus, num_gpus=options.num_gpus, resources=options.resources or None
    )
    if learner is not None and learner.type == "cuda" and options.num_gpus >= 1:
        from trieye.training.exploring.ray_gpu import reserve_gpu

        pool.learner_gpu = reserve_gpu(learner.index or 0, options.num_gpus)
    return pool, ObjectStoreTransport()


def _make_collective(config: Any, policy: Policy) -> Transport:
    from trieye.training.exploring.collective import CollectiveTransport
    from trieye.training.exploring.in_ray import node_address

    is_nccl = policy.device.type == "cuda" and config.explorer.num_gpus >= 1
    return CollectiveTransport(
        node_address(),
        backend="nccl" if is_nccl else "gloo",
        device=str(policy.device),
        keep=config.explorer.max_in_flight + 1,
    )


def _make_experience(config: Any, replay: ReplayConfig, *, in_threads: bool) -> RemoteExperience:
    directory: Path | None = None
    if in_threads:
        server = ReplayServer(shared_arguments(replay, seed=config.seed), name=config.run_name)
        channel: ReplayChannel[ReplayServer] = LocalChannel(server)
    else:
        every_s = config.explorer.replay_snapshot_interval_s
        directory = None if every_s is None else RunFiles(config.persistence).run_base_dir / "replay_server"
        if directory is not None:  # left by a killed attempt; this one restores its rows from the checkpoint
            shutil.rmtree(directory, ignore_errors=True)
        options = {"directory": directory, "snapshot_every_s": every_s}
        channel = RemoteReplay.from_config(replay, seed=config.seed, **options).channel
    return RemoteExperience(channel, is_synchronous=config.sync.style == "fixed", directory=directory)
