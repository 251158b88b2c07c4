"""Print one hash of all orders of resumes.py: rows and states, without workers and with two.

The same on every system: `make test-portable` compares that of Linux with that of the portable layer.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from itertools import chain

from resumes import EVERY, ORDERS, Whole


def hash_of(workers: int) -> str:
    """Return the hash of all orders, each read with this number of workers."""
    found = hashlib.sha256()
    for name, order in ORDERS.items():
        with order.loader(workers=workers) as loader:
            whole = Whole.of(loader, EVERY)
        found.update(name.encode() + b"".join(chain(*whole.batches)))
        found.update(json.dumps(whole.states, sort_keys=True).encode())
    return found.hexdigest()[:16]


def main() -> int:
    """Print it; where workers make a difference, print both, and return 1."""
    warnings.simplefilter("ignore", RuntimeWarning)  # that workers are threads
    hashes = {hash_of(workers) for workers in (0, 2)}
    sys.stdout.write(" ".join(sorted(hashes)) + "\n")
    return len(hashes) - 1


if __name__ == "__main__":
    sys.exit(main())
