"""Random trees of runs: a command changes only the directory it names, and the MLflow run and mirror it owns."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

import trieye
from tests.curves import record_of
from trieye.cli import main

ROOTS, APPS, NAMES = ("root", "other"), ("agents", "planes"), ("a", "b", "c", "d")


class World:
    """Runs below two roots that share one MLflow store and one mirror, with the owner of each MLflow run and mirror."""

    def __init__(self, tmp_path, make_config, rng):
        self.path, self.rng = tmp_path, rng
        self.uri = f"sqlite:///{tmp_path}/mlflow.db"
        self.original, self.mlflow_id, self.best = {}, {}, {}
        for number, (app, name) in enumerate([("agents", "a"), ("agents", "b"), ("agents", "c"), ("planes", "a")]):
            config = make_config(
                app_name=app,
                run_name=name,
                sinks={"mlflow": {"enabled": True}},
                persistence={"mirror": f"file://{tmp_path}/mirror", "mlflow_tracking_uri": self.uri},
            )
            with trieye.Run(config) as run:
                run.log("loss" if number else "other", float(number))
                run.save(weights=[number])
            record = record_of(run.dir)
            self.original[record.run_id] = (run.dir, run.dir.stat().st_ino)
            self.mlflow_id[record.run_id] = record.mlflow_run_id
            self.best[record.run_id] = number or None
            if rng.random() < 0.5:  # as a killed run
                record.status, record.ended, record.summary = "RUNNING", None, {}
                record.save(run.dir / "run.json")

    def directories(self, *, links):
        """Return all directories of runs, and links to some."""
        marks = self.path.glob("*/*/runs/*/run.json")
        return sorted(mark.parent for mark in marks if links or not mark.parent.is_symlink())

    def owner(self, run_id):
        """Return the directory that owns a run: the directory at its path, else the renamed directory."""
        first, inode = self.original[run_id]
        mine = [path for path in self.directories(links=False) if record_of(path).run_id == run_id]
        return first if first in mine else next((path for path in mine if path.stat().st_ino == inode), None)

    def change(self):
        """Copy, link or move a random run."""
        source = self.rng.choice(self.directories(links=False))
        target = self.path.joinpath(self.rng.choice(ROOTS), self.rng.choice(APPS), "runs", self.rng.choice(NAMES))
        if os.path.lexists(target):
            return ("nothing",)
        target.parent.mkdir(parents=True, exist_ok=True)
        kind = self.rng.choice(["copy", "copy", "link", "move"])
        if kind == "copy":
            shutil.copytree(source, target)
        elif kind == "link":
            target.symlink_to(source)
        else:
            source.rename(target)
        return kind, source, target

    def command(self):
        """Return a random command line, and the directories that it names."""
        word = self.rng.choice(["rm", "close", "rebuild", "prune"])
        if word == "prune":
            root, app = self.rng.choice(ROOTS), self.rng.choice(APPS)
            keep = ["--keep", "best:1", "--metric", "loss", "--mode", "max"]
            arguments = ["prune", app, "--root", str(self.path / root), "--older-than", "0s", *keep, "--yes"]
            return arguments, [
                path for path in self.directories(links=False) if path.parents[1] == self.path / root / app
            ]
        path = self.rng.choice(self.directories(links=word == "rm"))
        return [word, str(path), *(["--yes"] if word == "rm" else [])], [] if path.is_symlink() else [path]

    def files(self, *, without):
        """Return the contents of all files and links, except below directories, in the mirror and in MLflow."""
        contents = {}
        for directory, directories, names in os.walk(self.path):
            for path in (Path(directory) / name for name in [*directories, *names]):
                if path.is_symlink():
                    contents[path] = path.readlink()
                elif path.is_file() and path.parent != self.path and "mlruns" not in path.parts:
                    contents[path] = path.read_bytes()
        return {
            path: content for path, content in contents.items() if not _is_below(path, [*without, self.path / "mirror"])
        }

    def mirror(self):
        """Return the objects of each run in the mirror, and by run the identity that its states name."""
        objects, names = {}, {}
        for path in sorted((self.path / "mirror").rglob("*")):
            if path.is_file():
                key = path.parts[len(self.path.parts) + 1 :][:2]
                objects.setdefault(key, {})[path] = path.read_bytes()
                if path.name == "COMMIT":
                    names[key] = json.loads(json.loads(path.read_bytes())["mark"])["run_id"]
        return objects, names

    def mlflow(self):
        """Return the state of each MLflow run."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = client.search_runs(experiments, run_view_type=3)
        return {run.info.run_id: (run.info.lifecycle_stage, run.to_dictionary()) for run in runs}

    def check(self, arguments, named):
        """Run a command and compare everything that it must not change."""
        before = self.files(without=named), self.mirror(), self.mlflow()
        owners = {run_id: self.owner(run_id) for run_id in self.original}
        run_of = {path: record_of(path).run_id for path in named}
        code = main(arguments)
        owned = {run_id for run_id, owner in owners.items() if owner in named}
        gone = {path for path in named if not path.exists()}
        assert self.files(without=named) == before[0]
        objects, names = self.mirror()
        for key in objects.keys() | before[1][0].keys():
            if objects.get(key) != before[1][0].get(key):
                assert before[1][1].get(key, names.get(key)) in owned, (arguments, key)
        after = self.mlflow()
        assert after.keys() == before[2].keys()
        changed = {run_id for run_id, mlflow_id in self.mlflow_id.items() if after[mlflow_id] != before[2][mlflow_id]}
        assert changed <= owned, arguments
        for path in gone:
            if owners[run_of[path]] == path:
                assert after[self.mlflow_id[run_of[path]]][0] == "deleted"
                assert run_of[path] not in names.values()
        if arguments[0] == "rm":
            assert (code, gone) == (0, set(named)) if named else code == 2
        if arguments[0] == "prune" and code == 0:
            best = {path: self.best[run_of[path]] for path in named if self.best[run_of[path]] is not None}
            assert gone <= best.keys()
            assert max(best.values(), default=0) == max((best[path] for path in best.keys() - gone), default=0)


def _is_below(path, directories):
    return any(path.is_relative_to(directory) for directory in directories)


def run_random_commands(tmp_path, make_config, seed, num_commands):
    print(f"seed {seed}")  # noqa: T201 - to repeat a failure
    world = World(tmp_path, make_config, random.Random(seed))
    for _ in range(num_commands):
        changes = [world.change() for _ in range(world.rng.randrange(4))]
        if not world.directories(links=False):
            return
        arguments, named = world.command()
        print(*changes, arguments)  # noqa: T201 - what led to a failure
        world.check(arguments, named)


def test_commands_change_only_the_named_directory_and_its_property(tmp_path, make_config):
    run_random_commands(tmp_path, make_config, seed=random.randrange(10**6), num_commands=4)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(25))
def test_commands_change_only_the_named_directory_and_its_property_in_many_trees(seed, tmp_path, make_config):
    run_random_commands(tmp_path, make_config, seed, num_commands=15)
