"""Checkpoints of crashes, and the link to the best checkpoint."""

import numpy as np

import trieye
from trieye.checkpoints.directory import load_state
from trieye.run.crash import save_crash


def test_a_crash_checkpoint_replaces_only_the_previous_crash_checkpoint(make_config, tmp_path):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "kept").touch()
    with trieye.Run(make_config()) as run:
        run.step = 3
        first = save_crash(run, weights={"w": np.ones(2)})
        (first.parent / "crash-notes").mkdir()
        (first.parent / "crash-7").symlink_to(elsewhere)
        run.step = 5
        second = save_crash(run, weights={"w": np.zeros(2)})
    assert sorted(path.name for path in second.parent.glob("crash-*")) == ["crash-5", "crash-7", "crash-notes"]
    assert (elsewhere / "kept").exists()
    load_state(second)


def test_the_link_to_the_best_checkpoint_never_dangles(make_config):
    with trieye.Run(make_config(persistence={"keep_last": 1, "keep_best": 0})) as run:
        link = run.dir / "checkpoints" / "best.pkl"
        for step, objective in ((1, 9.0), (2, 5.0), (3, 7.0)):
            run.step = step
            run.save(objective=objective, weights=np.ones(2)).wait()
            assert (link.resolve().name, link.exists()) in (("best.pkl", False), (f"checkpoint_step_{step}", True))
