"""The command ``ringfeed top --ranks``: the loaders of all ranks of this host, and whose are late.

Ranks that train together take each step together. The rank whose batch comes late waits for it in
its loader; the others wait for that rank, in the framework, and their loaders have batches ready.
So the late rank is the one that waits.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from ringfeed._checks import check_seconds
from ringfeed._units import show_s
from ringfeed.errors import RingfeedError
from ringfeed.monitor.bottleneck import WAITED
from ringfeed.orders.ranks import VARIABLES
from ringfeed.system.channel import readable
from ringfeed.tools.discover import Target, is_started_by, processes, variables_of
from ringfeed.tools.render import Pair, line
from ringfeed.tools.top import FIRST_S, drawing, is_quit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringfeed.monitor.waits import Waits
    from ringfeed.tools.discover import Attached

HEAD = ("rank", "pid", "loader", "batches/s", "waits", "p50", "p95", "p99", "longest", "busy")
NO_LOADER = "no process of yours has a running loader"
MUCH = 0.5  # of the longest waiting, from which another rank is late, too


class Row(NamedTuple):
    """A loader of a rank: what it did in the last seconds.

    ``waited`` and ``busy`` are shares of the time, of training and of a worker.
    """

    rank: str
    pid: int
    loader: int
    batches_per_s: float
    waited: float
    busy: float
    waits: Waits

    @property
    def cells(self) -> tuple[str, ...]:
        """The line's text, column by column."""
        times = (show_s(wait_s) if wait_s else "none" for wait_s in self.waits[1:])
        figures = (f"{self.batches_per_s:,.1f}", f"{self.waited:.0%}", *times, f"{self.busy:.0%}")
        return (self.rank, f"{self.pid}", f"{self.loader}", *figures)


def top_ranks(pid: int | None = None, *, interval_s: float = 1.0, once: bool = False) -> str:
    """Show the loaders of all ranks in one table until they end, or q or Ctrl-C comes.

    ``pid``: only of processes that this one, such as torchrun, has started. Returns what ended it.
    RingfeedError where no process has a loader.
    """
    check_seconds("interval", interval_s, "the time between two looks")
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        targets: dict[int, Target] = {}
        found = _look(targets, pid, stack)
        if not found:
            raise RingfeedError(NO_LOADER if pid is None else f"{NO_LOADER} that {pid} has started")
        show, keys = stack.enter_context(drawing(once=once))
        pause_s = interval_s if once else min(interval_s, FIRST_S)
        while True:
            if any(map(is_quit, readable([] if keys is None else [keys], pause_s))):
                return ""
            if not (found := _look(targets, pid, stack)):
                return "all that was shown has ended"
            rows = rows_of(found)
            title = line((f"ringfeed top   ranks of this host   {len(rows)} loaders", "reverse"))
            show(title, [_table(rows), line(late(rows))])
            if once:
                return ""
            pause_s = interval_s
    return ""


def _look(
    targets: dict[int, Target], ancestor: int | None, stack: ExitStack
) -> list[tuple[Target, Attached]]:
    """Look at the loaders that there are now, each once: a forked process has its parent's, too."""
    found: dict[int, tuple[Target, Attached]] = {}
    for pid, _, _ in processes():
        with suppress(RingfeedError):  # it ended meanwhile
            if ancestor is None or is_started_by(pid, ancestor):
                if pid not in targets:
                    targets[pid] = stack.enter_context(Target(pid))
                for loader in targets[pid].loaders():
                    found.setdefault(loader.inode, (targets[pid], loader))
    for _, loader in found.values():
        loader.look()
    return list(found.values())


def rows_of(found: Iterable[tuple[Target, Attached]]) -> list[Row]:
    """Return a row for each loader that has been looked at twice, by their ranks."""
    shown = [(target, loader) for target, loader in found if len(loader.looks) > 1]
    ranks = {target.pid: _rank_of(target.pid, loader) for target, loader in shown}
    times = Counter(ranks.values())
    rows = []
    for target, loader in shown:
        pair, rank = Pair(loader.looks[0], loader.looks[-1]), ranks[target.pid]
        stats, crew = pair.stats(), sum(worker.pid > 0 for worker in pair.after.workers)
        name = f"rank {rank}" if rank is not None and times[rank] == 1 else f"process {target.pid}"
        rows.append(
            Row(
                name,
                target.pid,
                loader.number,
                batches_per_s=stats.batches / pair.seconds,
                waited=stats.stall_s / pair.seconds,
                busy=stats.busy_s / pair.seconds / max(crew, 1),
                waits=pair.waits(),
            )
        )
    return sorted(rows, key=lambda row: (ranks[row.pid] or 0, row.pid, row.loader))


def _rank_of(pid: int, loader: Attached) -> int | None:
    """Return the rank that a loader has said, or that a launcher gave its process."""
    rank, world_size = loader.observer.rank()
    if world_size > 1:
        return rank
    variables = variables_of(pid)
    said = (variables.get(name, "") for name, _ in VARIABLES.values())
    return next((int(text) for text in said if text.isdecimal()), None)


def late(rows: Iterable[Row]) -> str:
    """Say which ranks' data is late: those that wait, while the others do not."""
    slowest: dict[str, Row] = {}  # of each rank
    for row in rows:
        if row.rank not in slowest or row.waited > slowest[row.rank].waited:
            slowest[row.rank] = row
    if len(slowest) <= 1:
        return "there is one rank: no other to compare it with"
    most = max(row.waited for row in slowest.values())
    if most < WAITED:
        return "no rank's data is late: all have their batches ready"
    behind = [row for row in slowest.values() if row.waited >= MUCH * most]
    others = [row.waited for row in slowest.values() if row.waited < MUCH * most]
    if not others:
        return f"every rank waits for its data: {', '.join(_waiting(behind))}"
    names = " and ".join(f"{row.rank}'s" for row in behind)
    return (
        f"{names} data is late: {', '.join(_waiting(behind))}; the others wait up to "
        f"{max(others):.0%} of the time"
    )


def _waiting(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        p95 = show_s(row.waits.p95_s)
        yield f"{row.rank} waits {row.waited:.0%} of the time, p95 {p95} a batch"


def _table(rows: Iterable[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in HEAD:
        table.add_column(name, justify="left" if name == "rank" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row.cells, style="yellow" if row.waited >= WAITED else "")
    return table
