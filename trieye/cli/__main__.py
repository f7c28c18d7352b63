"""`python -m trieye.cli`, for where the `trieye` command is not on the path."""

import sys

from trieye.cli import main

sys.exit(main())
