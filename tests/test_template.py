import compileall
import importlib
import importlib.metadata
import itertools
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import gymnasium as gym
import jinja2
import numpy as np
import pytest
import torch
import yaml

import trieye
from tests import warm
from tests.waiting import wait_until
from trieye.checkpoints.manifest import read_manifest, rewrite_manifest
from trieye.cli import main
from trieye.cli.new import TEMPLATE, answers_of, bake, complaint_about, questions
from trieye.config.hydra import registration
from trieye.files.checksum import sums_of
from trieye.version import VERSION

pytestmark = pytest.mark.usefixtures("git_repositories")

ROOT = Path(__file__).parents[1]
SLUG = "my_agent"
WHEEL = f"wheels/trieye-{VERSION}-py3-none-any.whl"
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
SOURCE = TEMPLATE / "{{cookiecutter.slug}}"
FILES = {
    WHEEL,
    ".github/workflows/ci.yml",
    *(
        str(path.relative_to(SOURCE)).replace(SOURCE.name, SLUG)
        for path in SOURCE.rglob("*")
        if path.is_file() and "__own_" not in path.name and path.suffix != ".pyc"
    ),
}
LICENSES = {
    "MIT": ("MIT", "MIT License"),
    "BSD-3-Clause": ("BSD-3-Clause", "Redistribution and use"),
    "Apache-2.0": ("Apache-2.0", "TERMS AND CONDITIONS FOR USE"),
    "Proprietary": ("LicenseRef-Proprietary", "All rights reserved."),
}
HOSTILE = [
    'O\'Connor "the quick" & sons',
    "a\nb\r\n\tc",
    "back\\slash \\n \\u00e9 \\",
    "{{ 7 * 7 }} {% raw %} {# no #} {% endraw %} ${{ github.token }}",
    "trieye-requirement",
    '"]\nname = "evil',
    "\u00fc\u00f1\u00ed \u4e2d\u6587 \U0001f600 \u202f\u2028end",
    "'''\"\"\"",
    "# not a comment: - [x] *a* &b !c %d @e",
]


compile_template, compiled_templates = jinja2.Environment.compile, {}


def compile_once(environment, *template, **options):
    """Compile each template once, which takes most of the time in which a project is created."""
    if template not in compiled_templates:
        compiled_templates[template] = compile_template(environment, *template, **options)
    return compiled_templates[template]


def make(tmp_path, **answers):
    with pytest.MonkeyPatch.context() as patch:  # the hooks are programs
        patch.setattr(subprocess, "Popen", warm.PopenLight)
        patch.setattr(jinja2.Environment, "compile", compile_once)
        return bake(answers_of({"project_name": "My Agent", **answers}), tmp_path)


def requirement(template, repo_dir):
    hook = runpy.run_path(str(TEMPLATE / "hooks/post_gen_project.py"), run_name="hook")
    return hook["requirement"](template, repo_dir)


def files_in(project):
    return {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}


def pyproject(project):
    return tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]


def run(project, *command, code=0, env=None):
    """Run a Python program in a project; it ends with an exit code."""
    if command[0] == "-m" and command[1].partition(".")[0] in {SLUG, "pytest", "trieye"} and env is None:
        done = warm.run(list(command), project)
    elif command[0] == "-c" and env is None:
        done = warm.run(list(command), project, modules=warm.LIGHT)
    else:
        options = {"capture_output": True, "text": True, "check": False, "timeout": 280}
        done = subprocess.run([sys.executable, *command], cwd=project, env=env, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return make(tmp_path_factory.mktemp("default"))


def test_a_new_project_has_exactly_these_files(project):
    assert files_in(project) == FILES


def test_no_template_placeholders_remain_in_the_files(project):
    for path in project.rglob("*"):
        assert not re.search(r"\{\{|\}\}|\{%|%\}|\{#|#\}|cookiecutter|trieye-requirement", path.name), path
        if path.is_file() and path.suffix != ".whl" and path.name != "constraints.txt":
            text = path.read_text("utf-8")
            assert not re.search(r"\{\{|\}\}|\{%|%\}|cookiecutter|trieye-requirement", text), path
            assert re.fullmatch(r"(?s)[^\n].*[^\n]\n", text), f"{path} ends with one line break"


@pytest.mark.parametrize("slug", ["a", "a_package_whose_name_has_forty_charactes"])
def test_the_project_is_formatted_and_lint_free_for_any_name(tmp_path, slug):
    project = make(tmp_path, slug=slug, ci="none")
    assert files_in(project) == {name.replace(SLUG, slug) for name in FILES - {".github/workflows/ci.yml"}}
    for arguments in (["check"], ["format", "--check"]):
        run(project, "-m", "ruff", *arguments, ".")


def test_the_project_contains_a_trieye_wheel_and_the_tested_versions(project):
    assert pyproject(project)["dependencies"][0] == f"trieye @ {{root:uri}}/{WHEEL}"
    assert (project / "constraints.txt").read_bytes() == (ROOT / "constraints.txt").read_bytes()
    installed = importlib.metadata.distribution("trieye")
    with zipfile.ZipFile(project / WHEEL) as wheel:
        assert wheel.testzip() is None
        assert wheel.read("trieye/run/run.py") == (ROOT / "trieye/run/run.py").read_bytes()
        assert wheel.read("trieye/conf/runtime/ray.yaml") == (ROOT / "conf/runtime/ray.yaml").read_bytes()
        names = {name for name in wheel.namelist() if ".dist-info/" in name}
        assert names == {f"trieye-{installed.version}.dist-info/{name}" for name in METADATA}


def test_a_moved_project_depends_on_its_wheel_at_the_new_path(project, tmp_path):
    shutil.copytree(project, tmp_path / "moved there")
    moved = tmp_path / "moved there"
    build = "from hatchling.build import prepare_metadata_for_build_editable as prepare; print(prepare('.'))"
    done = run(moved, "-c", build)
    metadata = (moved / done.stdout.strip() / "METADATA").read_text("utf-8")
    assert f"Requires-Dist: trieye @ {moved.as_uri()}/{WHEEL}\n" in metadata, done.stderr


def test_the_project_imports_public_names_only(project):
    code = "\n".join(path.read_text("utf-8") for path in project.rglob("*.py"))
    assert set(re.findall(r"(?:from|import) (trieye\.\S+)", code)) == {"trieye.integrations.sb3"}


@pytest.mark.long
def test_the_commands_of_the_project_have_completion(project):
    scripts = pyproject(project)["scripts"]
    assert scripts == {f"{SLUG}-train": f"{SLUG}.train:train"}
    as_installed = "import sys; sys.argv[0] = 'my_agent-train'; from my_agent.train import train; train()"
    typed = {**os.environ, "COMP_LINE": "my_agent-train replay=", "COMP_POINT": "22"}
    done = run(project, "-c", as_installed, "-sc", "query=bash", env=typed)
    assert "replay=prioritized" in done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("https://example.org/trieye.git", "trieye @ git+https://example.org/trieye.git"),
        ("https://ann:s3cret@example.org/trieye.git", "trieye @ git+https://example.org/trieye.git"),
        ("gh:someone/trieye", "trieye @ git+https://github.com/someone/trieye"),
    ],
)
def test_a_project_made_from_a_repository_depends_on_it(tmp_path, template, expected):
    assert requirement(template, tmp_path / "trieye" / "template") == expected


GIT = {"vcs": "git", "commit_id": "1f2e"}


@pytest.mark.parametrize(
    ("direct_url", "expected"),
    [
        (None, "trieye>=0.2.0,<0.3"),
        ({"url": "file:///gone/trieye-0.2.0-py3-none-any.whl", "archive_info": {}}, "trieye>=0.2.0,<0.3"),
        ({"url": f"file://{ROOT}/README.md", "archive_info": {}}, f"trieye @ file://{ROOT}/README.md"),
        ({"url": "https://a:b@example.org/t.git", "vcs_info": GIT}, "trieye @ git+https://example.org/t.git@1f2e"),
    ],
)
def test_a_project_created_by_an_installed_trieye_depends_on_its_source(tmp_path, monkeypatch, direct_url, expected):
    (info := tmp_path / "trieye-0.2.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trieye\nVersion: 0.2.0\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    monkeypatch.syspath_prepend(tmp_path)
    assert requirement("somewhere", Path("/site-packages/trieye/template")) == expected


def test_make_install_uses_the_tested_versions(project):
    done = subprocess.run(["make", "-n", "install"], cwd=project, capture_output=True, text=True, check=True)
    assert "pip install --quiet -c constraints.txt -e '.[dev]'" in done.stdout


def test_all_licenses_and_algorithms_are_tested():
    choices = {each.name: each.choices for each in questions()}
    assert (tuple(LICENSES), {row[0] for row in PROJECTS}) == (choices["license"], {*choices["algorithm"]})


LONG_ID = "HandManipulateBlockRotateXYZ_BooleanTouchSensors"
PROJECTS = [  # algorithm, environment, license, Python, option of the environment, extra that it needs
    ("dqn", f"{LONG_ID}-v1", "MIT", "3.11", LONG_ID.lower(), ""),
    ("ppo", "ALE/Breakout-v5", "BSD-3-Clause", "3.12", "breakout", ",atari"),
    ("sac", None, "Apache-2.0", "3.13", "pendulum", ""),
    ("td3", "HalfCheetah-v4", "Proprietary", "3.13", "halfcheetah-v4", ",mujoco"),
    ("blank", "pkg.mod:My_Env-v0", "MIT", "3.11", "my_env", ""),
    ("single_file", "trieye.training.catch:Catch-v0", "MIT", "3.11", "catch", ""),
    ("sb3", "LunarLander-v3", "MIT", "3.11", "lunarlander", ",box2d"),
]


@pytest.mark.parametrize(("algorithm", "env_id", "license_name", "version", "option", "extra"), PROJECTS)
def test_answers_reach_configs_metadata_readme_and_ci(
    tmp_path, algorithm, env_id, license_name, version, option, extra
):
    env_answer = {"env_id": env_id} if env_id else {}
    typed = {"license": license_name, "author": "Ann Author", "python_version": version}
    project = make(tmp_path, algorithm=algorithm, **typed, **env_answer)
    assert files_in(project) == FILES | {f"conf/env/{option}.yaml"}  # a new option if no option has the environment
    assert yaml.safe_load((project / f"conf/env/{option}.yaml").read_text())["id"] == env_id or not env_id
    assert yaml.safe_load((project / "conf/env/cartpole.yaml").read_text())["id"] == "CartPole-v1"
    command = algorithm if algorithm in {"single_file", "sb3"} else "train"
    defaults = yaml.safe_load((project / "conf/train.yaml").read_text())["defaults"]
    single_file = yaml.safe_load((project / "conf/single_file.yaml").read_text())
    assert single_file.get("env_id") == (env_id if algorithm == "single_file" else None)
    chosen = [{"agent": algorithm if command == "train" else "dqn"}, {"env": option}]
    assert chosen == [entry for entry in defaults if {"agent", "env"} & set(entry)][::-1]
    readme, metadata = (project / "README.md").read_text(), pyproject(project)
    assert f"    python -m {SLUG}.{command} " in readme
    assert ("pip install 'trieye[sb3]'" in readme) == (algorithm != "sb3")
    trieye, gymnasium, *_ = metadata["dependencies"]
    assert trieye.startswith(f"trieye{'[sb3]' if algorithm == 'sb3' else ''} @ ")
    assert gymnasium == f"gymnasium[classic-control{extra}]>=1.1"
    expression, text = LICENSES[license_name]
    assert (metadata["license"], metadata["requires-python"]) == (expression, f">={version}")
    assert text in (project / "LICENSE").read_text()
    assert "Ann Author" in (project / "LICENSE").read_text()
    workflow = yaml.safe_load((project / ".github/workflows/ci.yml").read_text())
    assert workflow["jobs"]["test"]["steps"][1]["with"]["python-version"] == version


@pytest.mark.parametrize(
    ("slug", "env_id", "option"),
    [
        ("on", "2048-v0", "env_2048"),
        pytest.param("null", "pkg:On-v0", "env_on", marks=pytest.mark.long),
        pytest.param("mine", "pkg:Atari", "env_atari", marks=pytest.mark.long),
    ],
)
def test_answers_that_yaml_or_hydra_reads_as_other_values_compose(tmp_path, slug, env_id, option):
    project = make(tmp_path, slug=slug, env_id=env_id)
    for name in ("train", "sb3", "single_file"):
        assert yaml.safe_load((project / f"conf/{name}.yaml").read_text())["app_name"] == slug
    for overrides in ([], [f"env={option}"]):
        engine = f"agent.engine={slug}.dqn:DQN"  # the default of a class of the project
        config = trieye.compose(
            [*overrides, engine], config_path=str(project / "conf"), config_type=trieye.TrainingConfig
        )
        assert (config.app_name, config.env.id) == (slug, env_id)


def test_git_ignores_no_package_with_a_valid_name():
    lines = (TEMPLATE / "{{cookiecutter.slug}}/.gitignore").read_text().splitlines()
    assert {"build/", "dist/", "outputs/"} <= set(lines)
    names = [line.strip("/") for line in lines if not line.startswith("conf/")]
    assert [name for name in [*names, "wheels"] if complaint_about("slug", name) is None] == []
    assert complaint_about("slug", "distance") is None


@pytest.mark.long
def test_a_project_without_stable_baselines3_names_the_package_and_skips_its_tests(project, tmp_path):
    without = "import runpy, sys\nsys.modules['stable_baselines3'] = None\nsys.argv = sys.argv[1:]\n"
    without += "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    done = warm.run(["-c", without, f"{SLUG}.sb3", f"persistence.root_data_dir={tmp_path}"], project)
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: stable-baselines3 cannot be imported \(.*\): pip install 'trieye\[sb3\]'\n", done.stderr
    )
    assert list(tmp_path.iterdir()) == []
    done = warm.run(["-c", without, "pytest", "-q", "-p", "no:cacheprovider", "tests/test_sb3.py"], project)
    assert "1 skipped" in done.stdout, done.stdout + done.stderr
    assert "error" not in done.stdout


@pytest.mark.parametrize(
    ("shape", "planes"),
    [
        *(((10, 10, channels), (channels, 10, 10)) for channels in (4, 6, 7, 10)),  # MinAtar
        ((6, 10, 10), (6, 10, 10)),
        ((4, 84, 84), (4, 84, 84)),  # a stack of grey frames
        ((84, 84, 3), (3, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((3, 64, 96), (3, 64, 96)),
        ((2, 10, 10, 6), (12, 10, 10)),
        ((2, 2), (1, 2, 2)),  # sides below 3 pixels
        ((1, 9), (1, 1, 9)),
        ((2, 2, 3), (3, 2, 2)),
        ((4, 2, 5), (4, 2, 5)),  # a stack of small matrices
    ],
)
def test_the_convolutions_of_a_project_find_the_channel_axis_of_images(shape, planes):
    networks = runpy.run_path(str(TEMPLATE / "{{cookiecutter.slug}}" / "{{cookiecutter.slug}}" / "networks.py"))
    dtype = np.uint8 if len(shape) == 2 else np.float32
    encoder = networks["Encoder"](gym.spaces.Box(0, 1, shape, dtype), torch.nn.Identity())
    picture = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    convolutions = encoder.parts[0]
    assert convolutions.planes == planes
    received = []
    convolutions.layers.register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
    assert encoder(torch.from_numpy(picture)[None]).shape == (1, encoder.size)
    assert received[0].shape == (1, *planes)
    if planes[0] == shape[-1]:
        assert np.array_equal(received[0][0], picture.transpose(2, 0, 1))


@pytest.mark.parametrize(
    "texts",
    [
        HOSTILE[::3],
        HOSTILE[1::3],
        HOSTILE[2::3],
        *(pytest.param([text] * 3, marks=pytest.mark.long) for text in HOSTILE),
    ],
    ids=range(3 + len(HOSTILE)),
)
def test_hostile_text_yields_valid_files_with_the_same_text(tmp_path, texts):
    name, description, author = (" ".join(text.split()) for text in texts)
    project = make(tmp_path, **dict(zip(("project_name", "description", "author"), texts, strict=True)), slug=SLUG)
    assert files_in(project) == FILES
    metadata, readme = pyproject(project), (project / "README.md").read_text("utf-8")
    assert (metadata["name"], metadata["description"]) == (SLUG, description)
    assert metadata["authors"] == [{"name": author}]
    assert name in readme
    assert description in readme
    assert author in (project / "LICENSE").read_text("utf-8")
    for path in itertools.chain(project.rglob("*.yaml"), project.rglob("*.yml")):
        yaml.safe_load(path.read_text("utf-8"))
    assert compileall.compile_dir(project, quiet=2)


def plain_cookiecutter(folder, *answers, code=0):
    home = folder / "home"
    home.mkdir()
    arguments = ["-m", "cookiecutter", "--no-input", "--default-config", "-o", str(folder), str(TEMPLATE.resolve())]
    return run(folder, *arguments, *answers, code=code, env={"HOME": str(home), "PATH": "/usr/bin:/bin"})


@pytest.mark.long
def test_plain_cookiecutter_creates_the_same_project(tmp_path, project):
    plain_cookiecutter(tmp_path)
    for name in FILES:
        assert (tmp_path / SLUG / name).read_bytes() == (project / name).read_bytes(), name


def test_plain_cookiecutter_rejects_invalid_answers_and_leaves_no_files(tmp_path):
    error = plain_cookiecutter(tmp_path, "slug=torch", code=1).stderr
    assert "slug 'torch' would shadow the installed package" in error
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_help_of_the_project_imports_no_heavy_libraries(project):
    code = (
        "import sys, runpy\nsys.argv = ['train', '--help']\n"
        f"try: runpy.run_module('{SLUG}.train', run_name='__main__')\nexcept SystemExit: pass\n"
        "print('loaded', [name for name in ('torch', 'gymnasium', 'ray', 'mlflow') if name in sys.modules])"
    )
    done = run(project, "-c", code)
    assert done.stdout.rstrip().endswith("loaded []"), done.stdout + done.stderr


OMITTED = (
    "test_train.py::test_a_killed_run_resumes_with_bit_identical_weights",
    "test_train.py::test_dqn_trains_and_its_saved_policy_acts_and_is_evaluated",
    *(
        f"test_train.py::test_an_algorithm_trains_and_saves_a_checkpoint[{agent}]"
        for agent in ("blank", "ppo", "recurrent_ppo", "sac")
    ),
    *(f"test_config.py::test_an_error_names_the_key[overrides{index}" for index in range(4)),
    "test_config.py::test_check_rejects_an_environment_that_does_not_fit",
    "test_config.py::test_every_option_composes",
    "test_sb3.py::test_a_run_resumes_and_is_evaluated[DQN]",
)
"""Tests that only `make soak` runs: other tests, such as training/test_project_overrides.py, do the same."""


@pytest.mark.parametrize("omitted", [OMITTED, pytest.param((), marks=pytest.mark.long)], ids=["some", "all"])
@pytest.mark.slow
def test_the_tests_of_the_project_pass(project, omitted):
    options = [f"--deselect=tests/{name}" for name in omitted]
    done = run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options)
    assert re.search(r"\d+ passed", done.stdout)


SB3 = ["sinks=[]", "loop.evaluate_every_steps=0", "env.eval_episodes=1"]


@pytest.mark.slow
@pytest.mark.long  # a signal and kills of such runs are in test_sb3.py and soak/sb3_kills.py
def test_a_killed_run_of_stable_baselines3_resumes(project, tmp_path):
    typed = [*SB3, "algorithm=DQN", "loop.steps=12_000", "persistence.checkpoint_save_freq_steps=1000", "run_name=one"]
    command = ["-m", f"{SLUG}.sb3", *typed, f"persistence.root_data_dir={tmp_path}"]
    run_dir = tmp_path / SLUG / "runs" / "one"
    with subprocess.Popen([sys.executable, *command], cwd=project, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until((run_dir / "checkpoints/checkpoint_step_2000").exists, pause_s=0.1)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    done = run(project, *command)
    assert "continues at step" in done.stderr
    assert json.loads((run_dir / "run.json").read_text())["attempt"] == 2
    assert (run_dir / "checkpoints/checkpoint_step_12000").exists()


@pytest.mark.slow
@pytest.mark.long
def test_runs_of_stable_baselines3_are_swept(project, tmp_path):
    typed = [*SB3, "-m", "algorithm=PPO,DQN", "loop.steps=200", f"persistence.root_data_dir={tmp_path}"]
    done = run(project, "-m", f"{SLUG}.sb3", *typed, f"hydra.sweep.dir={tmp_path}/sweep")
    assert "2 done" in done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_a_project_with_discrete_observations_trains(tmp_path):
    project = make(tmp_path, env_id="FrozenLake-v1")
    run(project, "-m", f"{SLUG}.train", "debug=limit")


@pytest.fixture
def package(project, monkeypatch):
    """Import the package of the project in this process, from the directory of the project."""
    monkeypatch.setattr(registration, "current", registration.current)
    monkeypatch.syspath_prepend(project)
    monkeypatch.chdir(project)
    yield SLUG
    for name in [name for name in sys.modules if name.partition(".")[0] == SLUG]:
        del sys.modules[name]


def compose(package, module, *overrides, config_name="train"):
    """Compose a config of a module of the project."""
    config_module = importlib.import_module(f"{package}.{module}")
    config_type = getattr(config_module, "TrainConfig" if module == "config" else "Config")
    return trieye.compose(
        overrides, config_path=Path("conf").absolute(), config_name=config_name, config_type=config_type
    )


@pytest.mark.slow
def test_the_blank_experiment_plays_in_the_configured_environment(package, tmp_path):
    words = ["agent=blank", "env=cartpole_positions", "debug=limit", "run_name=blank"]
    trieye.train(compose(package, "config", *words, f"persistence.root_data_dir={tmp_path}"))
    checkpoint = trieye.load_checkpoint(tmp_path / SLUG / "runs" / "blank", "latest")
    assert checkpoint.objects["experiment"]["state"]["weights"].shape == (2, 2)  # without velocities


def test_the_blank_experiment_rejects_what_it_ignores(package, tmp_path):
    words = ["agent=blank", "explorer.num=2", "env.num=2", "runtime=local", f"persistence.root_data_dir={tmp_path}"]
    with pytest.raises(trieye.ConfigurationError, match=r"agent=blank does not support explorer\.num, env\.num$"):
        trieye.train(compose(package, "config", *words))


def test_the_single_file_rejects_what_it_ignores(package):
    rejected = {
        "loop.time_s=3": "loop.time_s is not supported by single_file",
        "loop.steps=null": "loop.steps=null: single_file requires a number of steps",
        "env_id=Pendulum-v1": "env_id=Pendulum-v1: no actions 0 to n - 1: Box(",
        "env_id=CartPol-v1": "env_id=CartPol-v1: Environment `CartPol` doesn't exist.",
    }
    for override, message in rejected.items():
        with pytest.raises(trieye.ConfigurationError) as caught:
            compose(package, "single_file", override, config_name="single_file").check()
        assert str(caught.value).startswith(message), override


@pytest.mark.long
@pytest.mark.slow
def test_the_single_file_evaluates_a_budget_below_the_evaluation_interval(project, tmp_path):
    words = ["loop.steps=20", "eval_episodes=1", "sinks=[]", "run_name=short", f"persistence.root_data_dir={tmp_path}"]
    run(project, "-m", f"{SLUG}.single_file", *words)
    record = json.loads((tmp_path / SLUG / "runs" / "short" / "run.json").read_text())
    assert record["status"] == "FINISHED"
    assert record["summary"]["eval/return"]["step"] == 20


@pytest.mark.long
@pytest.mark.slow
def test_an_unknown_environment_is_an_error_before_files_are_created(project, tmp_path):
    typed = [f"persistence.root_data_dir={tmp_path}", "env.id=CartPol-v1"]
    for flags in ([], ["-m", "seed=0,1", f"hydra.sweep.dir={tmp_path}/sweep"]):
        done = run(project, "-m", f"{SLUG}.train", *flags, *typed, code=2)
        assert done.stderr.startswith(
            "error: env.id=CartPol-v1 is not registered with Gymnasium; did you mean 'CartPole-v1'?"
        )
        assert "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("agent", ["dqn:QPolicy", "ppo:ActorCritic", "sac:GaussianActor", "td3:DeterministicActor"])
def test_normalized_images_are_not_scaled_as_bytes_again(package, agent):
    kind, _, policy_class = agent.partition(":")
    config_module, module, networks = (
        importlib.import_module(f"{package}.{name}") for name in ("config", kind, "networks")
    )
    config = config_module.TrainConfig(agent={"kind": kind}, env={"id": "x", "normalize_observations": True})
    actions = gym.spaces.Discrete(3) if kind in {"dqn", "ppo"} else gym.spaces.Box(-1.0, 1.0, (2,))
    pictures = torch.randint(256, (32, 40, 40, 1))
    features = []
    for dtype in (np.uint8, np.float32):
        torch.manual_seed(0)
        pixels = gym.spaces.Box(0, 255, (40, 40, 1), dtype)
        policy = getattr(module, policy_class)(config, trieye.Spaces(pixels, actions))
        critics = networks.Critics(policy.spaces.observation, policy.normalizer, 2, [8])
        policy.normalizer.update(pictures)
        features.append([part(pictures) for part in (policy.encoder, critics.encoder)])
    assert all(map(torch.equal, *features))


PROFILED = ["debug=profiler", "loop.steps=100", "loop.profile_steps=2"]


@pytest.fixture(scope="module")
def trained(project, tmp_path_factory):
    """Return the root directory of a run `one` that was trained and profiled."""
    root = tmp_path_factory.mktemp("trained")
    run(project, "-m", f"{SLUG}.train", *PROFILED, f"persistence.root_data_dir={root}", "run_name=one")
    return root


def profile(root):
    return (root / SLUG / "runs" / "one" / "profile_data" / "table.txt").read_text()


@pytest.mark.slow
def test_a_profile_of_updates_is_in_the_run_directory(trained):
    assert "Adam" in profile(trained)


@pytest.mark.slow
@pytest.mark.long
def test_updates_that_begin_with_the_last_step_are_profiled(project, tmp_path):
    words = [*PROFILED, "agent=sac", "env=pendulum", "agent.learning_starts=100", "run_name=one"]
    run(project, "-m", f"{SLUG}.train", *words, f"persistence.root_data_dir={tmp_path}")
    assert "Adam" in profile(tmp_path)


@pytest.mark.long
def test_a_finished_run_is_reported_without_heavy_imports(project, trained):
    typed = ["train", *PROFILED, f"persistence.root_data_dir={trained}", "run_name=one"]
    code = (
        f"import sys, runpy\nsys.argv = {typed}\n"
        f"try: runpy.run_module('{SLUG}.train', run_name='__main__')\nexcept SystemExit: pass\n"
        "print('loaded', [name for name in ('torch', 'ray', 'mlflow') if name in sys.modules])"
    )
    again = run(project, "-c", code)
    assert again.stdout == "loaded []\n"
    assert "run 'one' is finished: loop.steps=100 done; raise the limit" in again.stderr


@pytest.mark.slow
def test_a_run_can_be_evaluated_by_name_by_path_and_as_the_newest(package, trained, tmp_path, monkeypatch, capsys):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    (checkpoint,) = (tmp_path / SLUG / "runs" / "one" / "checkpoints").glob("checkpoint_step_*")
    state, manifest = json.loads((checkpoint / "state.json").read_text()), read_manifest(checkpoint)
    state["config"]["env"]["id"], state["config"]["***"] = "***", {"env.id": "GAME"}  # as if it were a secret
    (checkpoint / "state.json").write_text(json.dumps(state))
    size_bytes, crc32, _ = sums_of(checkpoint / "state.json")
    entry = manifest.files["state.json"].model_copy(update={"size_bytes": size_bytes, "crc32": crc32})
    rewrite_manifest(checkpoint, manifest.model_copy(update={"files": {**manifest.files, "state.json": entry}}))
    main_arguments = ["evaluate", "--root", str(tmp_path), "--episodes", "3", "--json"]
    assert main([*main_arguments, "one"]) == 2
    errors = capsys.readouterr().err
    assert ("env.id is a secret" in errors, "GAME" in errors) == (True, True)
    monkeypatch.setenv("GAME", "CartPole-v1")
    for name in (["one"], [str(tmp_path / SLUG / "runs" / "one")], []):
        main([*main_arguments, *name])
        report = json.loads(capsys.readouterr().out)
        assert (report["run"], report["episodes"]) == ("one", 3), name
