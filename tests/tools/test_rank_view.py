"""`ringfeed top --ranks`: the loaders of several ranks in one table, and whose data is late."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack

import pytest

from ringfeed.errors import RingfeedError
from ringfeed.monitor.waits import Waits
from ringfeed.tools.discover import is_started_by, variables_of
from ringfeed.tools.main import main
from ringfeed.tools.top import Row, late, top_ranks
from trainer import Trainer
from watching import wait_until

pytestmark = pytest.mark.once


def row(rank: str, waited: float, p95_s: float = 0.0, loader: int = 1) -> Row:
    """A loader that was waited for during this share of the time."""
    return Row(rank, 7, loader, 24.0, waited, 0.5, Waits(100, 0.0, p95_s, p95_s, p95_s))


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([row("rank 0", 0.9)], "there is one rank: no other to compare it with"),
        (
            [row("rank 0", 0.04), row("rank 1", 0.0)],
            "no rank's data is late: all have their batches ready",
        ),
        (
            [row("rank 0", 0.01), row("rank 1", 0.62, 0.0419), row("rank 2", 0.0)],
            "rank 1's data is late: rank 1 waits 62% of the time, p95 41.9 ms a batch; the others "
            "wait up to 1% of the time",
        ),
        (
            [row("rank 0", 0.5, 0.002), row("rank 1", 0.3, 0.001), row("rank 2", 0.1)],
            "rank 0's and rank 1's data is late: rank 0 waits 50% of the time, p95 2.0 ms a batch, "
            "rank 1 waits 30% of the time, p95 1.0 ms a batch; the others wait up to 10% of the time",
        ),
        (
            [row("rank 0", 0.5, 0.002), row("rank 1", 0.4, 0.001)],
            "every rank waits for its data: rank 0 waits 50% of the time, p95 2.0 ms a batch, rank "
            "1 waits 40% of the time, p95 1.0 ms a batch",
        ),
        (
            [row("rank 0", 0.0), row("rank 0", 0.7, 0.002, loader=2), row("rank 1", 0.0)],
            "rank 0's data is late: rank 0 waits 70% of the time, p95 2.0 ms a batch; the others "
            "wait up to 0% of the time",
        ),
    ],
)
def test_who_is_late(rows: list[Row], text: str) -> None:
    """Those that wait at least half as much as the one that waits most; of each its worst loader."""
    assert late(rows) == text


READ = """
import threading
def feed(loader):
    for batch in loader.repeat():
        time.sleep(0.002)
threading.Thread(target=feed, args=(loader,), daemon=True).start()
"""


def train(trainer: Trainer, sleep_s: float, shard: str = "None") -> None:
    """Have a process read batches for ever, each of two samples that take so long."""
    for statement in (
        f"loader = ringfeed.Loader(Oracle(64, sleep_s={sleep_s}), batch_size=2, workers=1, "
        f'slots=2, backend="thread", shard={shard})',
        f"exec({READ!r})",
        "while loader.stats().batches < 5: time.sleep(0.01)".replace(": ", ":\n "),
    ):
        trainer.do(f"exec({statement!r}, globals())")


@pytest.mark.usefixtures("nothing_left")
def test_ranks_of_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks are known by their environment, or by their shard; the one whose samples are slow is late."""
    with ExitStack() as stack:
        trainers = []
        for rank in range(3):
            for name, value in {"RANK": rank, "WORLD_SIZE": 3}.items():
                monkeypatch.setenv(name, str(value))
            trainers.append(stack.enter_context(Trainer()))
        for rank, trainer in enumerate(trainers):
            shard = "ringfeed.Shard(2, 3)" if rank == 2 else "None"
            train(trainer, 0.03 if rank == 1 else 0.0, shard)
        assert main(["top", str(os.getpid()), "--ranks", "--once", "--interval", "1.5"]) == 0
    title, head, *lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert title.startswith("ringfeed top   ranks of this host   3 loaders")
    assert head.split() == [
        *("rank", "pid", "loader", "batches/s", "waits", "p50", "p95", "p99", "longest", "busy")
    ]
    shown = [re.split(r"  +", line.strip())[:3] for line in lines[:3]]
    assert shown == [[f"rank {n}", f"{one.pid}", "1"] for n, one in enumerate(trainers)]
    assert lines[3].startswith("rank 1's data is late: rank 1 waits ")


@pytest.mark.usefixtures("nothing_left")
def test_processes_without_a_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are named by their numbers, and so are two jobs' processes of one rank."""
    monkeypatch.delenv("RANK", raising=False)
    with Trainer() as one, ExitStack() as stack:
        monkeypatch.setenv("RANK", "0")
        others = [stack.enter_context(Trainer()) for _ in range(2)]
        for trainer in (one, *others):
            train(trainer, 0.0)
        assert main(["top", str(os.getpid()), "--ranks", "--once", "--interval", "0.3"]) == 0
        text = capsys.readouterr().out
        for trainer in (one, *others):
            assert re.search(rf"process {trainer.pid} +{trainer.pid} +1 ", text)


@pytest.mark.usefixtures("nothing_left")
def test_until_all_have_ended() -> None:
    """The view ends with the last loader, and names why there is nothing to show."""
    with Trainer() as trainer:
        train(trainer, 0.0)
        with pytest.raises(RingfeedError) as caught:
            top_ranks(2**22 + 1)
        assert str(caught.value) == (
            f"no process of yours has a running loader that {2**22 + 1} has started"
        )
        trainer.begin("time.sleep(1) or os._exit(0)")
        assert top_ranks(os.getpid(), interval_s=0.1) == "all that was shown has ended"


def test_ancestors_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is started by all above it; a process that is gone is nobody's, without variables."""
    monkeypatch.setenv("RANK", "5")
    with Trainer() as trainer:
        # Popen returns when the new program has closed its pipe, a little before /proc has these.
        wait_until(lambda: variables_of(trainer.pid).get("RANK") == "5")
        assert is_started_by(trainer.pid, os.getpid())
        assert is_started_by(trainer.pid, trainer.pid)
        assert not is_started_by(os.getpid(), trainer.pid)
    assert variables_of(2**22 + 1) == {}
    assert not is_started_by(2**22 + 1, os.getpid())
