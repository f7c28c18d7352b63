"""Public names of trieye.results, for type checkers and editors; `python tests/test_layout.py` writes it."""

from trieye.results.groups import Groups as Groups
from trieye.results.groups import Scoring as Scoring
from trieye.results.loading import load as load
from trieye.results.results import Results as Results
