"""The event loop of a dataset: one in each process, in its own thread, while the dataset lives.

What the dataset opens in a sample, such as a session, belongs to the loop in which it was opened.
So all of its samples are read in one: the first one, for the spec, and those of all loaders and
threads of this process.

asyncio, whose import takes as long as a third of all others here, is imported for such a dataset
alone.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from ringfeed.errors import StallError
from ringfeed.orders.rng import installed, making
from ringfeed.system.machine import start_thread

if TYPE_CHECKING:
    import asyncio

    from ringfeed.datasets.base import Source

LAST_S = 0.2  # that cancelled tasks have to come to an end

# By process and dataset: after a fork the parent's are not ours.
_loops: dict[tuple[int, int], asyncio.AbstractEventLoop] = {}


def loop_of(dataset: Any) -> asyncio.AbstractEventLoop:
    """Return the event loop of a dataset in this process, which runs."""
    key = os.getpid(), id(dataset)
    if key not in _loops:
        loop = _started()  # first: what does not run belongs to no dataset
        if _loops.setdefault(key, loop) is loop:
            with suppress(TypeError):  # it has __slots__: its loop stays
                weakref.finalize(dataset, _end, key).atexit = False
        else:
            _stop(loop)
    return _loops[key]


def _started() -> asyncio.AbstractEventLoop:
    """Return a new event loop that runs in a thread; WorkerError where there is no room for one."""
    import asyncio  # noqa: PLC0415 - see above

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_be_silent)
    thread = threading.Thread(target=_run, args=(loop,), name="ringfeed-loop", daemon=True)
    try:
        start_thread(thread)
    except BaseException:
        _stop(loop)  # after Ctrl-C it may run all the same
        if not thread.is_alive():
            with suppress(RuntimeError):  # it began just now
                loop.close()
        raise
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    if loop.is_closed():
        return
    try:
        loop.run_forever()
        loop.run_until_complete(_finish())
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    """End a loop soon, and cancel its tasks; from any thread."""
    with suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.stop)


def _be_silent(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report errors of the dataset's own tasks, but not what they leave open at the end."""
    if not str(context.get("message", "")).startswith("Unclosed"):
        loop.default_exception_handler(context)


async def _finish() -> None:
    import asyncio  # noqa: PLC0415 - see above

    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=LAST_S)


def _end(key: tuple[int, int]) -> None:
    loop = _loops.pop(key, None)
    if loop is not None and key[0] == os.getpid():
        _stop(loop)


def end_loop(dataset: Any) -> None:
    """End the event loop of a dataset that nothing else reads in this process."""
    _end((os.getpid(), id(dataset)))


def completed(source: Source, index: int) -> Any:
    """Await an element in the dataset's event loop, with the random numbers of this sample.

    StallError where it takes too long.
    """
    import asyncio  # noqa: PLC0415 - see above
    from concurrent.futures import wait  # noqa: PLC0415 - asyncio imports it

    context, dataset, timeout_s = installed.context, source.dataset, source.terms.timeout_s
    element = dataset[index]

    async def read() -> Any:
        making.set(context)
        return await element

    future = asyncio.run_coroutine_threadsafe(read(), loop_of(dataset))
    try:
        came = wait((future,), timeout_s).done
        return future.result() if came else _give_up(source.describe(index), timeout_s)
    except BaseException:  # also Ctrl-C
        future.cancel()
        raise


def _give_up(name: str, timeout_s: float | None) -> NoReturn:
    raise StallError(
        f"{name}, read for the spec, has not come in {timeout_s:g} s; raise timeout_s, give spec=, "
        "or look there"
    )
