"""The command ``ringfeed top``: running loaders of other processes, live in the terminal.

``top PID`` draws those of one process; ``top --ranks`` has a line for each rank of this host, and
says whose data is late. Ranks that train together take each step together. The rank whose batch
comes late waits for it in its loader; the others wait for that rank, in the framework, and their
loaders have batches ready. So the late rank is the one that waits.
"""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections import Counter
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple, TextIO

from rich.console import Console, Group
from rich.layout import Layout
from rich.live import Live
from rich.table import Table

from ringfeed._checks import check_seconds
from ringfeed._units import show_s
from ringfeed.errors import RingfeedError
from ringfeed.monitor.bottleneck import WAITED
from ringfeed.orders.ranks import VARIABLES
from ringfeed.system.channel import readable
from ringfeed.tools.discover import Attached, Target, is_started_by, processes, variables_of
from ringfeed.tools.render import Pair, line, picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import RenderableType
    from rich.text import Text

    from ringfeed.monitor.waits import Waits

FIRST_S = 0.5  # the first picture comes soon
WIDE = 120  # columns, where there is no terminal

HEAD = ("rank", "pid", "loader", "batches/s", "waits", "p50", "p95", "p99", "longest", "busy")
NO_LOADER = "no process of yours has a running loader"
MUCH = 0.5  # of the longest waiting, from which another rank is late, too


def top(pid: int, *, interval_s: float = 1.0, number: int | None = None, once: bool = False) -> str:
    """Show a process's loaders until they or it end, or q or Ctrl-C comes; return what ended it.

    ``number`` chooses one of several loaders. In a terminal the picture is drawn anew every
    ``interval_s``; elsewhere one is written below the other, or a single one (``once``).

    Raises RingfeedError where there is no such process or loader, or it may not be looked at.
    """
    check_seconds("interval", interval_s, "the time between two looks")
    with Target(pid) as target, suppress(KeyboardInterrupt):
        if not _look(target, number):
            raise RingfeedError(_missing(target, number))
        with drawing(once=once) as (show, keys):
            title = line((f"ringfeed top   process {pid}   {target.command}", "reverse"))
            pause_s = interval_s if once else min(interval_s, FIRST_S)
            while not target.wait(pause_s, keys):
                if keys is not None and is_quit(keys):
                    return ""
                loaders = _look(target, number)
                if not loaders:
                    return f"process {pid} has closed what was shown"
                show(
                    title, [picture(target, loader) for loader in loaders if len(loader.looks) > 1]
                )
                if once:
                    return ""
                pause_s = interval_s
            return f"process {pid} has ended"
    return ""


def _look(target: Target, number: int | None) -> list[Attached]:
    """Look at all loaders that are to be shown; returns those there are now."""
    loaders = [loader for loader in target.loaders() if number in (None, loader.number)]
    for loader in loaders:
        loader.look()
    return loaders


def _missing(target: Target, number: int | None) -> str:
    if count := len(target.loaders()):
        those = (
            "its only one has number 1"
            if count == 1
            else f"those that run are numbered 1 to {count}"
        )
        return f"process {target.pid} has no loader {number}: {those}"
    if target.refusal:
        return f"process {target.pid}: {target.refusal}"
    return f"process {target.pid} has no running loader: an epoch begins one, and close() ends it"


def drawing(*, once: bool) -> AbstractContextManager[tuple[Callable[..., None], int | None]]:
    """Give what draws a title and pictures, live or as text, and where keys come from."""
    is_live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not once
    return _terminal() if is_live else nullcontext((_write, None))


def _write(title: Text, pictures: list[RenderableType]) -> None:
    """Write pictures as plain text, each below the one before."""
    console = Console(width=WIDE, color_system=None, force_terminal=False)
    with console.capture() as text:
        console.print(Group(title, *(Group("", picture) for picture in pictures)))
    lines = (row.rstrip() for row in text.get().splitlines())
    sys.stdout.write("\n".join(lines) + "\n\n")
    sys.stdout.flush()


# ---- a terminal ----


def _is_for_us(stdin: TextIO | None) -> bool:
    """Whether this process may change how keys come.

    The kernel would stop one in the background of a shell.
    """
    if stdin is None or not stdin.isatty():
        return False
    try:
        return os.tcgetpgrp(stdin.fileno()) == os.getpgrp()
    except OSError:  # no shell controls this process by this terminal
        return True


@contextmanager
def _keys() -> Iterator[int | None]:
    """Read each key of the terminal at once and unseen; at the end the terminal is as before.

    Yields the descriptor that keys are read from, or None where this process has no terminal.
    """
    if not _is_for_us(sys.stdin):
        yield None
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def is_quit(keys: int) -> bool:
    """Whether q was pressed, or there will be no keys any more."""
    return bool(readable([keys], 0)) and os.read(keys, 1) in b"q"


@contextmanager
def _terminal() -> Iterator[tuple[Callable[..., None], int | None]]:
    """Draw pictures in the place of those before; the terminal is as it was when this ends."""
    with _keys() as keys, Live(console=Console(), screen=True, auto_refresh=False) as live:

        def show(title: Text, pictures: list[RenderableType]) -> None:
            layout = Layout()  # the pictures share the lines of the terminal
            layout.split_column(Layout(title, size=2), *map(Layout, pictures))
            live.update(layout, refresh=True)

        yield show, keys


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
        found = _look_at_all(targets, pid, stack)
        if not found:
            raise RingfeedError(NO_LOADER if pid is None else f"{NO_LOADER} that {pid} has started")
        show, keys = stack.enter_context(drawing(once=once))
        pause_s = interval_s if once else min(interval_s, FIRST_S)
        while True:
            if any(map(is_quit, readable([] if keys is None else [keys], pause_s))):
                return ""
            if not (found := _look_at_all(targets, pid, stack)):
                return "all that was shown has ended"
            rows = rows_of(found)
            title = line((f"ringfeed top   ranks of this host   {len(rows)} loaders", "reverse"))
            show(title, [_table(rows), line(late(rows))])
            if once:
                return ""
            pause_s = interval_s
    return ""


def _look_at_all(
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
