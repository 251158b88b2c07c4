"""Exceptions on their way from a worker: whole where they fit, shortened where not, never lost."""

from __future__ import annotations

import gc
import pickle
import traceback
import weakref
from typing import Any

import pytest

from ringfeed._failure import (
    LIMIT,
    End,
    Failure,
    Kind,
    Nothing,
    RemoteError,
    decode,
    encode,
    kind_of,
)


class TwoArguments(Exception):  # noqa: N818 - it stands for a user's
    """Pickles, but does not unpickle: its __init__ takes more than its args."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class BrokenText(Exception):  # noqa: N818 - it stands for a user's
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError


class InterruptedText(Exception):  # noqa: N818 - see above
    """Ctrl-C comes while its text is made, or it looks like that."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


def raised(error: BaseException, depth: int = 0) -> BaseException:
    """Return the error with a traceback, `depth` calls deep."""

    def descend(left: int) -> None:
        if left:
            descend(left - 1)
        raise error

    try:
        descend(depth)
    except BaseException as caught:  # noqa: BLE001 - whatever it was
        return caught
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "kept", "summary"),
    [
        (KeyError("x"), KeyError, "KeyError: 'x'"),
        (ValueError(), ValueError, "ValueError"),
        (SystemExit(3), SystemExit, "SystemExit: 3"),
        (MemoryError("full"), MemoryError, "MemoryError: full"),
        (TwoArguments(1, 2), RemoteError, "TwoArguments: 1 and 2"),
        (BrokenText("x"), BrokenText, "BrokenText: (its text could not be made)"),
        (
            OSError(2, "gone", "file.png"),
            FileNotFoundError,
            "FileNotFoundError: [Errno 2] gone: 'file.png'",
        ),
        (ValueError(lambda: 0, open), ValueError, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_exception_comes_back(error: BaseException, kept: type, summary: str | None) -> None:
    """Class, text and traceback survive; for what cannot be pickled stands a class of its name."""
    failure = decode(encode(raised(error)))
    assert isinstance(failure.error, kept)
    assert type(failure.error).__qualname__ == type(error).__qualname__
    if summary is not None:
        assert failure.summary == summary
    assert "in descend" in printed(failure.error)


def test_ctrl_c_comes_out_where_it_may_come() -> None:
    """Elsewhere, as in a worker, it is the error's own doing, and the row is told all the same."""
    error = raised(InterruptedText())
    with pytest.raises(KeyboardInterrupt):
        encode(error, interruptible=True)
    assert decode(encode(error)).summary == "InterruptedText: (its text could not be made)"


def test_what_stands_for_an_exception_can_be_pickled() -> None:
    """Though no module has its class."""
    error = pickle.loads(pickle.dumps(decode(encode(TwoArguments(1, 2))).error))
    assert (type(error).__name__, str(error), isinstance(error, RemoteError)) == (
        "TwoArguments",
        "1 and 2",
        True,
    )


@pytest.mark.parametrize("size", [10, 1_000, 3_000, 5_000, 200_000])
@pytest.mark.parametrize("depth", [0, 3, 200])
def test_a_record_never_exceeds_its_limit(size: int, depth: int) -> None:
    """Whatever the text and the depth, the record fits, with both ends of the traceback."""
    record = encode(raised(ValueError("z" * size), depth))
    assert len(record) <= LIMIT
    failure = decode(record)
    assert failure.type_name == "ValueError"
    assert failure.text.startswith("z" * 10)


@pytest.mark.parametrize(("told", "kind"), [(Nothing(), Kind.NOTHING), (End(), Kind.END)])
def test_what_is_no_error_has_a_kind_of_its_own(told: BaseException, kind: Kind) -> None:
    """That there is nothing, or no more, is a record of one byte, and no exception comes back."""
    record = encode(raised(told))
    assert len(record) == 1
    assert kind_of(record) is kind
    assert decode(record) == Failure(None, "", "", kind)


def test_an_error_is_of_the_kind_error() -> None:
    """Also one whose class comes from those that are no errors."""
    for error in (KeyError("x"), type("Mine", (Nothing,), {})("x")):
        record = encode(raised(error))
        assert (kind_of(record), decode(record).kind) == (Kind.ERROR, Kind.ERROR)


def test_the_middle_of_a_traceback_goes_first() -> None:
    """A long traceback keeps its beginning and its end, and says how much is missing."""

    def a(n: int) -> Any:
        return b(n - 1) if n else 1 / 0

    def b(n: int) -> Any:
        return a(n - 1)

    try:
        a(800)
    except ZeroDivisionError as error:
        whole, shown = traceback.extract_tb(error.__traceback__), decode(encode(error)).error
    names = [(frame.name, frame.lineno) for frame in traceback.extract_tb(shown.__traceback__)]  # type: ignore[union-attr]
    expected = [(frame.name, frame.lineno) for frame in whole]
    assert names[:100] == expected[:100]
    assert names[101:] == expected[-100:]
    assert 'File "<602 calls left out>", line 1, in ...' in printed(shown)


def chained() -> None:
    """Raise from another, while a third is handled."""
    try:
        try:
            raised_here()
        except KeyError as error:
            raise TwoArguments(1, 2) from error
    except TwoArguments:
        raise ValueError("last")  # noqa: B904 - to be chained


def raised_here() -> None:
    """Raise."""
    raise KeyError("first")


def test_it_prints_as_where_it_was_raised() -> None:
    """Python prints the whole chain, with each traceback, without the marks of columns."""
    try:
        chained()
    except ValueError as caught:
        error = caught
    assert printed(decode(encode(error)).error) == printed(error)
    assert len(printed(error).split("Traceback")) == 4


def test_a_chain_that_was_cut_off_stays_cut_off() -> None:
    """What was raised `from None` comes alone."""
    try:
        try:
            raised_here()
        except KeyError:
            raise ValueError("alone") from None
    except ValueError as caught:
        error = caught
    assert printed(decode(encode(error)).error) == printed(error)


def test_the_members_of_a_group_keep_their_tracebacks() -> None:
    """Each is printed with its own line."""
    group = ExceptionGroup("both", [raised(KeyError("x")), raised(ValueError("y"), 2)])  # type: ignore[list-item]
    assert printed(decode(encode(raised(group))).error) == printed(group)


def test_a_traceback_from_a_worker_keeps_nothing_alive() -> None:
    """Neither the record's reader nor its callers, whose arrays would hold slots."""

    class Held:
        """What a caller holds."""

    record = encode(raised(KeyError("x"), 3))

    def read() -> tuple[BaseException | None, Any]:
        held = Held()
        return decode(record).error, weakref.ref(held)

    gc.disable()
    try:
        error, held = read()
        assert held() is None
    finally:
        gc.enable()
    assert error is not None


def printed(error: BaseException | None) -> str:
    """Return what Python prints, without the marks of columns."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join(
        line for line in lines if not set(line) <= set(" |~^") or not set(line) & set("~^")
    )
