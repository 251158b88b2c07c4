"""Which contender meets which workload, for how long, under which words in the tables; and what is made to grow."""

from __future__ import annotations

from typing import NamedTuple

from contenders import CONTENDERS, MODEL

OURS = ("ringfeed",)
LOADERS = tuple(name for name in CONTENDERS if name not in {"ideal", "plain"})
# The gain of the one is with small batches, that of the other before the first one.
ALL = tuple(name for name in CONTENDERS if name not in {"torch-arrays", "ringfeed-fork"})
KERAS = tuple(name for name in LOADERS if name.startswith("keras"))
PROCESSES = tuple(
    name for name in LOADERS if name not in {"keras-threads", "tf-generator", "tf-function"}
)
MEMORY = (*OURS, "torch", "keras-processes")


class Case(NamedTuple):
    """One workload, or one special measurement, and which contenders take part in it."""

    title: str
    short: str
    contenders: tuple[str, ...]
    seconds: float  # in the steady state, each repetition
    able: tuple[str, ...] = tuple(CONTENDERS)  # which others can be asked to
    quick: tuple[str, ...] = ()  # which take part in a quick run; none: it is left out of one
    once: bool = False  # it is no time: one repetition tells it
    needs: tuple[tuple[str, str], ...] = ()  # packages, whichever take part: pip's name, module


FIRST = (
    "ringfeed",
    "ideal",
    "plain",
    "keras-processes",
    "keras-threads",
    "torch",
    "torch-arrays",
    "tf-generator",
)
QUICK = ("ringfeed", "ideal", "plain", "keras-processes", "keras-threads", "torch")
TWO = ("ringfeed", "ideal", "torch")
THROUGHPUT = (
    "ready",
    "tiny",
    "resident",
    "pixels",
    "arrays",
    "jpeg",
    "jpeg/warm",
    "slow",
    "variable",
)
RESIDENT = "64 x 224 x 224 x 3 float32, 38.5 MB a batch, copied from an array in memory"
PIXELS = "64 x 224 x 224 x 3 uint8, 9.6 MB a batch, copied from an array in memory"
ARRAYS = "128 x 32 x 32 x 3 float32 and a number, from NumPy arrays of 50 000 rows, shuffled"
JPEG = "32 photographs a batch, decoded from JPEG, cropped and flipped"
WARM = "The same, with every process's heap kept warm by glibc's own variables"
SLOW = "16 samples a batch, each waited for 2 ms"
VARIABLE = "32 samples a batch, one in fifty costs fifty times as much"
PLAIN, UNGUARDED = "plain script", "TensorFlow at the top, no main guard"

CASES = {
    "ready": Case(
        "A ready batch of 1 kB per index: the hand-over alone",
        "ready 1 kB batch",
        FIRST,
        1.5,
        quick=QUICK,
    ),
    "tiny": Case(
        "32 samples of 32 bytes a batch",
        "32 tiny samples",
        ("ringfeed", "ideal", "plain", "torch", "torch-arrays", "grain"),
        1.5,
        quick=TWO,
    ),
    "resident": Case(
        RESIDENT,
        "38.5 MB batch",
        (*QUICK, "tf-generator", "grain", "spdl-pool", "spdl-pools"),
        2.0,
        quick=QUICK,
    ),
    "pixels": Case(PIXELS, "9.6 MB batch", TWO, 1.5),
    "arrays": Case(
        ARRAYS,
        "arrays, shuffled",
        ("ringfeed", "ideal", "plain", "torch-ready"),
        1.5,
        quick=TWO[:2],
    ),
    "jpeg": Case(JPEG, "32 JPEG photographs", ALL, 3.0, quick=QUICK),
    "jpeg/warm": Case(WARM, "32 JPEG photographs, warm heaps", ALL, 3.0),
    "slow": Case(SLOW, "slow source", ALL, 1.5, quick=TWO[:2]),
    "variable": Case(VARIABLE, "variable cost", ALL, 2.0, quick=TWO[:2]),
    "epochs": Case("small epochs", "between epochs", LOADERS, 2.0, LOADERS, quick=OURS, once=True),
    "calls/ready": Case("ready 1 kB batch", "ready 1 kB batch", OURS, 1.0, LOADERS, quick=OURS),
    "calls/tiny": Case("32 tiny samples", "32 tiny samples", OURS, 1.0, LOADERS, once=True),
    "calls/resident": Case("38.5 MB batch", "38.5 MB batch", OURS, 1.0, LOADERS, once=True),
    "memory/plain": Case(PLAIN, "memory", MEMORY, 1.5, LOADERS, quick=OURS),
    # A tensor of torch may repeat a picture without holding it twice: its memory would say nothing.
    "memory/unguarded": Case(UNGUARDED, "memory", OURS, 1.5, (*OURS, *KERAS), quick=OURS),
    "first_batch/plain": Case(PLAIN, "first batch", LOADERS, 0.0, LOADERS, quick=OURS),
    "first_batch/unguarded": Case(UNGUARDED, "first batch", OURS, 0.0, (*OURS, *KERAS), quick=OURS),
    "ahead": Case("32 samples of 3 kB a batch", "read ahead", LOADERS, 0.0, LOADERS, once=True),
    "kill": Case("all workers killed in mid-epoch", "kill", OURS, 0.0, LOADERS, quick=OURS),
    "kill_one": Case(
        "one worker killed in mid-epoch", "one killed", PROCESSES, 0.0, PROCESSES, quick=OURS
    ),
}
BACKENDS = ("tensorflow", "jax", "torch")  # the first is there wherever Keras is measured
SIZES = ("input-bound", "compute-bound")
INPUT = "input/jpeg"  # beside `fit`, for which it is a bound
FED = (MODEL, "ringfeed", "keras-processes")
CASES[INPUT] = Case(
    "The input of `fit`, and no training", "input of fit", OURS, 3.0, OURS, quick=OURS
)
FIT = {
    f"fit/{backend}/{size}": Case(
        f"{backend}, {size}",
        f"Keras fit on {backend}, {size}",
        FED,
        3.0,
        (*FED, "keras-threads"),
        quick=FED[:2] if backend == BACKENDS[0] else (),
        needs=(("keras", "keras"), (backend, backend)),
    )
    for backend in BACKENDS
    for size in SIZES
}
CASES |= FIT


class Axis(NamedTuple):
    """What grows, how far, and what of it is a batch's cost."""

    title: str
    points: tuple[int, ...]
    figure: str = "per_batch_s"
    head: str = "time per batch"


AXES = {
    "bytes": Axis("bytes in a ready batch", (10**3, 10**4, 10**5, 10**6, 10**7, 10**8)),
    "slots": Axis("slots, ready batches of 1 kB", (2, 4, 8, 16, 64, 256)),
    "workers": Axis("workers, 32 tiny samples a batch", (0, 1, 2, 4, 8, 16, 32)),
    "length": Axis("samples in the dataset, shuffled, 32 a batch", (10**3, 10**5, 10**7, 10**9)),
    "fields": Axis("fields of a sample, 32 a batch", (1, 3, 10, 30, 100)),
    "epoch": Axis(
        "ready batches in an epoch", (1, 2, 4, 16, 64), "between_s", "from one epoch to the next"
    ),
}


def names_of(case: str) -> set[str]:
    """The names that mean a case: its own, and what stands before each of its slashes."""
    parts = case.split("/")
    return {"/".join(parts[: count + 1]) for count in range(len(parts))}


def chosen_cases(names: list[str], *, quick: bool = False) -> list[str]:
    """The cases meant by names: `ready`, `memory` (both scripts), `fit/jax`; all, or all quick ones, by none.

    Where `fit` is meant, so is its input.
    """
    if not names:
        return [case for case, facts in CASES.items() if facts.quick or not quick]
    chosen = [case for case in CASES if not names_of(case).isdisjoint(names)]
    return [
        case
        for case in CASES
        if case in chosen or (case == INPUT and not FIT.keys().isdisjoint(chosen))
    ]


def contenders_of(
    case: str, chosen: list[str], *, case_named: bool, quick: bool = False
) -> list[str]:
    """Which contenders run a case: of the chosen its own contenders, or all that can if the case was named as well."""
    facts = CASES[case]
    willing = facts.able if chosen and case_named else facts.contenders
    usual = facts.quick if quick and facts.quick else facts.contenders
    return [name for name in chosen or usual if name in willing]
