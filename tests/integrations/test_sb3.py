"""Stable-Baselines3 trainings as runs: they resume exactly, and log the same values as its own loggers."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecNormalize,
    unwrap_vec_normalize,
)
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

import trieye
from tests.integrations.drawn import Square
from tests.waiting import wait_until
from trieye.config.env import EnvConfig
from trieye.exceptions import CheckpointError, ConfigurationError, RunInterrupted
from trieye.files.run_record import RunRecord
from trieye.history.history import read_history
from trieye.integrations.sb3 import RunCallback, SameEpisodes, load_model, make_envs, restore_or_new, start_episodes
from trieye.integrations.sb3.replay_rows import MAX_SMALL_PARTS, ReplayRows
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.snapshot.generators import capture_all
from trieye.stats.operations import LogVideo
from trieye.training.seeds import FIRST_SEED


def small():
    return {"policy_kwargs": {"net_arch": [16]}, "seed": 3, "device": "cpu"}


def dqn(**options):
    options = {"learning_starts": 100, "buffer_size": 300, "train_freq": 8, **small(), **options}
    return DQN("MlpPolicy", "CartPole-v1", **options)


def sac():
    return SAC("MlpPolicy", "Pendulum-v1", learning_starts=100, buffer_size=300, batch_size=32, train_freq=8, **small())


def ppo():
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2))
    return PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=2, **small())


class FailsAtStep(BaseCallback):
    """Raises in the middle of a rollout."""

    def __init__(self, step):
        super().__init__()
        self.at = step

    def _on_step(self):
        if self.num_timesteps >= self.at:
            raise ZeroDivisionError("it fell over")
        return True


@pytest.fixture
def config(make_config):
    stats = {"undeclared": "each"}
    persistence = {"checkpoint_save_freq_steps": 200}
    return lambda **options: make_config(**{"stats": stats, "persistence": persistence, **options})


def points(run_dir):
    table = read_history(run_dir)
    return list(zip(table["metric"].to_pylist(), table["step"].to_pylist(), table["value"].to_pylist(), strict=True))


def state_of(model):
    """Return a copy of what a checkpoint restores."""
    optimizers = [model.policy.optimizer] if hasattr(model.policy, "optimizer") else []
    moments = [state["exp_avg"] for optimizer in optimizers for state in optimizer.state.values()]
    state = {
        "tensors": [tensor.numpy().copy() for tensor in (*model.policy.state_dict().values(), *moments)],
        "generators": repr(capture_all()),
        "counters": (model.num_timesteps, model._n_updates, model._episode_num, len(model.ep_info_buffer)),
    }
    if normalizer := model.get_vec_normalize_env():
        moments = (normalizer.obs_rms, normalizer.ret_rms)
        state["moments"] = [(one.mean.tolist(), one.var.tolist(), one.count) for one in moments]
    if buffer := getattr(model, "replay_buffer", None):
        end = buffer.buffer_size if buffer.full else buffer.pos
        state["replay"] = buffer.pos, buffer.full, {name: value[:end].copy() for name, value in arrays(buffer).items()}
    return state


def arrays(buffer):
    return {name: value for name, value in vars(buffer).items() if isinstance(value, np.ndarray)}


def same(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


class RemembersCheckpoint(BaseCallback):
    """Stores the state of a model at the time of a checkpoint."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        if self.run.saved_step == self.model.num_timesteps:
            self.state = state_of(self.model)


@pytest.mark.parametrize(
    "make", [pytest.param(dqn, marks=pytest.mark.long), pytest.param(sac, marks=pytest.mark.long), ppo]
)
def test_a_training_resumes_with_its_complete_state(config, make):
    with pytest.raises(ZeroDivisionError), trieye.Run(config()) as run:
        remembered = RemembersCheckpoint(run)
        make().learn(1000, callback=[RunCallback(run), remembered, FailsAtStep(500)])
    with trieye.Run(config()) as run:
        model = restore_or_new(make, run)
        assert run.step == model.num_timesteps >= 256
        np.testing.assert_equal(state_of(model), remembered.state)
        model.learn(1000, callback=RunCallback(run))
        assert 1000 <= model.num_timesteps < 1000 + 128
        assert run.step == run.saved_step == model.num_timesteps
    counts = Counter((name, step) for name, step, _ in points(run.dir))
    assert max(counts.values()) == 1
    assert max(step for _, step in counts) > 750


def test_a_model_has_the_attributes_that_a_resume_sets():
    model = ppo()
    model.learn(1)
    names = ("_last_obs", "_last_original_obs", "_num_timesteps_at_start", "_stats_window_size", "_total_timesteps")
    assert set(names) <= set(vars(model))


def test_the_values_of_a_shared_sb3_logger_are_logged_once_in_the_run_of_each_training(config, tmp_path):
    model, later = ppo(), {"reset_num_timesteps": False}
    model.set_logger(configure(str(tmp_path / "own"), ["json"]))
    with trieye.Run(config()) as run, trieye.Run(config(run_name="other")) as other:
        for total, current in ((100, run), (100, run), (50, other)):
            model.learn(total, callback=RunCallback(current), **later)
        model.learn(50, **later)
        model.logger.close()
    lines = [json.loads(line) for line in (tmp_path / "own/progress.json").read_text().splitlines()]
    csv_points = {(name, line["time/total_timesteps"]): value for line in lines for name, value in line.items()}
    all_points = points(run.dir) + points(other.dir)
    logged = {(name, step): value for name, step, value in all_points}
    csv_points = {key: value for key, value in csv_points.items() if key[1] <= 320}
    missing = [key for key, value in csv_points.items() if value is not None and key not in logged]
    assert len(csv_points) > 50
    assert len(logged) == len(all_points)
    assert {step for _, step, _ in points(run.dir)} == {64, 128, 192, 256}
    assert {step for _, step, _ in points(other.dir)} == {320}
    assert not missing
    assert all(logged[key] == pytest.approx(value) for key, value in csv_points.items() if value is not None)


def test_values_recorded_after_learn_reach_the_run(config):
    model = ppo()
    with trieye.Run(config()) as run:
        model.learn(128, callback=RunCallback(run))
        model.logger.record("final/score", 42.0)
        model.logger.dump(128)
    assert ("final/score", 128, 42.0) in points(run.dir)


def evaluation(**options):
    env = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    return EvalCallback(env, eval_freq=150, n_eval_episodes=3, verbose=0, warn=False, **options)


@pytest.mark.long
def test_the_best_evaluated_model_is_the_best_of_the_run(config):
    objective = {"objective": "eval/mean_reward"}
    with trieye.Run(config(loop=objective)) as run:
        evaluated = evaluation()
        dqn(learning_rate=0.01).learn(1000, callback=RunCallback(run, evaluation=evaluated))
        assert run.best() == evaluated.best_mean_reward
    rewards = {step: value for name, step, value in points(run.dir) if name == "eval/mean_reward"}
    best = trieye.load_checkpoint(run.dir, "best")
    assert len(rewards) == 6
    assert rewards[best.step] == evaluated.best_mean_reward == max(rewards.values())
    model = load_model(dqn, run.dir)
    assert model.num_timesteps == best.step
    assert same(best.objects["model"]["parameters"]["policy"], model.policy.state_dict())
    with trieye.Run(config(loop=objective)) as run:
        again = evaluation()
        dqn().learn(1001, callback=RunCallback(run, evaluation=again))
        assert again.best_mean_reward == evaluated.best_mean_reward


def test_each_run_of_a_model_is_restored_once(config):
    def stages(*others):
        model, steps = ppo(), []
        for number, total in enumerate((64, 128, 64)):
            options = {"run_name": f"stage{number % 2}", "persistence": {"checkpoint_save_freq_steps": 64}}
            with trieye.Run(config(**options)) as run:
                model.learn(total, callback=[RunCallback(run), *others], reset_num_timesteps=number < 2)
                steps.append((run.resumed, model.num_timesteps))
        return steps

    with pytest.raises(ZeroDivisionError):
        stages(FailsAtStep(100))
    assert stages() == [(True, 64), (True, 128), (False, 192)]


def test_a_finished_training_is_neither_evaluated_nor_logged_again(config):
    for total in (300, 299):
        with trieye.Run(config()) as run:
            dqn().learn(total, callback=RunCallback(run, evaluation=evaluation()))
    evaluated = [step for name, step, _ in points(run.dir) if name == "eval/mean_reward"]
    assert len(evaluated) == 2
    assert max(evaluated) == 304  # the end of a rollout


def test_a_video_of_the_best_model_is_logged(config):
    with trieye.Run(config()) as run:
        callback = EvalCallback(DummyVecEnv([Square]), eval_freq=50, n_eval_episodes=1, verbose=0, warn=False)
        model = DQN("MlpPolicy", DummyVecEnv([Square]), learning_starts=10, buffer_size=100, **small())
        model.learn(100, callback=RunCallback(run, evaluation=callback, video=True))
        run.flush()
        items, _ = run._attempt.hub._logic.files.history.read(0, 1000)
    (video,) = [item for item in items if isinstance(item, LogVideo)]  # of the first one, as it gets no better
    assert (video.name, video.step, video.num_frames, video.fps) == ("eval/video", 52, 10, 10.0)


def test_a_video_without_an_evaluation_is_rejected(config):
    with trieye.Run(config()) as run, pytest.raises(ConfigurationError, match="pass evaluation="):
        RunCallback(run, video=True)


def test_a_training_in_chunks_never_overwrites_an_earlier_model_with_later_weights(config, tmp_path):
    def chunked(run, *others):
        model = dqn()
        for number in range(5):
            model.learn(120, reset_num_timesteps=False, callback=[RunCallback(run), *others])
            model.save(tmp_path / f"m_{number}")

    def resumable(run):
        model, callback = restore_or_new(dqn, run), RunCallback(run)
        while model.num_timesteps < 600:
            number = model.num_timesteps // 120
            model.learn(120 - model.num_timesteps % 120, reset_num_timesteps=False, callback=callback)
            model.save(tmp_path / f"m_{number}")

    def digests(directory):
        files = {path for path in directory.rglob("*") if path.is_file() and path.parent.name != "logs"}
        return {str(path): path.read_bytes() for path in files if not path.name.startswith("run.lock")}

    with pytest.raises(ZeroDivisionError), trieye.Run(config()) as run:
        chunked(run, FailsAtStep(450))
    models = {path: path.read_bytes() for path in tmp_path.glob("m_*.zip")}
    assert len(models) == 3
    files = digests(run.dir)
    refused = pytest.raises(ConfigurationError, match=r"number 1 ends at timestep 120.*400.*number 4.*restore_or_new")
    with refused, trieye.Run(config()) as run:
        chunked(run)
    assert digests(run.dir) == files
    with trieye.Run(config()) as run:
        resumable(run)
    assert {path: path.read_bytes() for path in models} == models
    assert [DQN.load(tmp_path / f"m_{number}").num_timesteps for number in range(5)] == [120, 240, 360, 480, 600]


def test_a_training_from_zero_in_an_advanced_run_is_rejected(config):
    with trieye.Run(config()) as run:
        model, callback = dqn(), RunCallback(run)
        model.learn(120, callback=callback)
        with pytest.raises(ConfigurationError, match="reset_num_timesteps=False"):
            model.learn(120, callback=callback)


def test_an_incompatible_model_is_rejected_and_unchanged(config):
    with trieye.Run(config()) as run:
        dqn().learn(250, callback=RunCallback(run))
    for options in ({"buffer_size": 200}, {"policy_kwargs": {"net_arch": [8]}}):
        with trieye.Run(config()) as run:
            model = dqn(**options)
            before = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
            with pytest.raises(CheckpointError, match="buffer_size" if "buffer_size" in options else "shape"):
                restore_or_new(lambda model=model: model, run)
            assert same(before, model.policy.state_dict())
    with pytest.raises(CheckpointError, match="shape"):
        load_model(lambda: model, run.dir, "latest")
    assert same(before, model.policy.state_dict())


@pytest.mark.parametrize("normalizes", [True, False])
def test_a_model_needs_vec_normalize_exactly_if_the_checkpoint_has_its_moments(config, normalizes):
    def make(wrap):
        env = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
        return PPO("MlpPolicy", VecNormalize(env) if wrap else env, n_steps=64, n_epochs=1, **small())

    with trieye.Run(config()) as run:
        make(normalizes).learn(64, callback=RunCallback(run))
    with pytest.raises(CheckpointError, match=r"only (make_model|the checkpoint) has a VecNormalize"):
        load_model(lambda: make(not normalizes), run.dir, "latest")
    with (
        trieye.Run(config()) as run,
        pytest.raises(CheckpointError, match=r"only (make_model|the checkpoint) has a VecNormalize"),
    ):
        restore_or_new(lambda: make(not normalizes), run)
    assert load_model(lambda: make(normalizes), run.dir, "latest").num_timesteps == 64


PROGRAM = """
from stable_baselines3 import PPO
from trieye.integrations.sb3 import RunCallback
model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, policy_kwargs={"net_arch": [16]})
model.learn(10_000_000, callback=RunCallback("told", save_freq=1_000_000))
"""


@pytest.mark.long
@pytest.mark.usefixtures("warm_programs")
def test_a_signal_ends_and_saves_the_rollout_before_the_exit(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "TRIEYE_APP": "app"}
    command = [sys.executable, "program.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment) as process:
        run_dir = tmp_path / ".trieye_data/app/runs/told"
        try:
            wait_until((run_dir / "journal.db").exists, pause_s=0.1)
            wait_until(lambda: len(read_history(run_dir)) > 20, pause_s=0.1)
        finally:
            process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=60)
    assert process.returncode == 143, output
    record = RunRecord.read(run_dir / "run.json")
    assert record is not None
    assert record.status == "KILLED"
    assert trieye.load_checkpoint(run_dir, "latest").step % 64 == 0


class RaisesSignals(BaseCallback):
    """Presses Ctrl-C in the first step, `times` times."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def _on_step(self):
        for _ in range(self.times if self.n_calls == 1 else 0):
            signal.raise_signal(signal.SIGINT)
        return True


def test_ctrl_c_stops_learn_only_while_it_is_running(config, monkeypatch):
    monkeypatch.setattr("trieye.process.signals.CTRL_C_ONCE_WITHIN_S", -1.0)
    model, callbacks = ppo(), []  # tracebacks in a notebook reference the callbacks, too
    with trieye.Run(config()) as run:

        def learn(num_signals, *others):
            callbacks.append(RunCallback(run))
            callback = [callbacks[-1], RaisesSignals(num_signals), *others]
            model.learn(128, callback=callback, reset_num_timesteps=False)

        for num_signals in (0, 1):
            with pytest.raises(ZeroDivisionError):
                learn(num_signals, FailsAtStep(0))
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        learn(0)
        with pytest.raises(ZeroDivisionError):
            learn(0, FailsAtStep(0))
        with pytest.raises(RunInterrupted):
            learn(1)
        assert run.saved_step == model.num_timesteps
        with pytest.raises(KeyboardInterrupt):
            learn(2)
        assert run.saved_step < model.num_timesteps  # the rollout was not completed


# environments


class PayingEnv(Square):
    """Observes images of its position, and pays a reward of 5 per step."""

    observation_space = spaces.Box(0, 255, (40, 36, 3), np.uint8)

    def reset(self, **options):
        super().reset(**options)
        return np.zeros((40, 36, 3), np.uint8), {}

    def step(self, action):
        _, _, *ends = super().step(action)
        return np.full((40, 36, 3), self.position, np.uint8), 5.0, *ends


@pytest.fixture
def pays():
    gymnasium.register("Pays-v0", PayingEnv)
    yield "Pays-v0"
    del gymnasium.registry["Pays-v0"]


def test_rewards_are_clipped_in_training_environments_only(pays):
    env = EnvConfig(id=pays, num=2, clip_rewards=True)
    for evaluates, paid in ((False, 1.0), (True, 5.0)):
        envs = make_envs(env, evaluates=evaluates)
        assert envs.observation_space.shape == (3, 40, 36)
        envs.reset()
        for _ in range(10):
            _, rewards, dones, infos = envs.step(np.zeros(2, int))
        assert rewards.tolist() == [paid, paid]
        assert dones.all()
        assert infos[0]["episode"]["r"] == 50.0


def test_evaluation_environments_use_the_observation_moments_of_the_training():
    env = EnvConfig(id="CartPole-v1", normalize_observations=True, normalize_rewards=True)
    learns, evaluates = make_envs(env, gamma=0.9), make_envs(env, evaluates=True)
    assert [
        (one.training, one.norm_obs, one.norm_reward) for one in map(unwrap_vec_normalize, (learns, evaluates))
    ] == [(True, True, True), (False, True, False)]
    assert learns.gamma == 0.9
    only_rewards = make_envs(EnvConfig(id="CartPole-v1", normalize_rewards=True))
    assert not only_rewards.norm_obs


def test_environments_with_custom_vector_forms_are_rejected():
    with pytest.raises(ConfigurationError, match=r"use env\.vector=sync or async"):
        make_envs(EnvConfig(id="CartPole-v1", vector="own"))


# rows

OBS, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)


def plain(**options):
    return ReplayBuffer(50, OBS, ACTIONS, n_envs=2, **options)


def sparing():
    return plain(optimize_memory_usage=True, handle_timeout_termination=False)


def nstep():
    return NStepReplayBuffer(50, OBS, ACTIONS, n_envs=2)


def fill(buffer, rows, rng):
    for _ in range(rows):
        values = rng.random((3, buffer.n_envs, 3), np.float32)
        infos = [{"TimeLimit.truncated": bool(rng.random() < 0.1)} for _ in range(buffer.n_envs)]
        dones = np.array([info["TimeLimit.truncated"] for info in infos])
        buffer.add(values[0], values[1], rng.integers(4, size=buffer.n_envs), values[2, :, 0], dones, infos)


@pytest.mark.parametrize("make", [plain, sparing, nstep])
def test_only_new_rows_are_saved_and_all_of_them_are_restored(make):
    rng, buffer, known_parts = np.random.default_rng(0), make(), {}
    rows = ReplayRows(buffer)
    for count in (3, 0, 9, 1, 40, 2, 60, 5):
        fill(buffer, count, rng)
        rows.total += count
        saved = encode({"rows": rows}, known_parts=known_parts)
        new = {name: part for name, part in saved.parts.items() if part is not None}
        assert sum(len(part["rewards"]) for part in new.values()) == min(count, buffer.buffer_size)
        known_parts = {name: known_parts.get(name) or part for name, part in saved.parts.items()}
        other = make()
        with_all_parts = type(saved)(saved.tree, saved.arrays, saved.objects, saved.formats, known_parts)
        ReplayRows(other).load_state_dict(decode(with_all_parts)["rows"])
        assert (other.pos, other.full) == (buffer.pos, buffer.full)
        last = (buffer.pos - 1) % buffer.buffer_size
        for name, array in arrays(buffer).items():
            restored, expected = arrays(other)[name], array.copy()
            if name == {"sparing": "dones", "nstep": "timeouts"}.get(make.__name__) and rows.total:
                assert restored[last].all() or (buffer.dones[last] == 1 - restored[last]).all()
                expected[last] = restored[last]
            assert (restored == expected).all(), name


def test_many_small_parts_are_merged():
    rng, buffer, known_parts = np.random.default_rng(0), ReplayBuffer(4000, OBS, ACTIONS, n_envs=2), {}
    rows = ReplayRows(buffer)
    for _ in range(150):
        fill(buffer, 10, rng)
        rows.total += 10
        saved = encode({"rows": rows}, known_parts=known_parts)
        known_parts = {name: known_parts.get(name) or part for name, part in saved.parts.items()}
        assert len(known_parts) <= MAX_SMALL_PARTS + 1


def test_a_buffer_filled_elsewhere_is_saved_completely():
    rng, buffer = np.random.default_rng(0), plain()
    rows = ReplayRows(buffer)
    fill(buffer, 7, rng)
    saved = encode({"rows": rows})
    assert [len(part["rewards"]) for part in saved.parts.values()] == [7]


def test_a_hindsight_replay_is_restored():
    envs = DummyVecEnv([lambda: BitFlippingEnv(4, continuous=False, max_steps=4)])
    buffers = [HerReplayBuffer(100, envs.observation_space, envs.action_space, envs) for _ in range(2)]
    rng, rows = np.random.default_rng(0), ReplayRows(buffers[0])
    obs, done = envs.reset(), [False]
    while rows.total < 130 or done[0]:  # it ends in the middle of an episode
        action = rng.integers(4, size=1)
        new, reward, done, infos = envs.step(action)
        buffers[0].add({key: value.copy() for key, value in obs.items()}, new, action, reward, done, infos)
        obs, rows.total = new, rows.total + 1
    with pytest.warns(UserWarning, match="last trajectory"):
        ReplayRows(buffers[1]).load_state_dict(decode(encode({"rows": rows}))["rows"])
    with pytest.warns(UserWarning, match="last trajectory"):
        buffers[0].truncate_last_trajectory()
    for name, value in arrays(buffers[0]).items():
        if value.dtype != object:
            assert (arrays(buffers[1])[name] == value).all(), name
    assert all((buffers[1].observations[key] == value).all() for key, value in buffers[0].observations.items())
    assert len(buffers[1].sample(32).rewards) == 32


def stacked():
    env = VecFrameStack(VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2)), 3)
    return PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, **small())


def pixels():
    env = VecNormalize(DummyVecEnv([PayingEnv]), norm_obs=False)  # the model puts VecTransposeImage above it
    return PPO("CnnPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=3, device="cpu")


@pytest.mark.long
@pytest.mark.parametrize(("make", "steps"), [(stacked, 64), (pixels, 16)])
def test_wrappers_above_the_moments_do_not_prevent_a_resume(config, make, steps):
    with trieye.Run(config()) as run:
        make().learn(steps, callback=RunCallback(run))
    saved = trieye.load_checkpoint(run.dir, "latest").objects["model"]["normalizer"]
    with trieye.Run(config()) as run:
        model = restore_or_new(make, run)
        model.learn(steps, callback=[RunCallback(run), ChecksMoments(saved)], reset_num_timesteps=False)
        assert model.num_timesteps == 2 * steps


class ChecksMoments(BaseCallback):
    """Compares the moments at the start of a training with the saved ones."""

    def __init__(self, saved):
        super().__init__()
        self.saved = saved

    def _on_training_start(self):
        normalizer = self.model.get_vec_normalize_env()
        assert normalizer.training
        assert normalizer.ret_rms.count == self.saved["returns"]["count"]
        if normalizer.norm_obs:
            assert np.array_equal(normalizer.obs_rms.mean, self.saved["obs."]["mean"])

    def _on_step(self):
        return True


@pytest.mark.parametrize(("num", "vector"), [(3, "sync"), pytest.param(2, "async", marks=pytest.mark.long)])
def test_each_evaluation_plays_the_same_episodes(num, vector):
    config = EnvConfig(id="Pendulum-v1", num=num, vector=vector, max_episode_steps=20)
    envs = make_envs(config, evaluates=True)
    assert isinstance(envs.unwrapped, SubprocVecEnv) == (vector == "async")
    model = SAC("MlpPolicy", make_envs(config), learning_starts=1000)
    returns = []
    for _ in range(2):
        start_episodes(envs, 7)
        returns.append(sorted(evaluate_policy(model, envs, 7, return_episode_rewards=True)[0]))
    assert returns[0] == returns[1]
    assert len(set(returns[0])) == 7
    evaluation = SameEpisodes(envs, n_eval_episodes=7, eval_freq=1, verbose=0, warn=False)
    model.set_logger(configure(None, []))
    evaluation.init_callback(model)
    evaluation.on_step()
    evaluation.on_step()
    assert evaluation.last_mean_reward == pytest.approx(np.mean(returns[0]))
    envs.close()


def test_the_episodes_have_the_seeds_of_an_evaluation_by_trieye():
    envs = make_envs(EnvConfig(id="Pendulum-v1", num=2), evaluates=True)
    with gymnasium.make("Pendulum-v1") as env:
        expected = [env.reset(seed=FIRST_SEED + episode)[0] for episode in range(5)]
    start_episodes(envs, 5)  # two in the first environment, three in the second
    resets = [
        envs.env_method("reset", indices=[index])[0][0] for index, times in ((0, 2), (1, 3)) for _ in range(times)
    ]
    np.testing.assert_array_equal(resets, expected)
