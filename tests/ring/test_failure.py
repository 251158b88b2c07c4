"""Exceptions on their way from a worker: whole where they fit, shortened where not, never lost."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from ringfeed.ring.failure import CUT, LIMIT, End, Failure, Kind, Nothing, RemoteTraceback, decode, encode, kind_of


class TwoArguments(Exception):  # noqa: N818 - it stands for a user's
    """Pickles, but does not unpickle: its __init__ takes more than its args."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class BrokenText(Exception):  # noqa: N818 - it stands for a user's
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError


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
        (TwoArguments(1, 2), RemoteTraceback, "TwoArguments: 1 and 2"),
        (BrokenText("x"), BrokenText, "BrokenText: (its text could not be made)"),
        (OSError(2, "gone", "file.png"), FileNotFoundError, "FileNotFoundError: [Errno 2] gone: 'file.png'"),
        (ValueError(lambda: 0, open), ValueError, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_exception_comes_back(error: BaseException, kept: type, summary: str | None) -> None:
    """Class and text survive; the traceback is the cause, or stands in for what cannot be pickled."""
    failure = decode(encode(raised(error)))
    assert type(failure.error) is kept
    if summary is not None:
        assert failure.summary == summary
    cause = failure.error if kept is RemoteTraceback else failure.error.__cause__  # type: ignore[union-attr]
    assert isinstance(cause, RemoteTraceback)
    assert "in descend" in str(cause)


@pytest.mark.parametrize("size", [10, 1_000, 3_000, 5_000, 200_000])
@pytest.mark.parametrize("depth", [0, 3, 200])
def test_a_record_never_exceeds_its_limit(size: int, depth: int) -> None:
    """Whatever the text and the depth, the record fits, and type and both ends of the traceback are there."""
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
    """A long traceback keeps its beginning and its end."""

    def a(n: int) -> Any:
        return b(n - 1) if n else 1 / 0

    def b(n: int) -> Any:
        return a(n - 1)

    try:
        a(150)
    except ZeroDivisionError as error:
        failure = decode(encode(error))
    shown = str(failure.error.__cause__)  # type: ignore[union-attr]
    assert CUT in shown
    assert "Traceback (most recent call last)" in shown
    assert shown.rstrip().rstrip('"').rstrip().endswith("ZeroDivisionError: division by zero")


def test_it_prints_like_a_chain() -> None:
    """Python shows the worker's traceback above the error."""
    shown = "".join(traceback.format_exception(decode(encode(raised(KeyError("x")))).error))
    assert shown.index("in descend") < shown.index("direct cause") < shown.rindex("KeyError: 'x'")
