"""Hydra's launcher test suites applied to trieye's launcher: on Ray, locally, in this process, and in batches."""

import pytest
from hydra.core.singleton import Singleton
from hydra.test_utils.launcher_common_tests import BatchedSweeperTestSuite, LauncherTestSuite
from hydra.version import VersionBase

_LATER = "ignore:\\s*Future Hydra versions will no longer change working directory:UserWarning"  # no version_base there


@pytest.fixture(autouse=True)
def _as_in_a_fresh_process(hydra_restore_singletons):
    """Forget which version Hydra is to behave like, as other tests of this process have said."""
    state = Singleton.get_state()
    state["instances"].pop(VersionBase, None)
    Singleton.set_state(state)


@pytest.mark.long
@pytest.mark.filterwarnings(_LATER)
@pytest.mark.parametrize(("launcher_name", "overrides"), [("trieye", ["hydra.launcher.isolate=worker"])])
class TestOnRay(LauncherTestSuite):
    @pytest.fixture(autouse=True)
    def _ray(self, ray_cluster):
        pass


@pytest.mark.filterwarnings(_LATER)
@pytest.mark.parametrize(
    ("launcher_name", "overrides"), [("trieye", ["hydra.launcher.backend=local", "hydra.launcher.isolate=worker"])]
)
class TestInLocalProcesses(LauncherTestSuite):
    pass


@pytest.mark.long
@pytest.mark.filterwarnings(_LATER)
@pytest.mark.parametrize(
    ("launcher_name", "overrides"),
    [("trieye", ["hydra/sweeper=basic", "hydra.sweeper.max_batch_size=2", "hydra.launcher.isolate=none"])],
)
class TestBatches(BatchedSweeperTestSuite):
    pass


@pytest.mark.long
@pytest.mark.filterwarnings(_LATER)
@pytest.mark.parametrize(("launcher_name", "overrides"), [("trieye", ["hydra.launcher.isolate=none"])])
class TestInThisProcess(LauncherTestSuite):
    pass
