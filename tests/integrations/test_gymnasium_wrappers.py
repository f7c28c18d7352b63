"""Episodes of gymnasium's environments in a run."""

import io

import gymnasium
import numpy as np
import pytest
from PIL import Image

import trieye
from tests.integrations.drawn import Square
from trieye.exceptions import ConfigurationError
from trieye.history.history import read_history
from trieye.integrations.gymnasium import LogEpisodes, LogVectorEpisodes, some_episodes
from trieye.stats.operations import LogVideo


def points(run, name):
    table = read_history(run.dir, [name])
    return list(zip(table["step"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_logged_episodes_equal_those_that_gymnasium_counts(make_config):
    with trieye.Run(make_config()) as run:
        env = LogEpisodes(gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1")), run)
        env.reset(seed=0)
        env.action_space.seed(0)
        expected = []
        for step in range(1, 301):
            *_, terminated, truncated, info = env.step(env.action_space.sample())
            if terminated or truncated:
                expected.append((step, float(info["episode"]["r"])))
                env.reset()
    assert points(run, "episode/return") == expected
    assert points(run, "episode/length") == expected
    assert len(points(run, "episode/seconds")) == len(expected) > 5


@pytest.mark.parametrize("mode", list(gymnasium.vector.AutoresetMode)[:2])
def test_logged_vector_episodes_equal_those_that_gymnasium_counts(make_config, mode):
    make = [lambda: gymnasium.make("CartPole-v1") for _ in range(3)]
    envs = gymnasium.vector.SyncVectorEnv(make, autoreset_mode=mode)
    with trieye.Run(make_config()) as run:
        env = LogVectorEpisodes(gymnasium.wrappers.vector.RecordEpisodeStatistics(envs), run)
        env.reset(seed=0)
        env.action_space.seed(0)
        expected = []
        for _ in range(200):
            *_, info = env.step(env.action_space.sample())
            if "episode" in info:
                expected += info["episode"]["r"][info["_episode"]].tolist()
    counts = read_history(run.dir, ["episode/return"])["count"].to_pylist()
    assert sum(counts) == len(expected) > 5
    total = sum(value * count for (_, value), count in zip(points(run, "episode/return"), counts, strict=True))
    assert total == pytest.approx(sum(expected))


def test_a_reset_of_some_environments_leaves_the_episodes_of_others(make_config):
    make = [lambda limit=limit: gymnasium.wrappers.TimeLimit(Square(), limit) for limit in (3, 5)]
    envs = gymnasium.vector.SyncVectorEnv(make, autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED)
    with trieye.Run(make_config()) as run:
        env = LogVectorEpisodes(envs, run)
        env.reset()
        for _ in range(6):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if (terminated | truncated).any():
                env.reset(options={"reset_mask": terminated | truncated})
    assert points(run, "episode/length") == [(6, 3.0), (10, 5.0), (12, 3.0)]


def test_videos_show_the_selected_episodes(make_config):
    with trieye.Run(make_config()) as run:
        env = LogEpisodes(Square(), run, video=lambda number: number == 1)
        for _ in range(3):
            env.reset(seed=0)
            over = False
            while not over:
                *_, terminated, truncated, _ = env.step(0)
                over = terminated or truncated
        run.flush()
        items, _ = run._attempt.hub._logic.files.history.read(0, 100)
    (video,) = [item for item in items if isinstance(item, LogVideo)]
    assert video.name == "episode/video"
    assert (video.step, video.num_frames, video.fps) == (20, 11, 10.0)
    with Image.open(io.BytesIO(video.content)) as gif:
        assert gif.n_frames == 11  # equal frames would be merged


@pytest.mark.long
@pytest.mark.parametrize("kind", ["one", "vector"])
def test_episodes_of_a_resumed_run_follow_those_before(make_config, kind):
    def create(run):
        if kind == "one":
            return LogEpisodes(Square(), run)
        return LogVectorEpisodes(gymnasium.vector.SyncVectorEnv([Square]), run)

    for num_episodes in (2, 3):
        with trieye.Run(make_config()) as run:
            env = create(run)
            run.restore()
            for _ in range(num_episodes):
                env.reset(seed=0)
                for _ in range(10):
                    env.step(np.zeros(1, np.int64))
            run.save(step=run.step + 10 * num_episodes)
    assert points(run, "episode/return") == [(10 * (number + 1), 10.0) for number in range(5)]


def test_videos_need_an_environment_that_renders(make_config):
    with trieye.Run(make_config()) as run, pytest.raises(ConfigurationError, match="render_mode='rgb_array'"):
        LogEpisodes(gymnasium.make("CartPole-v1"), run, video=some_episodes)


def test_recorded_episodes_become_rarer():
    assert [number for number in range(4000) if some_episodes(number)][:6] == [0, 1, 8, 27, 64, 125]
    assert [number for number in range(900, 4000) if some_episodes(number)] == [1000, 2000, 3000]
    assert np.all([some_episodes(number**3) for number in range(10)])
