"""Begins the epochs of one loader, each with its own id, and runs the hooks between them.

    Loader ──▶ EpochRunner.begin() ──▶ BatchIterator ── answer of the ring ──▶ Engine.resolve()

The runner makes an engine for its first epoch, and a new one when an engine's workers have failed.
Its `position` says where the user's code is.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ringfeed._checks import MOST
from ringfeed._process import Exit, Finalizer, Forks
from ringfeed.engine._iterator import BatchIterator, Progress
from ringfeed.engine.engine import Engine, memory_of
from ringfeed.engine.plan import check_available, tuner_for
from ringfeed.engine.position import Place, Position
from ringfeed.engine.sending import Sending
from ringfeed.errors import ClosedError, RingfeedError, SupersededError
from ringfeed.monitor.stats import Stats
from ringfeed.ring import _ring
from ringfeed.system.machine import is_short_of_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.engine.hooks import Hooks
    from ringfeed.engine.options import Options
    from ringfeed.monitor.stats import Verdict
    from ringfeed.orders.sampler import Sampler
    from ringfeed.orders.shard import Part
    from ringfeed.spec.builder import BuildBatch

_Answer = TypeVar("_Answer")

_BY_NEWER = "a newer iterator of this loader has taken over; finish one before you make the next"
_BY_STATE = (
    "load_state_dict() has moved this loader since this iterator was made; make a new one, by "
    "iter()"
)


_started: weakref.WeakKeyDictionary[EpochRunner, None] = (
    weakref.WeakKeyDictionary()
)  # in the order of their starts


class EpochRunner:
    """Runs the epochs of one loader, or this rank's part of each."""

    def __init__(self, source: Source, options: Options, shard: Part, order: Sampler) -> None:
        """Read sample 0 unless its spec is given, and make the plan; reserve no slot."""
        self.source = source
        self.options = options
        self._sending = Sending(source, options, partial(source.sampler, order))
        self._hooks: Hooks | None = None
        if source.hooks:
            from ringfeed.engine.hooks import Hooks  # noqa: PLC0415 - most datasets have none

            self._hooks = Hooks(source, options.timeout_s)
        order = self._sending.learn()
        self.position = Position(order, shard, self._hooks)
        """Where the user's code is, and where the next epoch begins."""
        self._sent_seed = source.seed  # that the engine's workers have
        self._goes_on = options.prefetches_epochs(source, order)
        self.plan = self._sending.plan()
        self.tuner = tuner_for(options, self.plan)
        self._check_available()
        self.engine: Engine | None = None
        self.on_start: list[Callable[[Engine], None]] = []
        """Called with each engine before its workers start."""
        self.stats = Stats()
        self.imports: Sequence[str] = ()
        """Frameworks that workers were slow to import, as `verdict` has found them."""
        self._forks = Forks.count
        self.lock = (
            threading.RLock()
        )  # a signal handler, a hook or the garbage collector may come in again
        self.epoch_id = 0
        """The number of the newest iterator."""
        self.unfinished: Callable[[], None] | None = None
        """Plans the rest of the epoch anew, where Ctrl-C has interrupted that."""
        self._superseded = _BY_NEWER  # why older iterators have had their time
        self._prepared: dict[str, Any] | None = (
            None  # the hooks' work before the next epoch's own hook, which has run
        )
        self._ended = 0  # the epoch id of the last iterator that came to its end
        self._is_resting = False  # no iterator is under way
        self.is_closed = False
        self._unended: Engine | None = None  # the last engine, until it has stopped
        self.finalizer: Finalizer | None = None
        self.launcher = self._sending.begin_to_launch()  # until the first epoch

    # ---- epochs ----

    def begin(self, build: BuildBatch | None = None, *, keeps: object = None) -> BatchIterator:
        """Begin the next epoch; see `BatchStream.epoch`.

        ``keeps`` lives as long as the iterator.
        """
        return self._or_stay(partial(self._begin, build, keeps))

    def prepare(self) -> None:
        """Run the hooks that precede the next epoch now, since its length is needed."""
        self._or_stay(self._prepare)

    def _or_stay(self, begin: Callable[[], _Answer]) -> _Answer:
        """Begin an epoch, or keep the position if a hook raises or Ctrl-C comes."""
        self._check_open()
        place = self.position.next
        try:
            with self.lock:
                return begin()
        except BaseException:
            self.position.next, self._prepared = place, None
            raise

    def _begin(self, build: BuildBatch | None, keeps: object) -> BatchIterator:
        self._is_resting = False
        # Before the hook, which may raise: C code does not look at the id here.
        self._supersede(_BY_NEWER)
        hooks, self._prepared = self._prepare(), None
        self._check_open()  # the hook may have closed it, or another thread
        if self.engine is not None and (
            self.engine.pool.failure is not None or self._sent_seed != self.source.seed
        ):
            self.stop_engine()  # start afresh
        if self.engine is None:
            self._start()
        elif self.source.changes:
            self._update(self.engine)
        engine, position, progress = self.engine, self.position, Progress()
        assert engine is not None
        epoch = position.start(hooks, progress, engine.streams.states)
        begun, shard, sampler = epoch.begun, position.shard, position.sampler
        number = begun.epoch
        engine.streams.go_on_from(
            number, begun.samples, begun.streams, is_ahead=engine.is_ahead(number)
        )
        # Not by a method: the engine must not keep this.
        following = partial(shard.epoch_of, sampler) if self._goes_on and number < MOST else None
        part = shard.part_of(epoch.order)
        engine.begin(part, number, self.epoch_id, progress, pure=sampler.pure, following=following)
        position.running = epoch
        return BatchIterator(self, engine.intake, progress, build, keeps)

    def _prepare(self) -> dict[str, Any] | None:
        """Run the hook of the next epoch.

        Return the hooks' effect on the dataset before that hook.
        """
        if self._prepared is not None:
            return self._prepared
        hooks = self._hooks
        if hooks is not None and hooks.restore(self.position.next.hooks):
            self._renew_order()
        if (place := self.position.next).check is not None:
            self.position.next = place.check(place)
        done = None if hooks is None else hooks.now()
        self._run_hook("on_epoch_begin")
        self._prepared = done
        return done

    def _supersede(self, why: str) -> None:
        """Supersede all iterators, before the next is made."""
        self.epoch_id += 1
        self.unfinished, self._superseded = None, why
        if self.engine is not None and not self._is_ahead(self.engine):
            self.engine.cancel()

    def go_to(self, place: Place) -> None:
        """Begin the next epoch at the place of a state; supersede older iterators."""
        if self._forks != Forks.count:
            return  # a forked child, where nothing begins
        with self.lock:
            self.position.go_to(place)
            self._prepared = None
            self._supersede(_BY_STATE)

    def _update(self, engine: Engine) -> None:
        """Send the changed dataset to the workers."""
        changed = engine.pool.change(self.source.current())
        if changed is not None and self.options.readers:
            # An iterable's own reader has read ahead from the old one.
            self._start()
        elif changed is not None:
            engine.update(changed)

    def _is_ahead(self, engine: Engine) -> bool:
        """Whether the engine already reads the next epoch, from its start."""
        place = self.position.next
        is_at_start = place == Place(place.epoch)
        return is_at_start and self._sent_seed == self.source.seed and engine.is_ahead(place.epoch)

    def attach(self, feed: Any) -> None:
        """Let C code take the newest iterator's batches, through ``feed``."""
        with self.lock:
            if self.engine is not None:
                self.engine.attach(feed)

    def has_more(self) -> bool:
        """Whether the newest iterator has, or may have, batches that are not taken."""
        engine = self.engine
        return engine is not None and (
            engine.waiting > 0 or not engine.lookahead.is_planned or engine.intake.error is not None
        )

    def _run_hook(self, name: str) -> None:
        if self._hooks is not None and self._hooks.run(name):
            self._renew_order()

    def _renew_order(self) -> None:
        """Make a new order, since the dataset has changed, and its length may have."""
        self.position.sampler = self._sending.order()

    def _start(self) -> None:
        self.stop_engine()  # if Ctrl-C has kept the last from it
        self._check_available()
        self._make_room()
        source, self._sent_seed = self.source.without_dataset(), self.source.seed
        launcher, self.launcher = self.launcher, None
        sent = self._sending.handed_over()
        engine = Engine(self.plan, source, self.options, self.stats, self.tuner, launcher, sent)
        try:
            self._unended = engine
            self.finalizer = Finalizer(engine.stop)
            self.finalizer.watch(self)
            atexit.unregister(Exit.note)
            atexit.register(Exit.note)  # the last to be registered is the first to run
            engine.ring.note_rank(self.position.shard.rank, self.position.shard.world_size)
            for prepare in self.on_start:
                prepare(engine)
            engine.start(self.source.current())
            self._check_open()
            self.engine = engine
        except BaseException:
            self.stop_engine()
            raise

    def _make_room(self) -> None:
        """End the engines of resting loaders, the oldest first, while descriptors are short."""
        for ref in _started.keyrefs():  # listed in one step: other threads start others meanwhile
            if not is_short_of_descriptors(self.plan.workers):
                break
            if (other := ref()) is not None:
                other._rest()  # noqa: SLF001 - its own
        _started.pop(self, None)
        _started[self] = None

    def _rest(self) -> None:
        """End the engine between epochs; the next epoch starts another.

        An engine in use is kept.
        """
        if self._is_resting and self._forks == Forks.count and self.lock.acquire(blocking=False):
            try:
                if self._is_resting:
                    self.stop_engine()
            finally:
                self.lock.release()

    def _check_available(self) -> None:
        """Raise PlanError unless there is memory, after dropped loaders have freed theirs."""
        Finalizer.finish()
        check_available(self.plan, self.tuner, self._sending.size)

    def _check_epoch_id(self, epoch_id: int) -> None:
        if epoch_id != self.epoch_id:
            raise SupersededError(self._superseded)

    def ready(self, epoch_id: int) -> bool:
        """Whether the next batch is ready; raises SupersededError for an older iterator."""
        self._check_open()
        with self.lock:
            self._check_epoch_id(epoch_id)
            engine = self.engine
            return engine is not None and (
                engine.intake.kept is not None or engine.ring.look() == _ring.TAKEABLE
            )

    def resolve(self, epoch_id: int, answer: int, build: BuildBatch | None) -> None:
        """Let the engine resolve the ring's answer; StopIteration at the epoch's end."""
        self._check_open()
        with self.lock:
            self._check_epoch_id(epoch_id)
            engine = self.engine
            if engine is None:
                self._check_open()
                raise StopIteration  # the workers have failed, and that was raised
            if self.unfinished is not None:
                self.unfinished()
            try:
                return engine.resolve(answer, build)
            except StopIteration:
                pass  # what the hook raises must not come "during handling" of this
            except RingfeedError as error:
                if error is engine.pool.failure:
                    intake = (
                        engine.intake
                    )  # keeps it for as long as Ctrl-C keeps it from the user's code
                    self.engine, intake.error, intake.error_epoch_id = (
                        None,
                        error,
                        epoch_id,
                    )  # one step, for Ctrl-C
                    self.stop_engine()
                    return None  # the iterator finds it there
                raise
            self._is_resting = True
            if self._ended != epoch_id:
                self._ended = epoch_id  # whatever the hook raises, it has run
                self._run_hook("on_epoch_end")
            raise StopIteration

    def break_off(self, epoch_id: int) -> None:
        """Cancel an epoch whose iterator died before its end."""
        # Never wait for the lock: this runs wherever the garbage collector does, in the pool's
        # watcher too. Its owner closes the loader or begins an epoch: the newest iterator is not
        # inside next() if it dies.
        if (
            epoch_id != self.epoch_id
            or self._forks != Forks.count
            or not self.lock.acquire(blocking=False)
        ):
            return
        try:
            if epoch_id == self.epoch_id and self.engine is not None:
                self.engine.cancel()
                self._is_resting = True
        finally:
            self.lock.release()

    def set_seed(self, seed: int) -> None:
        """Use this seed from the next epoch on; workers with another seed are restarted then."""
        if seed == self.source.seed:
            return
        with self.lock:
            self.source.seed = seed
            self._renew_order()

    def give_back(self, epoch_id: int) -> None:
        """Begin the epoch of this id again, unless another has begun or was requested since."""
        if epoch_id == self.epoch_id:
            self.position.give_back()

    # ---- statistics ----

    def count(self) -> Stats:
        """Update and return the statistics."""
        if engine := self.engine or self._unended:  # which may still start
            engine.count()
        return self.stats

    def report(self) -> Stats:
        """Return the statistics with memory, tuned settings and the verdict."""
        stats, engine, tuner = self.count(), self.engine, self.tuner
        stats.look = self.asking(partial(memory_of, self.plan))
        stats.tuning = [] if tuner is None else list(tuner.history)
        stats.verdict, stats.is_closed = self.verdict(stats), self.is_closed
        if engine is not None:
            engine.pool.tell(stats)
        return stats

    def verdict(self, stats: Stats) -> Verdict:
        """Return the verdict on some statistics of this loader."""
        from ringfeed.monitor.bottleneck import verdict_of  # noqa: PLC0415 - if needed

        return verdict_of(self, stats)

    def asking(self, ask: Callable[[Engine | None], _Answer]) -> Callable[[], _Answer]:
        """Return a function that asks the current engine, if any.

        The function does not keep this runner alive.
        """
        runner = weakref.ref(self)

        def answer() -> _Answer:
            found = runner()
            return ask(None if found is None else found.engine)

        return answer

    # ---- the end ----

    def _check_open(self) -> None:
        if self._forks != Forks.count:
            raise ClosedError(
                "this loader belongs to the process that this one was forked from; make a new one "
                "here"
            )
        if self.is_closed:
            raise ClosedError("this loader is closed; make a new one")

    def stop_engine(self) -> None:
        """End the engine; after Ctrl-C, the next call or the runner's end finishes that."""
        self.engine = None
        if self._unended is not None:
            self._unended.stop()
            if self.finalizer is not None:
                self.finalizer.detach()
            self._unended = None

    def request_stop(self) -> None:
        """Begin to close: waits for a batch give up. Returns at once, from any thread."""
        self.is_closed = True
        engine = self.engine or self._unended  # which may still start
        if engine is not None and self._forks == Forks.count:
            engine.pool.request_stop()

    def close(self) -> None:
        """End the workers and give the memory back; views that are still referenced stay valid."""
        self.request_stop()  # before the lock: another thread may hold it while it waits
        if self._forks != Forks.count:
            return  # a forked child: nothing here is its own
        with self.lock:
            self.stop_engine()
            self._sending.close()
            if self.launcher is not None:
                # What it has begun may be stopped, and not see that its lifeline ends.
                self.launcher.close()
