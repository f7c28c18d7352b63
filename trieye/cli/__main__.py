"""Entry point of `python -m trieye.cli`, for environments whose PATH lacks the `trieye` command."""

import sys

from trieye.cli import main

sys.exit(main())
