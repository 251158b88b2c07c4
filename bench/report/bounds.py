"""What an epoch of `fit` cannot be shorter than: the input alone, the model alone, and what was computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.cases import INPUT

if TYPE_CHECKING:
    from report.results import Results


def bounds(results: Results, case: str, contender: str) -> dict[int, dict[str, float]]:
    """Of each repetition the three, seconds a batch, and how many times the largest of them the epoch was.

    The CPU seconds are those that the contender's own epoch used, over the cores there are.
    `over_work` takes in their place those of the input alone and of the model alone together.
    """
    cores = results.records[0]["machine"]["cores"]
    took, used = (
        results.values(case, contender, name) for name in ("per_batch_s", "cpu_s_per_batch")
    )
    alone = [(INPUT, "ringfeed"), (case, "model")]
    times = [results.values(*part, "per_batch_s") for part in alone]
    work = [results.values(*part, "cpu_s_per_batch") for part in alone]
    found = {}
    for number in took:
        if all(number in values for values in (*times, *work)):
            input_s, model_s = (values[number] for values in times)
            cpu_s, work_s = used[number] / cores, sum(values[number] for values in work) / cores
            found[number] = {
                "input_s": input_s,
                "model_s": model_s,
                "cpu_s": cpu_s,
                "over_largest": took[number] / max(input_s, model_s, cpu_s),
                "over_work": took[number] / max(input_s, model_s, work_s),
            }
    return found
