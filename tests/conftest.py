"""What all tests share: the environment of the frameworks, and a look at what a test leaves behind.

Every test is bounded: see `timeout` and `faulthandler_timeout` in pyproject.toml.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

import leftovers

# pytest puts this folder there, in which `keras`, `ray` and `torch` are folders of tests.
sys.path.remove(str(Path(__file__).parent))

if TYPE_CHECKING:
    from collections.abc import Iterator

# Before any test imports a framework. Inherited by the processes that tests start.
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# A shell starts what runs in the background with SIGINT ignored, and children inherit that: no
# Ctrl-C would come.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test is judged by what it finds, never by its speed: pytest's own limits bound it. A change is
# judged by the same examples as the one before it; `make fuzz` looks for new ones.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True)
hypothesis.settings.register_profile("new", deadline=None, print_blob=True)
hypothesis.settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add what the Makefile asks for, and know pytest-timeout's setting, which bounds nothing without it."""
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "seconds a test")
    parser.addoption(
        "--first-parameters",
        action="store_true",
        help="run each test with its first parameters alone",
    )
    parser.addoption(
        "--passed",
        type=Path,
        help="note in this file what has passed, and leave out what is noted there",
    )


def _spare_spawn(items: list[pytest.Item]) -> None:
    """Mark a test with spawn as long where another start method has the same: each worker is an interpreter anew."""
    names = {item.nodeid for item in items}
    for item in items:
        others = {item.nodeid.replace("spawn", method) for method in ("fork", "process")} - {
            item.nodeid
        }
        if not others.isdisjoint(names):
            item.add_marker("long")


@pytest.hookimpl(wrapper=True)  # round -m
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Leave out what differs from another test by its parameters alone, and what has passed before."""
    _spare_spawn(items)
    yield
    chosen = {*items}
    if config.getoption("first_parameters"):
        found = {
            item.nodeid.partition("[")[0]: item
            for item in reversed(items)
            if not item.get_closest_marker("skip")
        }
        chosen = {*found.values()}
    passed: Path | None = config.getoption("passed")
    if passed is not None and passed.exists():
        names = {*passed.read_text().splitlines()}
        chosen = {item for item in chosen if item.nodeid not in names}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note what has passed; to find nothing else to run is no failure."""
    passed: Path | None = session.config.getoption("passed")
    if passed is not None:
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        passed.parent.mkdir(parents=True, exist_ok=True)
        with passed.open("a") as file:
            file.writelines(f"{name}\n" for name in _passed - _failed)


_passed, _failed = set[str](), set[str]()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the names of tests that pass, and of those that fail: at their end, too."""
    if report.failed:
        _failed.add(report.nodeid)
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


@pytest.fixture
def irreplaceable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace no worker that dies: the first death ends the workers, as three at their start do."""
    monkeypatch.setattr("ringfeed.workers.roster.EARLY_DEATHS", 0)


@pytest.fixture(scope="session", autouse=True)
def _processes() -> None:
    """Have tests that name no backend mean processes, also in a Python without the GIL: see test_free_threads.py."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        from ringfeed.engine import options  # noqa: PLC0415 - only there

        options.default_backend = functools.wraps(options.default_backend)(lambda: "process")


@pytest.fixture(scope="module", autouse=True)
def spared() -> None:
    """Spare the collections of garbage round each test what is there already: imports, and pytest's own notes."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """Have all tests run in one environment: a warm forkserver serves loaders as long as that is the same."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


pytest_fixture_setup = pytest_pyfunc_call  # fixtures make loaders, too


@pytest.fixture
def no_crash_report(pytestconfig: pytest.Config) -> Iterator[None]:
    """Have forked workers that die of a signal say nothing: they would report all of pytest's stack."""
    faulthandler.disable()
    yield
    faulthandler.enable(pytestconfig.stash[fault_handler_stderr_fd_key])


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail the test if it leaves a process, file descriptor, memfd mapping or named shared memory behind.

    What it leaves has its time to go. Name this fixture first among a test's own, so that it looks
    last.
    """
    before = leftovers.present()
    yield
    left = leftovers.since(before)
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture
def closed(nothing_left: None) -> Iterator[None]:  # noqa: ARG001 - it looks after this
    """Close the loaders that a test has put into `numbered.MADE`."""
    yield
    from numbered import MADE  # noqa: PLC0415 - it imports the package

    while MADE:
        MADE.pop().close()
