"""Hydra's launcher test suites applied to trieye's launcher: on Ray, locally, in this process, and in batches."""

import pytest
from hydra.test_utils.launcher_common_tests import BatchedSweeperTestSuite, LauncherTestSuite

pytestmark = [
    pytest.mark.usefixtures("as_in_a_fresh_process"),
    pytest.mark.filterwarnings("ignore:\\s*Future Hydra versions will no longer change working directory:UserWarning"),
]


@pytest.mark.long
@pytest.mark.parametrize(("launcher_name", "overrides"), [("trieye", ["hydra.launcher.isolate=worker"])])
class TestOnRay(LauncherTestSuite):
    @pytest.fixture(autouse=True)
    def _ray(self, ray_cluster):
        pass


@pytest.mark.parametrize(
    ("launcher_name", "overrides"), [("trieye", ["hydra.launcher.backend=local", "hydra.launcher.isolate=worker"])]
)
class TestInLocalProcesses(LauncherTestSuite):
    pass


@pytest.mark.long
@pytest.mark.parametrize(
    ("launcher_name", "overrides"),
    [("trieye", ["hydra/sweeper=basic", "hydra.sweeper.max_batch_size=2", "hydra.launcher.isolate=none"])],
)
class TestBatches(BatchedSweeperTestSuite):
    pass


@pytest.mark.long
@pytest.mark.parametrize(("launcher_name", "overrides"), [("trieye", ["hydra.launcher.isolate=none"])])
class TestInThisProcess(LauncherTestSuite):
    pass
