"""The CUDA driver and the registration of slots, against a driver that is none; see test_torch_cuda for a GPU."""

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
from ringfeed.frameworks import pinned
from ringfeed.frameworks.pinned import Driver, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.once

SLOTS = 3
FILLED_BY = [{"workers": 0}, {"workers": 2, "backend": "thread"}, {"workers": 2}]
SLOWER = "copies of the slots to the GPU go through a buffer of the driver's"
NO_GPU = "a GPU, or the CUDA driver, is not on this machine"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """The driver that loaders find."""
    driver = FakeCuda()
    monkeypatch.setattr(pinned, "open_library", lambda: driver)
    return driver


def pinned_loader(dataset: Any = None, **settings: Any) -> ringfeed.Loader:
    """Return a loader whose slots are registered when its workers start, as for copies to a GPU."""
    loader = ringfeed.Loader(
        dataset or Oracle(40), **{"batch_size": 8, "workers": 0, "slots": SLOTS} | settings
    )
    slots = loader._slots
    loader._runner.on_start.append(lambda _engine: slots.register(pinned.start_driver))
    return loader


def has_gpu() -> bool:
    """Whether there is a driver that sees a GPU."""
    try:
        pinned.start_driver()
    except Refusal:
        return False
    return True


# ---- the driver ----


def test_says_where_it_looked_for_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver, a warning says so once, and batches come."""
    monkeypatch.setattr(pinned, "PLACES", ("libno.so.1", "/nowhere/libno.so.1"))
    with pinned_loader() as loader:
        with pytest.warns(RuntimeWarning) as caught:
            assert drain(loader) == list(range(40))
        assert drain(loader) == list(range(40))
    assert [str(one.message) for one in caught] == [
        f"{SLOWER}: the CUDA driver is not on this machine (looked for libno.so.1 and "
        "/nowhere/libno.so.1: libno.so.1: cannot open shared object file: No such file or "
        "directory; /nowhere/libno.so.1: cannot open shared object file: No such file or "
        "directory); install NVIDIA's driver, or give a container its GPUs (as docker run --gpus "
        "all does)"
    ]


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        (
            FakeCuda(refuse={("cuInit", 1): fakecuda.NO_DEVICE}),
            "cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)",
        ),
        (FakeCuda(refuse={("cuInit", 1): 999}), "cuInit: error 999 (unknown)"),
        (FakeCuda(gpus=0), "it sees no GPU"),
        (object(), "it has no cuInit: it is too old"),
    ],
    ids=["no device", "unknown error", "no GPU", "too old"],
)
def test_says_why_a_driver_does_not_start(
    monkeypatch: pytest.MonkeyPatch, driver: Any, why: str
) -> None:
    """A driver without a GPU is told with its own words."""
    monkeypatch.setattr(pinned, "open_library", lambda: driver)
    with pytest.warns(RuntimeWarning) as caught:
        drain(pinned_loader())
    assert [str(one.message) for one in caught] == [
        f"{SLOWER}: the CUDA driver does not start: {why}; see that nvidia-smi shows a GPU and "
        "that CUDA_VISIBLE_DEVICES leaves one"
    ]


def test_passes_wide_arguments_whole() -> None:
    """Addresses and sizes beyond 32 bits reach the driver as they are."""
    fake = FakeCuda()
    driver = Driver(fake)
    driver.open()
    with pytest.raises(Refusal, match=r"^cuMemHostRegister_v2: CUDA_ERROR_INVALID_VALUE"):
        driver.register(0x7FFF_1234_5000, 5 << 32)
    assert fake.arguments == (0x7FFF_1234_5000, 5 << 32, fakecuda.PORTABLE)
    driver.close()
    fake.check_paired(0)


@pytest.mark.parametrize("current", [None, 0, 2])
def test_uses_the_context_that_the_frameworks_use(
    monkeypatch: pytest.MonkeyPatch, current: int | None
) -> None:
    """The GPU that the program has made current serves, or else the first; what is current stays it."""
    fake = FakeCuda(gpus=4, current=current)
    monkeypatch.setattr(pinned, "open_library", lambda: fake)
    before = list(fake.contexts)
    with pinned_loader() as loader:
        drain(loader)
        assert +fake.retained == {current or 0: 1}
        assert fake.contexts == before
    assert fake.contexts == before
    fake.check_paired(SLOTS)


# ---- registration ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", FILLED_BY, ids=str)
def test_registers_each_slot_once_for_all_epochs(fake: FakeCuda, how: dict[str, Any]) -> None:
    """Registration begins with the first epoch and lasts until the loader is closed, and content is as ever."""
    with pinned_loader(**how) as loader:
        assert fake.history == []
        for _ in range(3):
            assert drain(loader) == list(range(40))
            assert len(fake.history) == len(fake.registered) == SLOTS
        assert sum(fake.registered.values()) == SLOTS * loader.plan.slot_size
    fake.check_paired(SLOTS)


def test_leaves_the_driver_alone_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU to copy to, no driver is looked for."""
    monkeypatch.delattr(pinned, "open_library")
    with ringfeed.Loader(Oracle(40), batch_size=8, workers=0, slots=SLOTS) as loader:
        assert drain(loader) == list(range(40))


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
    end(pinned_loader(**how))
    gc.collect()
    Finalizer.finish()
    fake.check_paired(SLOTS)


@pytest.mark.usefixtures("nothing_left", "irreplaceable")
def test_unregisters_when_the_workers_have_failed(fake: FakeCuda) -> None:
    """A loader whose workers cannot go on is undone at once; its next epoch registers anew."""
    loader = pinned_loader(Misbehaving("dies"), workers=1)
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
    loader = pinned_loader()
    with pytest.raises(ZeroDivisionError):
        iter(loader)
    fake.check_paired(SLOTS)


def test_a_view_outlives_registration(fake: FakeCuda) -> None:
    """A slot is unregistered by close(), also if a view holds it: the view stays valid."""
    loader = pinned_loader()
    batch = next(iter(loader))
    loader.close()
    fake.check_paired(SLOTS)
    assert check(batch) == list(range(8))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("failing", range(1, SLOTS + 1))
def test_undoes_what_was_registered_before_a_refusal(fake: FakeCuda, failing: int) -> None:
    """A slot that cannot be registered is named, the others are undone, and batches come without."""
    fake.refuse = {("cuMemHostRegister_v2", failing): fakecuda.OUT_OF_MEMORY}
    with pinned_loader() as loader:
        with pytest.warns(RuntimeWarning) as caught:
            assert drain(loader) == list(range(40))
        assert [str(one.message) for one in caught] == [
            f"{SLOWER}: the CUDA driver does not register slot {failing - 1} of 3 (36.9 kB each): "
            "cuMemHostRegister_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory); use fewer or smaller "
            "slots, since memory that is registered cannot be paged out"
        ]
        fake.check_paired(failing - 1)
        assert drain(loader) == list(range(40))
    fake.check_paired(failing - 1)


@pytest.mark.parametrize(
    ("call", "code", "text"),
    [
        (
            "cuMemHostRegister_v2",
            fakecuda.NOT_PERMITTED,
            "CUDA_ERROR_NOT_PERMITTED (operation not permitted); allow this process to lock "
            "memory (ulimit -l, or the settings of its container)",
        ),
        (
            "cuMemHostRegister_v2",
            fakecuda.ALREADY_REGISTERED,
            "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (part or all of it is registered already); "
            "other code registered these addresses and did not undo it before they were unmapped",
        ),
        (
            "cuDevicePrimaryCtxRetain",
            fakecuda.OUT_OF_MEMORY,
            "CUDA_ERROR_OUT_OF_MEMORY (out of memory); use fewer or smaller slots, since memory "
            "that is registered cannot be paged out",
        ),
        ("cuCtxPushCurrent_v2", 999, "error 999 (unknown)"),
    ],
)
def test_says_what_to_do_about_a_refusal(fake: FakeCuda, call: str, code: int, text: str) -> None:
    """The driver's answer is told with what the user can do."""
    fake.refuse = {(call, 1): code}
    with pytest.warns(RuntimeWarning) as caught:
        iter(pinned_loader())
    where = "the CUDA driver does not register slot 0 of 3 (36.9 kB each)"
    assert [str(one.message) for one in caught] == [f"{SLOWER}: {where}: {call}: {text}"]
    fake.check_paired(0)


def test_warns_of_a_slot_that_is_not_given_back(fake: FakeCuda) -> None:
    """A refusal to unregister ends nobody's close(): it is told, and the other slots are unregistered."""
    fake.refuse = {("cuMemHostUnregister", 2): fakecuda.INVALID_VALUE}
    loader = pinned_loader()
    drain(loader)
    with pytest.raises(RuntimeWarning) as caught:  # as warnings are errors here
        loader.close()
    assert str(caught.value) == (
        "the CUDA driver does not give slot 1 (36.9 kB) back before this process ends: "
        "cuMemHostUnregister: CUDA_ERROR_INVALID_VALUE (invalid argument)"
    )
    assert len(fake.registered) == 1
    assert not +fake.retained


def test_does_not_mind_a_driver_that_is_gone(fake: FakeCuda) -> None:
    """At exit the driver may be shut down before us, and has then forgotten every registration itself."""
    loader = pinned_loader()
    drain(loader)
    fake.gone = True
    loader.close()
    assert fake.calls["cuMemHostUnregister"] == 0


def test_waits_for_copies_before_it_unregisters(fake: FakeCuda) -> None:
    """No slot is unregistered while a copy may read it."""
    loader = pinned_loader()
    lease = next(loader._stream.epoch(lambda lease, _rows: lease))
    states = []

    class Event:
        def query(self) -> bool:
            raise AssertionError

        def synchronize(self) -> None:
            states.append((len(fake.registered), loader._runner.engine is None))

    loader._slots.pending.add(lease, Event())
    fake.before_unregister = lambda: states.append(len(loader._slots.pending))  # type: ignore[arg-type]
    loader.close()
    assert states == [(SLOTS, True), *[0] * SLOTS]
    fake.check_paired(SLOTS)


def test_unregisters_although_a_copy_failed(fake: FakeCuda) -> None:
    """A device that fails while the loader waits for it leaves nothing registered, and its error is raised."""
    loader = pinned_loader()
    lease = next(loader._stream.epoch(lambda lease, _rows: lease))

    class Event:
        def query(self) -> bool:
            raise AssertionError

        def synchronize(self) -> None:
            raise ZeroDivisionError

    loader._slots.pending.add(lease, Event())
    with pytest.raises(ZeroDivisionError):
        loader.close()
    fake.check_paired(SLOTS)


# ---- other processes, and the end of this one ----


@pytest.mark.usefixtures("nothing_left")
def test_a_forked_child_unregisters_nothing(fake: FakeCuda) -> None:
    """Registrations are the parent's: a child that closes, drops and collects everything makes no call."""
    loader = pinned_loader()
    batches = iter(loader)
    check(next(batches))
    engine, pins = loader._runner.engine, loader._slots.pins
    assert engine is not None
    assert pins is not None
    before = fake.calls.copy()
    child = os.fork()
    if not child:
        status = 1
        try:
            loader.close()
            engine.stop()
            pins.release()
            del batches, loader, engine, pins
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
from ringfeed.frameworks import pinned
import ringfeed
from datasets import Oracle

fake = FakeCuda()
pinned.open_library = lambda: fake
atexit.register(lambda: print(json.dumps([fake.history, fake.faults, list(fake.registered)])))  # the last to run

if __name__ == "__main__":
    loader = ringfeed.Loader(Oracle(40), batch_size=8, slots=3, workers={workers})
    slots = loader._slots
    loader._runner.on_start.append(lambda _engine: slots.register(pinned.start_driver))
    batches = iter(loader)
    batch = next(batches)
    {end}
"""


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("end", "status", "undone"),
    [("pass", 0, True), ("raise SystemExit(3)", 3, True), ("fake.gone = True", 0, False)],
)
def test_unregisters_at_the_end_of_the_interpreter(
    tmp_path: Path, workers: int, end: str, status: int, *, undone: bool
) -> None:
    """With a live iterator and a live view, the end of the program unregisters each slot once and prints nothing."""
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
    assert (sorted(ended), registered) == ((sorted(began), []) if undone else ([], began))


# ---- a real one ----


@pytest.fixture
def real() -> Iterator[None]:
    """Skip without a GPU."""
    if not has_gpu():
        pytest.skip(NO_GPU)
    return


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("how", [*FILLED_BY, {"workers": 2, "backend": "fork"}], ids=str)
def test_a_real_driver_registers_and_unregisters(how: dict[str, Any]) -> None:
    """Whoever fills them, slots are registered again and again, and content is as ever."""
    for _ in range(3):
        with pinned_loader(**how) as loader:
            assert drain(loader) == list(range(40))


@pytest.mark.usefixtures("real")
def test_a_real_driver_refuses_what_is_registered() -> None:
    """A slot that is registered already is refused by name, and the driver goes on working."""
    with pinned_loader() as loader:
        drain(loader)
        engine = loader._runner.engine
        assert engine is not None
        driver = pinned.start_driver()
        driver.open()
        with pytest.raises(Refusal) as caught:
            driver.register(engine.ring.address, loader.plan.slot_size)
        assert caught.value.code == pinned.ALREADY_REGISTERED
        driver.close()
        assert drain(loader) == list(range(40))
