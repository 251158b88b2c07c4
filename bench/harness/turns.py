"""Contenders of a study take turns, each in a fresh process that cannot outstay its time."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.launch import QUIET, Peak
from harness.machine import conditions, printed_by, versions
from harness.proctree import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def parser_of(about: str | None, contenders: Iterable[str], cases: Iterable[str] = ()) -> Any:
    """The command line that such studies share; `--one` and `--folder` are for their fresh processes."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a short look")
    contenders = [*contenders]
    parser.add_argument("--contender", nargs="+", choices=contenders, default=contenders)
    if cases := [*cases]:
        parser.add_argument("--case", nargs="+", choices=cases, default=cases)
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--out", type=Path, help="file to add JSON lines to")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def installed(packages: Iterable[str]) -> bool:
    """Whether all these packages can be imported."""
    return all(importlib.util.find_spec(one.partition(".")[0]) for one in packages)


def said_by(script: str, words: list[str], most_s: float, *, watch: bool = False) -> dict[str, Any]:
    """The figures that a fresh process prints, or an error in their place.

    `watch` adds the most memory that it and all that it started had at once.
    """
    peak = Peak()

    def look(pid: int) -> None:
        nonlocal peak
        peak = peak.with_tree([pid, *descendants(pid)])

    words = [sys.executable, script, *words]
    found = printed_by(words, most_s, os.environ | QUIET, look if watch else None)
    if "error" in found:
        return found
    return {"figures": found | ({"peak_bytes": peak.total} if watch else {})}


def take_turns(
    asked: argparse.Namespace,
    cases: dict[str, Sequence[str]],
    repetitions: int,
    packages: Iterable[str],
    run: Callable[[str, str], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Call `run(case, contender)` for all; each repetition begins with another contender.

    Returns the records. Each is printed, and added to `--out`, when it is there.
    """
    found = versions(tuple((one, "") for one in packages))
    records = []
    for number in range(asked.repetitions or (1 if asked.quick else repetitions)):
        for case, names in cases.items():
            turn = number % max(len(names), 1)
            for name in [*names[turn:], *names[:turn]]:
                line = {"case": case, "contender": name, "repetition": number} | run(case, name)
                print(json.dumps(line), flush=True)
                records.append(conditions(quick=asked.quick) | {"versions": found} | line)
                if asked.out:
                    with asked.out.open("a") as file:
                        file.write(json.dumps(records[-1]) + "\n")
    return records
