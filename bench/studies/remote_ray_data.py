"""The work of `remote.py --against` by Ray Data: two epochs of `iter_batches` in order.

Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import ray

ROWS = 32


class Work:
    """A sample takes its time."""

    def __init__(self, sample_s: float, size: int) -> None:
        self.sample_s, self.value = sample_s, np.arange(size, dtype=np.int64).astype(np.uint8)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the samples of a batch."""
        rows = len(batch["id"])
        time.sleep(rows * self.sample_s)
        return {"x": np.repeat(self.value[None], rows, axis=0), "id": batch["id"]}


def main() -> None:
    """Read two epochs."""
    terms = json.loads(sys.argv[1])
    ray.init(address=terms["address"], log_to_driver=False, logging_level="error")
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    data = ray.data.range(terms["count"]).map_batches(
        Work,
        fn_constructor_args=(terms["sample_s"], terms["size"]),
        batch_size=ROWS,
        num_cpus=0.1,
        concurrency=terms["actors"],
    )
    first_s = samples = 0.0
    began_cpu_s = time.process_time()
    for _ in range(2):
        began_s, first_s = time.perf_counter(), 0.0
        for batch in data.iter_batches(batch_size=ROWS):
            first_s = first_s or time.perf_counter() - began_s
            samples += len(batch["id"])
    print(
        json.dumps(
            {
                "first_s": first_s,
                "cpu_s": (time.process_time() - began_cpu_s) / samples,
                "samples": samples,
            }
        )
    )


if __name__ == "__main__":
    main()
