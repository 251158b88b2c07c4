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
        """Which contenders have figures in a case, in the order they ran."""
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

    def ratios(
        self, case: str, contender: str, to: str, figure: str = "per_batch_s"
    ) -> list[float]:
        """A contender's figure over another's in each repetition that has both."""
        above, below = self.values(case, contender, figure), self.values(case, to, figure)
        return [above[number] / below[number] for number in above if below.get(number)]

    def ratio(
        self, case: str, contender: str, to: str, figure: str = "per_batch_s"
    ) -> float | None:
        """The median of these."""
        ratios = self.ratios(case, contender, to, figure)
        return median(ratios) if ratios else None

    def repetitions(self) -> dict[str, set[int]]:
        """Of each case, how many repetitions its contenders have."""
        found: dict[str, set[int]] = {}
        for (case, _), runs in self._figures.items():
            found.setdefault(case, set()).add(len(runs))
        return found

    def errors(self) -> list[dict[str, Any]]:
        """The records of runs that gave no figures."""
        return [record for record in self.records if "error" in record]
