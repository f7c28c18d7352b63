"""The rules of ARCHITECTURE.md: imports point down, a heavy library has one home, start-up is light."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "trieye"

LAYERS = [
    {"exceptions", "schemas", "run_lock", "niceness", "waiting"},
    {"config"},
    {
        "stats",
        "replay",
        "persistence",
        "path_manager",
        "serializer",
        "progress",
        "signals",
        "pending_saves",
        "stepping",
        "event_values",
        "media",
    },
    {"sinks", "testing"},
    {
        "actor_state",
        "stats_processor",
        "ledger_marks",
        "fold",
        "ledger",
        "hub_files",
        "saved_states",
        "hub_status",
        "ticker",
        "tracking",
        "actor_logic",
        "detached_hub",
        "actor_arguments",
        "actor",
    },
    {"runtime", "delivery", "flusher", "recorder"},
    {"application", "attempt", "run_client", "client"},
    {"experiment", "finished"},
    {"cli"},
]
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}

HOMES = {
    "mlflow": {"sinks/mlflow/sink.py"},
    "tensorboard": {"sinks/event_*.py"},
    "hydra": {"config/hydra/compose.py", "config/_hydra_*.py"},
    "omegaconf": {"config/hydra/compose.py", "config/_hydra_*.py"},
    "ray": {"actor.py", "actor_arguments.py", "detached_hub.py", "runtime/ray_*.py"},
    "torch": {"persistence/*.py", "replay/device.py"},
    "cloudpickle": {"persistence/*.py"},
    "safetensors": {"persistence/*.py"},
    "pyarrow": {"persistence/history/*.py", "replay/exchange/parquet.py"},
    "fsspec": {"mirror/store.py"},
    "filelock": {"run_lock.py", "sinks/mlflow*.py"},
    "cookiecutter": {"cli/template.py"},
    "PIL": {"media.py", "sinks/wandb.py"},
    "wandb": {"sinks/wandb.py"},
    "rich": {"progress.py", "config/hydra/tree.py", "cli/*.py"},
}

MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if not {"conf", "template"} & set(path.relative_to(PACKAGE).parts)
)


def parts_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts


@functools.cache
def imported(path):
    """Return every module that a file imports, inside functions too; type-checking blocks left out."""
    return list(_imported(path))


def _imported(path):
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def test_every_module_has_a_layer():
    assert {parts_of(path)[0] for path in MODULES} - {"__init__"} == set(LAYER)


def test_imports_point_down():
    upwards = [
        f"{path.relative_to(ROOT)} imports {name}, which lies above it"
        for path in set(MODULES) - {PACKAGE / "__init__.py"}
        for name in imported(path)
        if name.startswith("trieye.") and LAYER[name.split(".")[1]] > LAYER[parts_of(path)[0]]
    ]
    assert upwards == []


def test_a_heavy_library_has_one_home():
    users = {(path.relative_to(PACKAGE), name.split(".")[0]) for path in MODULES for name in imported(path)}
    known = [(user, library) for user, library in users if library in HOMES]
    strays = [(user, library) for user, library in known if not any(user.match(place) for place in HOMES[library])]
    assert strays == []


def modules_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import trieye",
        "import trieye.config, trieye.schemas, trieye.exceptions",
        "import trieye.cli",
        "from trieye import main",
    ],
)
def test_start_up_is_light(code):
    assert not {"ray", "torch", "mlflow", "tensorboard", "numpy"} & modules_after(code)


def test_every_public_name_can_be_imported():
    import trieye

    for name in trieye.__all__:
        assert getattr(trieye, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        trieye.nonsense  # noqa: B018


def test_the_names_of_trieye_0_1_5_are_all_there():
    import trieye

    names = {
        "DEFAULT_METRICS", "ActorLogic", "ActorState", "AggregationMethod", "BufferData", "CheckpointData",
        "ConfigurationError", "DataSource", "LoadedTrainingState", "LogContext", "LogTarget", "MetricConfig",
        "PathManager", "PersistenceConfig", "ProcessingError", "RawMetricEvent", "SerializationError", "Serializer",
        "StatsConfig", "StatsProcessor", "TrieyeActor", "TrieyeConfig", "TrieyeError", "XAxis",
    }  # fmt: skip
    assert len(names) == 24
    assert names <= set(trieye.__all__)


def test_the_version_is_that_of_the_package():
    import trieye

    assert trieye.__version__ == re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]


def test_architecture_names_only_what_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"`((?:\w+/)+)`", text):
        assert (ROOT / name).is_dir() or (PACKAGE / name).is_dir(), name
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", text):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name


def test_files_and_functions_stay_small():
    for path in MODULES:
        text = path.read_text()
        assert text.count("\n") <= 400, f"{path} is longer than 400 lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                doc = ast.get_docstring(node) or ""
                assert node.end_lineno - node.lineno - doc.count("\n") <= 52, f"{path}: {node.name} is too long"
