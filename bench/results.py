"""Results read back: medians, spread, and ratios of runs that stood side by side."""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a results file, one a line."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


class Results:
    """All records of one run of the bench, by case, contender and repetition."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.records = records
        self._figures: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        for record in records:
            if "figures" in record:
                runs = self._figures.setdefault((record["case"], record["contender"]), {})
                runs[record["repetition"]] = record["figures"]

    def contenders(self, case: str) -> list[str]:
        """Who has figures in a case, in the order they ran."""
        return [contender for of_case, contender in self._figures if of_case == case]

    def values(self, case: str, contender: str, figure: str) -> dict[int, Any]:
        """One figure of each repetition; empty when it was not measured."""
        runs = self._figures.get((case, contender), {})
        return {number: run[figure] for number, run in runs.items() if figure in run}

    def median(self, case: str, contender: str, figure: str) -> float | None:
        """The median over the repetitions."""
        values = self.values(case, contender, figure)
        return median(values.values()) if values else None

    def spread(self, case: str, contender: str, figure: str) -> tuple[float, float] | None:
        """The least and the most of the repetitions."""
        values = self.values(case, contender, figure).values()
        return (min(values), max(values)) if values else None

    def ratio(self, case: str, contender: str, to: str, figure: str = "per_batch_s") -> float | None:
        """The median, over repetitions, of a contender's figure over another's in the same repetition."""
        above, below = self.values(case, contender, figure), self.values(case, to, figure)
        pairs = [above[number] / below[number] for number in above if below.get(number)]
        return median(pairs) if pairs else None

    def errors(self) -> list[dict[str, Any]]:
        """The records of runs that gave no figures."""
        return [record for record in self.records if "error" in record]
