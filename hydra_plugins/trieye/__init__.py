"""Search path plugin for the configs of trieye; every Hydra program imports it, so it imports nothing of trieye."""

import sys

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class TrieyeSearchPath(SearchPathPlugin):
    """Adds the groups and the schema of trieye, only in programs that have registered a config type."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add them after the configs of the program, whose files take precedence."""
        registration = sys.modules.get("trieye.config.hydra.registration")
        if registration is not None:
            registration.join(search_path)
