"""``python -m ringfeed`` is the command ``ringfeed``."""

from __future__ import annotations

import sys

from ringfeed.tools.main import main

if __name__ == "__main__":
    sys.exit(main())
