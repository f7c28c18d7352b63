"""Hydra's own tests of launchers that start programs, half a minute of them; `make test-matrix` runs them."""

import shutil

import pytest
from hydra.core.singleton import Singleton
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite
from hydra.version import VersionBase

_LATER = "ignore:\\s*Future Hydra versions will no longer change working directory:UserWarning"  # no version_base there


@pytest.fixture(autouse=True)
def _as_in_a_fresh_process(hydra_restore_singletons):
    """Forget which version Hydra is to behave like, as other tests of this process have said."""
    state = Singleton.get_state()
    state["instances"].pop(VersionBase, None)
    Singleton.set_state(state)


@pytest.mark.filterwarnings(_LATER)
@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"), [({}, ["-m", "hydra/launcher=trieye", "hydra.launcher.isolate=none"])]
)
class TestProgramsInThisProcess(IntegrationTestSuite):
    def generate_custom_cmd(self):
        """Delete the sweep if a test starts two programs in one directory; the second would have nothing to do."""

        def command(words, filename):
            del filename
            shutil.rmtree("cli_dir", ignore_errors=True)
            return words

        return command
