"""One job of the bench: what a fresh process is to measure, as it travels on its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One contender on one workload, once."""

    workload: str
    contender: str
    repetition: int
    workers: int
    slots: int
    seconds: float  # how long to measure in the steady state
    answer: str  # the file that takes the figures
    batches: int = 0  # in an epoch of `fit`; 0: as many as are usual

    def as_argument(self) -> str:
        """The job as one word of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, text: str) -> Job:
        """The job that `as_argument` wrote."""
        return cls(**json.loads(text))

    def finish(self, **facts: Any) -> None:
        """Write what was measured where the runner looks for it."""
        Path(self.answer).write_text(json.dumps(facts))
