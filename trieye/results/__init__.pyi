"""Public names of trieye.results, for type checkers and editors; `python tests/test_layout.py` writes it."""

from trieye.results.groups import RunGroups as RunGroups
from trieye.results.groups import ScoreDefinition as ScoreDefinition
from trieye.results.loading import load as load
from trieye.results.results import Results as Results
