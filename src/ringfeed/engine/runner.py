"""One loader's epochs: begun one after the other, kept apart by their turn, the dataset's hooks run between them.

    Loader ──▶ EpochRunner.begin() ──▶ BatchIterator ── an answer of the ring ──▶ EpochRunner ──▶ Engine.resolve()

The runner makes the engine for its first epoch, and another after one whose workers have failed. It knows where the
user's code is: see `place`.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._process import Exit, Forks
from ringfeed.data.passes import PassOrder
from ringfeed.engine._iterator import Progress
from ringfeed.engine.autotune import make_tuner
from ringfeed.engine.batches import BatchIterator, EpochRun
from ringfeed.engine.engine import Engine
from ringfeed.engine.options import AUTO, MOST
from ringfeed.engine.place import Place, UnderWay
from ringfeed.engine.plan import check_available, plan_for
from ringfeed.errors import ClosedError, RingfeedError, StateError, SupersededError
from ringfeed.monitor.stats import Stats
from ringfeed.ring import _ring
from ringfeed.ring.machine import check_futex
from ringfeed.transport.shared_dataset import pack

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ringfeed.data.base import Source
    from ringfeed.engine.options import Options
    from ringfeed.engine.plan import Plan
    from ringfeed.orders.sampler import Epoch, Sampler
    from ringfeed.orders.shard import Shard
    from ringfeed.ring._feed import Feed
    from ringfeed.spec.builder import BuildBatch
    from ringfeed.workers.process import Launcher


class EpochRunner:
    """Runs one loader's epochs, of a dataset that is read as the options say; the shard is its part of each."""

    def __init__(self, source: Source, options: Options, shard: Shard, *, shuffle: bool | int, sampler: Any) -> None:
        """Read sample 0 unless its spec is given, and make the plan; no slot is reserved yet."""
        self.source = source
        self.options = options
        self.shard = shard
        if self._sends:
            source.check_sendable()
        self._make_sampler = partial(source.sampler, shuffle=shuffle, sampler=sampler)
        with self._as_before():
            self.sampler: Sampler = self._make_sampler()
            source.learn()
        self._goes_on = self._may_go_on()
        self.plan = self._make_plan()
        self.tuner = make_tuner(options, self.plan)
        self._check_memory()
        self.engine: Engine | None = None
        self.on_start: list[Callable[[Engine], None]] = []
        """Called with each engine before its workers start."""
        self.stats = Stats()
        self._forks = Forks.count
        self.lock = threading.RLock()  # a signal handler, a hook or the garbage collector may come in again
        self._turn = 0  # of the newest iterator
        self._rest_at: int | None = None  # where its pass goes on, while that is planned anew
        self._ended = 0  # of the newest that came to its end
        self._hooks_ended = 0  # epochs whose hooks have run
        self.next = Place(0)
        """Where the next epoch begins."""
        self._under_way: UnderWay | None = None  # the last that has begun
        self._has_moved = False  # since then: the next place counts
        self._closed = False
        self._unended: Engine | None = None  # the last there was, until it has ended
        self.finalizer: weakref.finalize[[Engine], EpochRunner] | None = None
        self.launcher = self._begin_to_launch()  # until the first epoch

    # ---- what it is made of ----

    @property
    def _sends(self) -> bool:
        """Whether other processes read the dataset."""
        return self.options.workers > 0 and self.options.backend == "process"

    def _as_before(self) -> AbstractContextManager[None]:
        """Have what is read here, in the place of workers, leave nothing open in the dataset that is sent to them."""
        if not self._sends:
            return nullcontext()
        from ringfeed.transport.opened import as_before  # noqa: PLC0415 - it imports what pickles datasets

        return as_before(self.source.dataset)

    def _may_go_on(self) -> bool:
        """Whether an epoch's end need not hold up the workers; ValueError where that is asked for and cannot be."""
        wanted = self.options.prefetch_epochs
        obstacle = self._obstacle()
        if wanted is True and obstacle is not None:
            message = f"prefetch_epochs=True, but {obstacle}; leave it out, or give False"
            raise ValueError(message)
        reads_ahead = self._sends if wanted == AUTO else wanted and self.options.workers > 0
        return bool(reads_ahead) and obstacle is None

    def _obstacle(self) -> str | None:
        """Say why an epoch cannot be read before it begins."""
        source = self.source
        if source.hooks:
            return f"{' and '.join(sorted(source.hooks))}() of the dataset run between its epochs"
        if source.changes or isinstance(self.sampler, PassOrder):
            return "the dataset may be another in each epoch"
        if source.streams:
            return "an iterable begins anew with each epoch"
        return None if self.sampler.pure else "its sampler is read as the epoch goes on"

    def _make_plan(self) -> Plan:
        start_method = self.options.start_method
        if self._sends and start_method == "fork":
            from ringfeed.transport.opened import refuse_to_share  # noqa: PLC0415 - as above

            refuse_to_share(self.source.dataset)
        sent = self._sends and start_method != "fork"
        parcel = pack(self.source.dataset, weigh=start_method == "spawn") if sent else None
        self._modules = () if parcel is None else parcel.modules
        return plan_for(self.options, self.source, parcel)

    def _begin_to_launch(self) -> Launcher | None:
        """Have a forkserver import what the workers need while the user's program goes on."""
        if not self._sends or self.options.start_method != "forkserver":
            return None
        from ringfeed.workers.forkserver import Forkserver  # noqa: PLC0415 - for one start method

        with suppress(RingfeedError, OSError):  # what keeps it from starting is raised by the first epoch
            check_futex()
            launcher = Forkserver(self.options.timeout_s, self.source.packages, self._modules)
            launcher.begin()
            return launcher
        return None

    def _check_memory(self) -> None:
        """Refuse what the machine has no memory for at the start."""
        plan = self.plan
        if self.tuner is not None:
            plan = replace(plan, slots=self.tuner.setting.slots, workers=self.tuner.setting.workers)
        check_available(plan)

    # ---- epochs ----

    def begin(
        self, build: BuildBatch | None = None, *, wait_for_slots: bool = False, keeps: object = None
    ) -> BatchIterator:
        """Begin the next epoch; see `BatchStream.epoch`. ``keeps``: what lives as long as the iterator."""
        self._check_open()
        place = self.next
        try:
            with self.lock:
                return self._begin(build, keeps, wait_for_slots=wait_for_slots)
        except BaseException:  # a hook's, or Ctrl-C: nothing has begun
            self.next = place
            raise

    def _begin(self, build: BuildBatch | None, keeps: object, *, wait_for_slots: bool) -> BatchIterator:
        self._turn += 1
        self._rest_at = None
        if self.engine is not None and not self._is_ahead(self.engine):
            self.engine.cancel()  # before the hook, which may raise: C code does not look at the turn here
        self._restore_hooks(self.next.hooks)
        hooks = self._hooks_now()
        self._run_hook("on_epoch_begin")
        self._check_open()  # the hook may have closed it, or another thread
        if self.engine is not None and self.engine.pool.failure is not None:
            self.stop_engine()  # start afresh
        if self.engine is None:
            self._start()
        elif self.source.changes:
            self.engine.update(self.source.dataset)
        progress = self._begin_next(hooks)
        run = self._run(self._turn, progress, keeps, wait_for_slots=wait_for_slots)
        assert self.engine is not None
        return BatchIterator(run, self.engine.taker, build, copy=self.options.copy)

    def _begin_next(self, hooks: Any) -> Progress:
        """Plan the epoch of the next place; the one after it comes next."""
        engine, place = self.engine, self.next._replace(hooks=hooks)
        assert engine is not None
        progress = Progress()
        self.next = Place(place.epoch + 1)
        order = self.sampler.epoch(place.epoch, place.samples, place.state)
        following = None
        if self._goes_on and place.epoch < MOST:
            following = partial(_part, self.shard, self.sampler)  # not by a method: the engine must not keep this
        part = self.shard.part_of(order)
        engine.begin(part, place.epoch, self._turn, progress, pure=self.sampler.pure, following=following)
        self._has_moved = False
        has_hooks = bool(self.source.hooks)
        self._under_way = UnderWay(place, order, progress, self.shard, self.sampler.length, has_hooks)
        return progress

    def _is_ahead(self, engine: Engine) -> bool:
        """Whether the engine has begun to read the next epoch, from its start."""
        return self.next == Place(self.next.epoch) and engine.is_ahead(self.next.epoch)

    def _run(self, turn: int, progress: Progress, keeps: object, *, wait_for_slots: bool) -> EpochRun:
        resolve = partial(self._resolve, turn, patient=wait_for_slots)
        ready, break_off = partial(self._ready, turn), partial(self._break_off, turn)
        return EpochRun(turn, self.lock, resolve, ready, break_off, self._is_stopped, progress, keeps)

    def _is_stopped(self) -> bool:
        return self.engine is None

    def attach(self, feed: Feed) -> None:
        """Have C code take the newest iterator's batches from ``feed``."""
        with self.lock:
            if self.engine is not None:
                self.engine.attach(feed)

    def has_more(self) -> bool:
        """Whether the newest iterator has batches that are not taken, or may have."""
        engine = self.engine
        return engine is not None and engine.has_more

    def _run_hook(self, name: str) -> None:
        """Call a hook of the dataset, if it has it; its length may be another afterwards."""
        if self.source.run_hook(name):
            with self._as_before():
                self.sampler = self._make_sampler()
        self._hooks_ended += name == "on_epoch_end"

    def _hooks_now(self) -> Any:
        """Return what the hooks have done to the dataset: its own state, or how often they have run."""
        dataset = self.source.given
        if not self.source.hooks:
            return None
        if _has_state(dataset):
            return {"dataset": dataset.state_dict()}
        return {"hooks": self._hooks_ended}

    def _restore_hooks(self, hooks: Any) -> None:
        """Have the dataset be as it was; without a state of its own, by running its hooks as often."""
        if not hooks:
            return
        if "dataset" in hooks:
            self.source.given.load_state_dict(hooks["dataset"])
            return
        if self._hooks_ended > hooks["hooks"]:
            message = (
                f"the hooks of this dataset have run {self._hooks_ended} times, and the state is of {hooks['hooks']}; "
                f"make the dataset and the loader anew, or give the dataset state_dict() and load_state_dict()"
            )
            raise StateError(message)
        while self._hooks_ended < hooks["hooks"]:
            self._run_hook("on_epoch_begin")
            self._run_hook("on_epoch_end")

    def waiting(self) -> int:
        """Return how many batches the sampler has given and no iterator has taken."""
        engine = self.engine
        return 0 if engine is None else engine.waiting

    def reload(self) -> None:
        """Have what the newest iterator has not taken yet read from the dataset as it is now."""
        with self.lock:
            engine, order, now = self.engine, self.sampler, self._under_way
            if engine is None or engine.pool.failure is not None or not (self.waiting() or self._rest_at is not None):
                return
            assert isinstance(order, PassOrder)
            assert now is not None
            engine.update(self.source.dataset)
            if self._rest_at is None:
                self._rest_at = order.now.given - engine.withdraw()
            order.go_to(self._rest_at)
            done = self._rest_at - now.begun.samples
            engine.begin(order.now, now.begun.epoch, self._turn, now.progress, pure=order.pure, done=done)
            self._rest_at = None

    def _start(self) -> None:
        self.stop_engine()  # if Ctrl-C has kept the last from it
        self._check_memory()
        source = self.source.without_dataset()
        launcher, self.launcher = self.launcher, None
        engine = Engine(self.plan, source, self.options, self.stats, tuner=self.tuner, launcher=launcher)
        try:
            self._unended = engine
            self.finalizer = weakref.finalize(self, Engine.stop, engine)
            atexit.unregister(Exit.note)
            atexit.register(Exit.note)  # the last to be registered is the first to run
            for prepare in self.on_start:
                prepare(engine)
            engine.start(self.source.dataset)
            self._check_open()
            self.engine = engine
        except BaseException:
            self.stop_engine()
            raise

    def _check_turn(self, turn: int) -> None:
        if turn != self._turn:
            message = "a newer iterator of this loader has taken over; finish one before you make the next"
            raise SupersededError(message)

    def _ready(self, turn: int) -> bool:
        """Whether the next batch is there; raises what is raised for an iterator that has had its time."""
        self._check_open()
        with self.lock:
            self._check_turn(turn)
            engine = self.engine
            return engine is not None and (engine.taker.kept is not None or engine.ring.look() == _ring.TAKEABLE)

    def _resolve(self, turn: int, answer: int, build: BuildBatch | None, *, patient: bool) -> None:
        """Have the engine do what the ring's answer asks for; StopIteration at the epoch's end."""
        self._check_open()
        with self.lock:
            self._check_turn(turn)
            engine = self.engine
            if engine is None:
                self._check_open()
                raise StopIteration  # the workers have failed, and that was raised
            if self._rest_at is not None:
                self.reload()  # Ctrl-C has kept the last from its end
            try:
                return engine.resolve(answer, build, patient=patient)
            except StopIteration:
                pass  # what the hook raises must not come "during handling" of this
            except RingfeedError as error:
                if error is engine.pool.failure:
                    self.stop_engine()
                raise
            if self._ended != turn:
                self._ended = turn  # whatever the hook raises, it has run
                self._run_hook("on_epoch_end")
            raise StopIteration

    def _break_off(self, turn: int) -> None:
        """Cancel an epoch whose iterator died before its end."""
        # Never wait for the lock: this runs wherever the garbage collector does, in the pool's watcher too. Its
        # owner closes the loader or begins an epoch: the iterator of the newest turn is not inside next() if it dies.
        if turn != self._turn or self._forks != Forks.count or not self.lock.acquire(blocking=False):
            return
        try:
            if turn == self._turn and self.engine is not None:
                self.engine.cancel()
        finally:
            self.lock.release()

    # ---- where it is ----

    def place(self, batches: int | None = None) -> Place:
        """Return where the user's code is: in the last epoch that has begun, or at the start of the next.

        ``batches``: how many it has been handed of the epoch under way, where only its loop knows; StateError where
        that was not said.
        """
        now = self._under_way
        found = self.next if now is None or self._has_moved else now.place(batches)
        return found if found.hooks is not None else found._replace(hooks=self._hooks_now())

    def go_to(self, place: Place) -> None:
        """Begin the next epoch there."""
        self.next = place
        self._has_moved = True

    def give_back(self, turn: int) -> None:
        """Begin the epoch of this turn again, unless another has begun or was asked for since."""
        if turn == self._turn and self._under_way is not None and not self._has_moved:
            self.go_to(self._under_way.begun)

    def left(self, place: Place) -> int | None:
        """Return how many batches its epoch has from there on; None where only reading shows."""
        samples = self._samples_from(place)
        return None if samples is None else self.shard.batches(samples)

    @property
    def padding(self) -> int | None:
        """Rows of padding in the last batch of the epoch under way, or else the next; None where only reading shows."""
        now = self._under_way
        samples = self._samples_from(self.next if now is None or self._has_moved else now.begun)
        return None if samples is None else self.shard.padding(samples)

    def _samples_from(self, place: Place) -> int | None:
        length = self.sampler.length
        return None if length is None else max(length - place.samples, 0)

    def after(self, place: Place, batches: int) -> Place:
        """Return the place so many batches later in its epoch."""
        samples, left = batches * self.shard.step, self._samples_from(place)
        return place._replace(samples=place.samples + (samples if left is None else min(samples, left)))

    # ---- statistics ----

    def count(self) -> Stats:
        """Return the statistics, brought up to date."""
        if self.engine is not None:
            self.stats = self.engine.count()
        return self.stats

    # ---- the end ----

    def _check_open(self) -> None:
        if self._forks != Forks.count:
            message = "this loader belongs to the process that this one was forked from; make a new one here"
            raise ClosedError(message)
        if self._closed:
            message = "this loader is closed; make a new one"
            raise ClosedError(message)

    def stop_engine(self) -> None:
        """End the engine. What Ctrl-C keeps it from is done by the next call, or at the runner's end."""
        self.engine = None
        if self._unended is not None:
            self.stats = self._unended.stats
            self._unended.stop()
            if self.finalizer is not None:
                self.finalizer.detach()
            self._unended = None

    def request_stop(self) -> None:
        """Begin to close: what waits for a batch gives up. At once, from any thread."""
        self._closed = True
        engine = self.engine
        if engine is not None and self._forks == Forks.count:
            engine.pool.dismiss()

    def close(self) -> None:
        """End the workers and give the memory back; views that are still referenced stay valid."""
        self.request_stop()  # before the lock: another thread may hold it while it waits
        if self._forks != Forks.count:
            return  # a forked child: nothing here is its own
        with self.lock:
            self.stop_engine()
            self.launcher = None  # that ends what it has begun


def _has_state(dataset: Any) -> bool:
    return all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict"))


def _part(shard: Shard, sampler: Sampler, number: int) -> Epoch:
    """Return a rank's part of an epoch."""
    return shard.part_of(sampler.epoch(number))
