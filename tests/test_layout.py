"""The rules of ARCHITECTURE.md: imports point down, a heavy library has one home, start-up is light."""

import ast
import functools
import gc
import graphlib
import importlib
import importlib.metadata
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests import private_apis
from tests.private_apis import nodes_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "trieye"
MODULES_PAGE = ROOT / "docs/modules.md"

PACKAGES = (
    "cli", "compat", "integrations", "testing", "training", "tune", "results", "runs", "sweeps", "experiment", "run",
    "hub", "remote", "sinks", "replay", "mirror", "history", "journal", "checkpoints", "snapshot", "stats", "files",
    "config", "process", "renames", "version", "exceptions",
)  # fmt: skip
"""From top to bottom: a module imports from its own package and from later ones."""

ALIASES = {
    "actor": {"TrieyeActor", "actor_name", "get_or_create"},
    "actor_logic": {"ActorLogic"},
    "actor_state": {"ActorState"},
    "path_manager": {"PathManager"},
    "schemas": {"BufferData", "CheckpointData", "LoadedTrainingState", "LogContext", "RawMetricEvent"},
    "serializer": {"Serializer"},
    "stats_processor": {"StatsProcessor"},
}
"""The module names of trieye 0.1.5: compatibility aliases."""

HOMES = {
    "mlflow": {"sinks/mlflow/*"},
    "tensorboard": {"sinks/tensorboard/*"},
    "wandb": {"sinks/wandb.py", "integrations/wandb/offline.py"},
    "hydra": {"config/hydra/*", "sweeps/*er.py", "sweeps/working.py"},
    "omegaconf": {"config/hydra/*", "sweeps/*er.py", "sweeps/working.py"},
    "ray": {
        "compat/actor*.py",
        "hub/actor.py",
        "hub/*ray*.py",
        "replay/remote/actor.py",
        "training/exploring/*ray*.py",
        "sweeps/in_ray.py",
        "tune/s*.py",
        "tune/trainable.py",
        "tune/watching.py",
    },
    "torch": {
        "training/*",
        "testing/training_contracts.py",
        "experiment/profiling.py",
        "snapshot/*",
        "compat/pickles.py",
        "replay/prefetch.py",
        "integrations/*",
    },
    "cloudpickle": {"snapshot/objects.py", "sweeps/main_module.py", "sweeps/working.py"},
    "safetensors": {"snapshot/*"},
    "pyarrow": {"history/*", "results/*", "replay/exchange/files.py"},
    "fsspec": {"mirror/store.py"},
    "filelock": {"process/lock.py", "sinks/mlflow/*"},
    "cookiecutter": {"cli/new.py"},
    "PIL": {"run/media.py", "run/video.py", "sinks/wandb.py"},
    "av": {"run/video.py"},
    "rich": {"process/terminal.py", "process/progress.py", "run/application.py", "sweeps/progress.py", "cli/*"},
    "matplotlib": {"results/plots.py", "results/report.py", "results/terminal.py", "integrations/media.py"},
    "jinja2": {"results/report.py"},
    "plotext": {"results/terminal.py"},
}

MODULE_LIST = """# Modules

Each module of `trieye/` with the first line of its docstring, package by package from the top of the import order down.
[ARCHITECTURE.md](../ARCHITECTURE.md) describes the packages. `python tests/test_layout.py` generates this page.
"""


@pytest.fixture(scope="module", autouse=True)
def _no_garbage_collection():
    """Each collection would traverse the 500,000 nodes of the syntax trees: a third of the time of these tests."""
    gc.disable()
    yield
    gc.enable()


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {
    name_of(path): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in {"conf", "template"}
}


@functools.cache
def imported(name):
    """Return every module that a module imports, including imports in functions and for type checkers."""
    return set(_imported(MODULES[name])) - {name}


def _imported(path):
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & MODULES.keys()
            if names - MODULES.keys():
                yield node.module


def package_of(name):
    return name.split(".")[1]


def imports_within_trieye():
    """Yield each module in a package, with the modules of trieye that it imports."""
    for name in MODULES.keys() - {"trieye"} - {f"trieye.{module}" for module in ALIASES}:
        yield name, {other for other in imported(name) if other.startswith("trieye.")}


def test_imports_point_down():
    assert {package_of(name) for name in MODULES if "." in name} <= {*PACKAGES, *ALIASES}
    upwards = [
        f"{name} imports {other}, which is an alias or above it"
        for name, others in imports_within_trieye()
        for other in others
        if package_of(other) in ALIASES or PACKAGES.index(package_of(other)) < PACKAGES.index(package_of(name))
    ]
    assert upwards == []


def test_no_modules_import_each_other():
    try:
        graphlib.TopologicalSorter(dict(imports_within_trieye())).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"these import each other: {' <- '.join(error.args[1])}")


def test_a_heavy_library_has_one_home():
    users = {(name, other.split(".")[0]) for name in MODULES for other in imported(name)}
    violations = [
        f"{name} imports {library}, whose home is {' or '.join(sorted(HOMES[library]))}"
        for name, library in users
        if library in HOMES
        if not any(fnmatchcase(MODULES[name].relative_to(PACKAGE).as_posix(), pattern) for pattern in HOMES[library])
    ]
    assert violations == []


def test_consoles_and_tables_of_rich_have_one_home():
    parsing = {"rich.console", "rich.table", "rich.text", "rich.markup", "rich.progress", "rich.prompt", "rich.panel"}
    homes = {"trieye.process.terminal", "trieye.process.progress"}  # a bar is built of columns of rich.table
    assert {name for name in MODULES if imported(name) & parsing} == homes, (
        "use trieye.process.terminal: it has no markup"
    )


def test_the_module_names_of_trieye_0_1_5_are_compatibility_aliases():
    for module, names in ALIASES.items():
        docstring, *imports, exported = ast.parse((PACKAGE / f"{module}.py").read_text()).body
        assert isinstance(docstring, ast.Expr), module
        assert all(isinstance(node, ast.ImportFrom) for node in imports), module
        assert {alias.name for node in imports for alias in node.names} == names, module
        assert ast.unparse(exported) == f"__all__ = {sorted(names)}", module


def test_private_apis_of_dependencies_are_in_the_table_with_a_test():
    rows = private_apis.table()
    sources = {module: path.read_text() for module, path in private_apis.modules().items()}
    listed = {(row.module, name) for row in rows for name in (row.api, *row.api.split("."))}
    assert private_apis.used() - listed == set(), "describe them in docs/private_apis.md"
    assert [row for row in rows if row.api.rpartition(".")[2] not in sources[row.module]] == [], "no longer used"
    for path, _, name in {row.test.partition("::") for row in rows}:
        decorators = decorators_of(name, ROOT / "tests" / path)
        is_omitted = "@pytest.mark.slow" in decorators or "@pytest.mark.long" in decorators
        assert not is_omitted or "@pytest.mark.canary" in decorators, f"make canary omits {name}; mark it as canary"


def decorators_of(name, path):
    """Return the lines above the function of a test."""
    before, definition, _ = path.read_text().partition(f"\ndef {name}(")
    assert definition, f"{path} has no {name}"
    return before.rpartition("\n\n")[2].splitlines()


def test_test_folders_mirror_the_packages():
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    assert [folder for folder in folders if not (PACKAGE / folder).is_dir()] == []


def modules_after(code):
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_start_up_is_light():
    code = "import trieye.cli, trieye.config, trieye.exceptions, trieye.results, trieye.runs; from trieye import main"
    assert not {"ray", "torch", "mlflow", "tensorboard", "numpy"} & modules_after(code)


def test_the_sink_contract_and_the_parameters_of_a_run_import_neither_torch_nor_file_systems():
    code = (
        "from pathlib import Path; from trieye.sinks.tensorboard.summaries import session_start; "
        "from trieye.testing import SinkContract, make_run_info; session_start({'lr': '0.1'}, make_run_info(Path()))"
    )
    assert not {"torch", "boto3", "botocore", "fsspec"} & modules_after(code)


def test_every_public_name_can_be_imported():
    import trieye

    for name in trieye.__all__:
        assert getattr(trieye, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        trieye.nonsense  # noqa: B018


def test_all_names_of_trieye_0_1_5_are_public():
    import trieye

    names = {
        "DEFAULT_METRICS", "ActorLogic", "ActorState", "AggregationMethod", "BufferData", "CheckpointData",
        "ConfigurationError", "DataSource", "LoadedTrainingState", "LogContext", "LogTarget", "MetricConfig",
        "PathManager", "PersistenceConfig", "ProcessingError", "RawMetricEvent", "SerializationError", "Serializer",
        "StatsConfig", "StatsProcessor", "TrieyeActor", "TrieyeConfig", "TrieyeError", "XAxis",
    }  # fmt: skip
    assert len(names) == 24
    assert names <= set(trieye.__all__)


def test_the_version_equals_that_of_the_distribution():
    import trieye

    assert trieye.__version__ == importlib.metadata.version("trieye")


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/internals.md", "docs/glossary.md"])
def test_the_files_and_packages_that_a_page_names_exist(page):
    text = (ROOT / page).read_text()
    for name in re.findall(r"`((?:\w+/)+)`", text):
        assert (ROOT / name).is_dir() or (PACKAGE / name).is_dir(), name
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", text):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name


@pytest.mark.parametrize("page", ["docs/guarantees.md", "docs/performance.md"])
def test_the_tests_that_a_page_of_promises_cites_run_in_make_test(page):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / page).read_text())
    assert len(named) > 5
    for path, name in named:
        assert "@pytest.mark.long" not in decorators_of(name, ROOT / path), f"make test omits {name}"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/internals.md"])
def test_the_names_that_a_page_locates_in_a_file_exist(page):
    named = re.findall(r"`(\w+)` (?:of|in|\()\s?`([\w/]+\.py)`", (ROOT / page).read_text())
    assert len(named) >= 3
    files = {name: next(path for path in (PACKAGE / name, ROOT / name) if path.exists()) for _, name in named}
    assert [(word, name) for word, name in named if not re.search(rf"\b{word}\b", files[name].read_text())] == []


def test_architecture_lists_the_packages_in_import_order():
    listed = re.findall(r"^\| `trieye/(\w+)(?:/|\.py)`", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert listed == [
        package for package in PACKAGES if (PACKAGE / package).is_dir() or (PACKAGE / f"{package}.py").is_file()
    ]


def module_list():
    """Return a line for each module of the packages, with the first line of its docstring."""
    lines = []
    for package in PACKAGES:
        lines += ["", f"## {package}", ""] if package in {package_of(name) for name in MODULES if "." in name} else []
        for path in (path for name, path in MODULES.items() if "." in name and package_of(name) == package):
            module = nodes_of(path)[0]
            if path.name != "__init__.py" or len(module.body) > 1:
                lines.append(f"- `{path.relative_to(PACKAGE)}`: {ast.get_docstring(module).splitlines()[0]}")
    return "\n".join(lines) + "\n"


def test_the_module_list_is_up_to_date():
    assert MODULES_PAGE.read_text() == MODULE_LIST + module_list(), "run `python tests/test_layout.py`"


LAZY = ("trieye", "trieye.results", "trieye.runs")
"""Packages whose public names are imported on first use."""


def stub_of(name):
    return PACKAGE.joinpath(*name.split(".")[1:], "__init__.pyi")


def stub(name):
    """Return the stub, for type checkers and editors, of a package with lazily imported public names."""
    package = importlib.import_module(name)
    title = f"Public names of {name}, for type checkers and editors; `python tests/test_layout.py` writes it."
    lines = [f'"""{title}"""', ""]
    lines += [f"from {home} import {name} as {name}" for name, home in sorted(package._HOME.items(), key=by_home)]
    return "\n".join([*lines, *(["", "__version__: str"] if name == "trieye" else []), ""])


def by_home(item):
    return item[1], item[0]


@pytest.mark.parametrize("name", LAZY)
def test_the_stub_declares_the_public_names(name):
    assert stub_of(name).read_text() == stub(name), "rewrite it with `python tests/test_layout.py`"
    assert sorted(importlib.import_module(name)._HOME) == sorted(
        set(importlib.import_module(name).__all__) - {"__version__"}
    )


def test_lazily_imported_names_do_not_clash_with_modules():
    names = {f"{package}.{name}" for package in LAZY for name in importlib.import_module(package)._HOME}
    assert names & MODULES.keys() == set(), "importing the module hides the name; rename either"


def test_files_and_functions_stay_small():
    for path in MODULES.values():
        assert path.read_text().count("\n") <= 500, f"{path} is longer than 500 lines"
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef):
                doc = ast.get_docstring(node) or ""
                assert node.end_lineno - node.lineno - doc.count("\n") <= 52, f"{path}: {node.name} is too long"


if __name__ == "__main__":
    MODULES_PAGE.write_text(MODULE_LIST + module_list())
    for name in LAZY:
        stub_of(name).write_text(stub(name))
