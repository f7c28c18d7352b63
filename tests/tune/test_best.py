"""The preset of the best trial, and secrets among the values of a study."""

import json

import pytest
from omegaconf import OmegaConf
from pydantic import Field
from ray.tune.experiment import Trial

import trieye
from tests.tune.walks import Walk, WalksConfig
from trieye.config.hydra.axes import typed
from trieye.config.hydra.launch import Launch
from trieye.exceptions import ConfigurationError
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.record import SweepRecord
from trieye.tune.best import best_config, write_best
from trieye.tune.space import Space
from trieye.tune.study import Study
from trieye.tune.values import named, with_values
from trieye.tune.watching import StudyMonitor


class Database(trieye.StrictModel):
    """Where a walk is stored."""

    url: str = Field(default="none", description="Address.")
    password: str = Field(default="none", description="Password.")
    backup: str = Field(default="https://backup", description="Address of a copy.")


class StoredConfig(WalksConfig):
    """The config of a walk with secrets."""

    db: Database = Field(default_factory=Database, description="The database.")


URLS = ("postgres://me:hunter22@host/a", "postgres://me:hunter22@host/b")
VALUES = {"db.password": "s3cret", "db.url": URLS[1]}


@pytest.fixture
def stored_study(walks_config, tmp_path, monkeypatch):
    """Return a config of a study whose values contain secrets, and the study."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DB_PASSWORD", "s3cret")
    space = {"db.password": "s3cret", "db": {"url": list(URLS)}}
    fields = dict(walks_config("herd", tune={"enabled": True, "space": space}))
    config = StoredConfig(**fields, db={"backup": "https://me:0therword@backup"})
    return config, Study(Walk, config)


def test_a_study_records_its_values_without_secrets_and_restores_them(stored_study, monkeypatch):
    config, study = stored_study
    record = SweepRecord(spec=[], size=2, study={"run_name": "herd", **study._identity()})
    record.write(study.directory)
    study._check_same(SweepRecord.read(study.directory), record)
    trial = Trial("walk", stub=True, trial_id="x_00000")
    trial.config = VALUES
    trial.update_last_result({"training_iteration": 1, "step": 20, "eval/return": 3.0, "done": True, "stop_reason": ""})
    monitor = StudyMonitor(config, study.directory, Space(config).keys, 2)
    monitor.on_trial_start(trial=trial)
    monitor.on_trial_result(trial=trial, result=trial.last_result)
    monitor.on_trial_complete(trial=trial)
    assert study._records()[0].overrides == [f"{key}={typed(value)}" for key, value in VALUES.items()]

    best, values = best_config(config, study.directory, 0)
    assert (values, best.db.password, best.db.url) == (VALUES, "s3cret", URLS[1])
    path = write_best((best, values), None, study.directory, index=0, objective=3.0)
    preset = OmegaConf.load(path)
    monkeypatch.setenv("TRIEYE_SECRET_DB_URL", "hunter22")
    monkeypatch.setenv("TRIEYE_SECRET_DB_BACKUP", "0therword")
    assert dict(preset.db) == {**{key[3:]: value for key, value in VALUES.items()}, "backup": config.db.backup}
    assert "${oc.env:DB_PASSWORD}" in path.read_text("utf-8")

    texts = [path.read_text("utf-8") for path in study.directory.rglob("*") if path.is_file()]
    assert len(texts) >= 3
    assert not [text for text in texts if "hunter22" in text or "s3cret" in text or "0therword" in text]


def test_a_study_does_not_vary_a_secret_that_its_records_cannot_tell_apart(stored_study):
    config, _ = stored_study
    tune = config.tune.model_copy(update={"space": {"db.password": "first,second"}})
    with pytest.raises(ConfigurationError, match=r"tune\.space\.db\.password: a study cannot vary a secret"):
        Space(config.model_copy(update={"tune": tune}))


def test_the_preset_of_the_best_trial_is_not_written_with_another_config(walks_config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = {"enabled": True, "space": {"walk.pace": "1,3"}, "target": 50.0}
    config = walks_config("herd", tune=options)
    study = Study(Walk, config)
    JobRecord(index=0, overrides=["walk.pace=3"], state="completed", step=20).write(study.directory / "0")
    with trieye.Run(named(walks_config(pace=3.0, target=50.0), "herd_0")) as run:
        path = run.dir / "configs.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": "fast"}))  # of the program
    study._write_best(0, 6.0)
    preset = study.directory / "conf/experiment/best_herd.yaml"
    content = preset.read_bytes()
    assert OmegaConf.load(preset).walk.pace == 3.0

    changed = walks_config("herd", tune=options, steps=30)
    walk = changed.walk.model_copy(update={"legs": 5})
    Study(Walk, changed.model_copy(update={"walk": walk}))._write_best(0, 6.0)
    assert "not written, because" in (printed := capsys.readouterr().err)
    assert printed.rstrip().endswith("since: loop.steps: 20 -> 30; walk.legs: 2 -> 5")
    assert preset.read_bytes() == content

    path.unlink()
    study._write_best(0, 6.0)
    assert f"not written, because {path}, the config of the run, cannot be read: no such" in capsys.readouterr().err
    assert preset.read_bytes() == content


@pytest.mark.parametrize("text", ["1e3", "12e4567", "1_000", "no", "null", "~", "$", "a: b", "größer"])
def test_texts_remain_texts_in_the_preset(text, walks_config, tmp_path):
    config = with_values(walks_config(), {"walk.gait": text})
    path = write_best((config, {}), None, tmp_path / "study", index=0, objective=1.0)
    assert OmegaConf.load(path).walk.gait == text  # as Hydra loads it


def test_studies_do_not_replace_presets_of_other_studies_or_of_the_user(walks_config, tmp_path):
    (tmp_path / "conf").mkdir()
    launch = Launch(
        overrides=(), is_multirun=False, sweep_dir=None, job_num=None, output_dir=tmp_path, working_dir=tmp_path,
        choices={}, config_dir=tmp_path / "conf",
    )  # fmt: skip

    def write(study):
        return write_best((walks_config(), {}), launch, tmp_path / "multirun" / study, index=0, objective=1.0)

    presets = {study: write(study) for study in ("a_b", "a.b", "a b")}
    assert {path.parent for path in presets.values()} == {tmp_path / "conf/experiment"}
    assert len({*presets.values()}) == 3
    assert {study: write(study) for study in presets} == presets
    content = presets["a.b"].read_bytes()
    presets["a_b"].write_bytes(content)  # as earlier versions named it
    assert write("a_b") == tmp_path / "multirun/a_b/conf/experiment/best_a_b.yaml"
    assert presets["a_b"].read_bytes() == content
