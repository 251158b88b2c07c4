"""How long slots are registered, with a CUDA runtime that is none.

See test_torch_cuda for a GPU.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import fakecuda
import ringfeed
from datasets import Misbehaving, Oracle, check, drain
from fakecuda import FakeCuda
from ringfeed._process import Finalizer
from ringfeed.engine.engine import Engine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once

SLOTS = 3
FILLED_BY = [{"workers": 0}, {"workers": 2, "backend": "thread"}, {"workers": 2}]
SLOWER = "copies of the slots to the GPU go through a buffer of the driver's"


@pytest.fixture
def fake() -> FakeCuda:
    """The CUDA that registers."""
    return FakeCuda()


def pinned_loader(fake: FakeCuda, dataset: Any = None, **settings: Any) -> ringfeed.Loader:
    """Return a loader whose slots are registered when its workers start, as for copies to a GPU."""
    loader = ringfeed.Loader(
        dataset or Oracle(40), **{"batch_size": 8, "workers": 0, "slots": SLOTS} | settings
    )
    slots = loader._slots
    loader._runner.on_start.append(lambda _engine: slots.register(fake.registrar))
    return loader


# ---- registration ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", FILLED_BY, ids=str)
def test_registers_each_slot_once_for_all_epochs(fake: FakeCuda, how: dict[str, Any]) -> None:
    """Registration begins with the first epoch and lasts until the loader is closed."""
    with pinned_loader(fake, **how) as loader:
        assert fake.history == []
        for _ in range(3):
            assert drain(loader) == list(range(40))
            assert len(fake.history) == len(fake.registered) == SLOTS
        assert sum(fake.registered.values()) == SLOTS * loader.plan.slot_size
    fake.check_paired(SLOTS)


def break_off(loader: ringfeed.Loader) -> None:
    """Break an epoch off, and close."""
    check(next(iter(loader)))
    loader.close()


def close_in_an_epoch(loader: ringfeed.Loader) -> None:
    """Close with a live iterator, twice."""
    batches = iter(loader)
    check(next(batches))
    loader.close()
    loader.close()


def close_elsewhere(loader: ringfeed.Loader) -> None:
    """Close from a thread that has no context."""
    drain(loader)
    thread = threading.Thread(target=loader.close)
    thread.start()
    thread.join(120)


def corrupted(batch: Any) -> Any:
    """Spoil the first row of a batch."""
    batch[0][0] += 1
    return batch


def raise_within(loader: ringfeed.Loader) -> None:
    """Leave the loader's block by an exception."""
    with pytest.raises(AssertionError, match="row of sample 0 is corrupt"), loader:
        check(corrupted(next(iter(loader))))


def drop(loader: ringfeed.Loader) -> None:
    """Use it, and let go."""
    drain(loader)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", FILLED_BY, ids=str)
@pytest.mark.parametrize("end", [break_off, close_in_an_epoch, close_elsewhere, raise_within, drop])
def test_unregisters_each_slot_once(fake: FakeCuda, end: Any, how: dict[str, Any]) -> None:
    """However a loader ends, what was registered is unregistered, once, while it is mapped."""
    end(pinned_loader(fake, **how))
    gc.collect()
    Finalizer.finish()
    fake.check_paired(SLOTS)


@pytest.mark.usefixtures("nothing_left", "irreplaceable")
def test_unregisters_when_the_workers_have_failed(fake: FakeCuda) -> None:
    """A loader whose workers cannot go on is undone at once; its next epoch registers anew."""
    loader = pinned_loader(fake, Misbehaving("dies"), workers=1)
    for round_ in (1, 2):
        with pytest.raises(ringfeed.WorkerError, match="was killed by SIGKILL"):
            drain(loader)
        fake.check_paired(round_ * SLOTS)
    loader.close()
    fake.check_paired(2 * SLOTS)


@pytest.mark.usefixtures("nothing_left")
def test_unregisters_when_the_workers_do_not_start(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registration is undone when the rest of the start fails."""

    def fail(*_unused: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Engine, "start", fail)
    loader = pinned_loader(fake)
    with pytest.raises(ZeroDivisionError):
        iter(loader)
    fake.check_paired(SLOTS)


def test_a_view_outlives_registration(fake: FakeCuda) -> None:
    """A slot is unregistered by close(), also if a view holds it: the view stays valid."""
    loader = pinned_loader(fake)
    batch = next(iter(loader))
    loader.close()
    fake.check_paired(SLOTS)
    assert check(batch) == list(range(8))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("failing", range(1, SLOTS + 1))
def test_undoes_what_was_registered_before_a_refusal(fake: FakeCuda, failing: int) -> None:
    """A slot that cannot be registered is named, the others are undone, and batches come."""
    fake.refuse = {("cudaHostRegister", failing): fakecuda.OUT_OF_MEMORY}
    with pinned_loader(fake) as loader:
        with pytest.warns(RuntimeWarning) as caught:
            assert drain(loader) == list(range(40))
        assert [str(one.message) for one in caught] == [
            f"{SLOWER}: it does not register slot {failing - 1} of 3 (36.9 kB each): CUDA error "
            "(2); use fewer or smaller slots, or allow this process to lock memory (ulimit -l, or "
            "the settings of its container)"
        ]
        fake.check_paired(failing - 1)
        assert drain(loader) == list(range(40))
    fake.check_paired(failing - 1)


def test_warns_of_a_slot_that_is_not_given_back(fake: FakeCuda) -> None:
    """A refusal to unregister does not end close().

    It is told, and the other slots are unregistered.
    """
    fake.refuse = {("cudaHostUnregister", 2): fakecuda.INVALID_VALUE}
    loader = pinned_loader(fake)
    drain(loader)
    with pytest.raises(RuntimeWarning) as caught:  # as warnings are errors here
        loader.close()
    assert str(caught.value) == (
        "a slot (36.9 kB) stays registered until this process ends: CUDA error (1)"
    )
    assert len(fake.registered) == 1


def test_waits_for_copies_before_it_unregisters(fake: FakeCuda) -> None:
    """No slot is unregistered while a copy may read it."""
    loader = pinned_loader(fake)
    lease = next(loader._stream.epoch(lambda lease, _rows: lease))
    states = []

    class Event:
        def query(self) -> bool:
            raise AssertionError

        def synchronize(self) -> None:
            states.append((len(fake.registered), loader._runner.engine is None))

    loader._slots.add(lease, Event())
    fake.before_unregister = lambda: states.append(len(loader._slots))  # type: ignore[arg-type]
    loader.close()
    assert states == [(SLOTS, True), *[0] * SLOTS]
    fake.check_paired(SLOTS)


def test_unregisters_although_a_copy_failed(fake: FakeCuda) -> None:
    """A device that fails while the loader waits leaves nothing registered; its error is raised."""
    loader = pinned_loader(fake)
    lease = next(loader._stream.epoch(lambda lease, _rows: lease))

    class Event:
        def query(self) -> bool:
            raise AssertionError

        def synchronize(self) -> None:
            raise ZeroDivisionError

    loader._slots.add(lease, Event())
    with pytest.raises(ZeroDivisionError):
        loader.close()
    fake.check_paired(SLOTS)


# ---- other processes, and the end of this one ----


@pytest.mark.usefixtures("nothing_left")
def test_a_forked_child_unregisters_nothing(fake: FakeCuda) -> None:
    """Registrations are the parent's.

    A child that closes, drops and collects everything makes no call.
    """
    loader = pinned_loader(fake)
    batches = iter(loader)
    check(next(batches))
    engine, slots = loader._runner.engine, loader._slots
    assert engine is not None
    before = fake.calls.copy()
    child = os.fork()
    if not child:
        status = 1
        try:
            loader.close()
            engine.stop()
            slots._release()
            del batches, loader, engine, slots
            gc.collect()
            status = 0 if fake.calls == before else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(fake.registered) == SLOTS
    loader.close()
    fake.check_paired(SLOTS)


SCRIPT = """
import atexit, json, sys
from fakecuda import FakeCuda
import ringfeed
from datasets import Oracle

fake = FakeCuda()
said = lambda: json.dumps([fake.history, fake.faults, list(fake.registered)])
atexit.register(lambda: print(said()))  # the last to run

if __name__ == "__main__":
    loader = ringfeed.Loader(Oracle(40), batch_size=8, slots=3, workers={workers})
    slots = loader._slots
    loader._runner.on_start.append(lambda _engine: slots.register(fake.registrar))
    batches = iter(loader)
    batch = next(batches)
    {end}
"""


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("end", "status"),
    [("pass", 0), ("raise SystemExit(3)", 3)],
)
def test_unregisters_at_the_end_of_the_interpreter(
    tmp_path: Path, workers: int, end: str, status: int
) -> None:
    """The end of the program, with a live iterator and view, unregisters each slot once."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(workers=workers, end=end))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (run.returncode, run.stderr) == (status, "")
    history, faults, registered = json.loads(run.stdout)
    assert faults == []
    began = [address for what, address in history if what == "register"]
    ended = [address for what, address in history if what == "unregister"]
    assert len(began) == len(set(began)) == 3
    assert (sorted(ended), registered) == (sorted(began), [])
