"""Hydra's own tests of launchers that start programs, half a minute of them; `make test-matrix` runs them."""

import shutil

import pytest
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite

pytestmark = [
    pytest.mark.usefixtures("as_in_a_fresh_process"),
    pytest.mark.filterwarnings("ignore:\\s*Future Hydra versions will no longer change working directory:UserWarning"),
]


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
