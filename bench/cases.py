"""Which contender meets which workload, for how long, and under which words in the tables."""

from __future__ import annotations

from typing import NamedTuple

from contenders import ASKED, CONTENDERS


class Case(NamedTuple):
    """One workload, or one special measurement, and who takes part in it."""

    title: str
    short: str
    contenders: tuple[str, ...]
    seconds: float  # in the steady state, each repetition
    able: tuple[str, ...] = tuple(CONTENDERS)  # who else can be asked to
    by_default: bool = True


EVERYBODY = tuple(name for name in CONTENDERS if name not in ASKED)
USUAL = tuple(name for name in EVERYBODY if name != "torch-arrays")  # its gain is with small batches
LOADERS = tuple(name for name in CONTENDERS if name not in {"ideal", "plain"})
KERAS = tuple(name for name in LOADERS if name.startswith("keras"))
OURS = ("ringfeed",)
MEMORY = (*OURS, "torch", "keras-processes")
THROUGHPUT = ("ready", "resident", "jpeg", "tiny")
RESIDENT = "64 x 224 x 224 x 3 float32, 38.5 MB a batch, copied from an array in memory"
JPEG = "32 photographs a batch, decoded from JPEG and cropped"
PLAIN, UNGUARDED = "plain script", "TensorFlow at the top, no main guard"

CASES = {
    "ready": Case("A ready batch of 1 kB per index: the hand-over alone", "ready 1 kB batch", EVERYBODY, 1.5),
    "resident": Case(RESIDENT, "38.5 MB batch", USUAL, 2.0),
    "jpeg": Case(JPEG, "32 JPEG photographs", USUAL, 3.0),
    "tiny": Case("32 samples of 32 bytes a batch", "32 tiny samples", EVERYBODY, 1.5, by_default=False),
    "memory/plain": Case(PLAIN, "memory", MEMORY, 1.5, LOADERS),
    # A tensor of torch may repeat a picture without holding it twice: its memory would say nothing.
    "memory/unguarded": Case(UNGUARDED, "memory", OURS, 1.5, (*OURS, *KERAS)),
    "first_batch/plain": Case(PLAIN, "first batch", OURS, 0.0, LOADERS),
    "first_batch/unguarded": Case(UNGUARDED, "first batch", OURS, 0.0, (*OURS, *KERAS)),
    "kill": Case("all workers killed in mid-epoch", "kill", OURS, 0.0, LOADERS),
}


def chosen_cases(names: list[str]) -> list[str]:
    """The cases meant by names: `ready`, `memory` (both scripts), `memory/plain`; the usual ones by none."""
    if not names:
        return [case for case, facts in CASES.items() if facts.by_default]
    return [case for case in CASES if case in names or case.partition("/")[0] in names]


def contenders_of(case: str, chosen: list[str], *, case_named: bool) -> list[str]:
    """Who runs a case: of the chosen its own contenders, or all that can if the case was named as well."""
    facts = CASES[case]
    willing = facts.able if chosen and case_named else facts.contenders
    return [name for name in chosen or facts.contenders if name in willing]
