"""Configs of jobs that share a composed config equal the configs that Hydra composes."""

import pytest
from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from trieye.config.hydra.loader import VERSION_BASE
from trieye.sweeps.working import SweepContext, choices_in, shared_base, with_values

CONFIG = """
defaults: [{net: small}, _self_]
lr: 0.1
sizes: [64, 64]
deep: {a: 1, b: "${lr}", c: null}
hydra: {job: {config: {override_dirname: {exclude_keys: [deep.a]}}}, sweep: {dir: "logs/${lr}/first"}}
"""


@pytest.fixture
def composer(tmp_path, hydra_restore_singletons):
    (tmp_path / "net").mkdir()
    (tmp_path / "config.yaml").write_text(CONFIG)
    for name, layers in (("small", 1), ("large", 9)):
        (tmp_path / "net" / f"{name}.yaml").write_text(f"layers: {layers}\n")
    with initialize_config_dir(str(tmp_path), **VERSION_BASE):
        hydra = GlobalHydra.instance().hydra
        sweep = hydra.compose_config(
            "config", ["hydra.job.name=x"], run_mode=RunMode.MULTIRUN, with_log_configuration=False
        )
        yield hydra.config_loader, sweep


def test_the_config_equals_the_one_that_hydra_composes(composer):
    loader, sweep = composer
    for overrides in (
        ["lr=0.2"],
        ["lr=1e-3", "deep.a=5", "deep.b='${deep.a}'", "deep.c=[1,{x: y}]"],
        ["sizes=[1,2,3]", "net.layers=3"],
        ["deep={a: 2}", "lr='a b'"],
        ["+x=1", "+deep.d.e=2", "++lr=3", "++y={a: 1}", "+deep={f: 4}"],
        ["net.layers=3", "net=large", "lr=3"],
        ["net=large", "+net@other=small", "other.layers=5"],
        [],
    ):
        choices = choices_in(overrides, loader)
        base = loader.load_sweep_config(sweep, list(choices)) if choices else shared_base(loader, sweep)
        fast, slow = with_values(base, loader, overrides), loader.load_sweep_config(sweep, overrides)
        assert OmegaConf.to_container(fast, resolve=False) == OmegaConf.to_container(slow, resolve=False)
        assert fast.hydra.overrides == slow.hydra.overrides
        assert fast._get_flag("struct") == slow._get_flag("struct")
        assert fast.hydra._get_flag("readonly") == slow.hydra._get_flag("readonly")


def test_the_sweep_directory_of_a_job_is_that_of_its_sweep(composer, tmp_path):
    loader, sweep = composer
    context = HydraContext(loader, Callbacks())
    sweep_context = SweepContext(context, sweep, print, {}, tmp_path / "logs/0.1/first", tmp_path)
    for override, output_dir in (("lr=0.2", "../../0.2/first/1"), ("lr=0.1", "1")):
        config = sweep_context.composed(1, [override])
        assert config.hydra.sweep.subdir == output_dir
        assert (tmp_path / config.hydra.sweep.dir).resolve() == sweep_context.directory


def test_other_overrides_are_left_to_hydra_as_are_errors(composer):
    loader, sweep = composer
    for override in ("~deep.a", "hydra.job.name=y", "lr=1,2"):
        assert choices_in([override], loader) is None
    for override, message in (("rl=3", "Could not override 'rl'"), ("+lr=3", "An item is already at 'lr'")):
        with pytest.raises(ConfigCompositionException, match=message):
            with_values(shared_base(loader, sweep), loader, [override])


def test_jobs_with_the_same_choices_share_a_composition_that_stays_unchanged(composer, tmp_path):
    loader, sweep = composer
    bases = {(): shared_base(loader, sweep)}
    context = SweepContext(HydraContext(loader, Callbacks()), sweep, print, {}, tmp_path, tmp_path, bases=bases)
    jobs = [["net=large", f"lr={lr}"] for lr in (1, 2)] + [["lr=3"]]
    configs = [context.composed(index, overrides) for index, overrides in enumerate(jobs)]
    assert [(config.net.layers, config.lr) for config in configs] == [(9, 1), (9, 2), (1, 3)]
    assert [(base.net.layers, base.lr) for base in bases.values()] == [(1, 0.1), (9, 0.1)]
