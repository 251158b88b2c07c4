"""Sends a subject to a fresh interpreter, as the loader sends a dataset to a worker, and asks it there.

The question travels with the subject, by value: a lambda, or a function defined inside a test.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from ringfeed.transport import imports, shared_dataset

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 240

_WORKER = """
import ast, sys
from ringfeed.transport import shared_dataset, unpacking
manifest, fds = ast.literal_eval(sys.argv[1])
subject, ask = unpacking.unpack(manifest, fds)
print(repr(ask(subject)))
"""


def start(sent: shared_dataset.SharedDataset) -> subprocess.Popen[str]:
    """Start a worker on the pickle of a pair (subject, question); it prints the answer's repr."""
    return subprocess.Popen(
        [sys.executable, "-c", _WORKER, repr((sent.manifest(), sent.fds))],
        pass_fds=sent.fds,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ask_sent(sent: shared_dataset.SharedDataset) -> Any:
    """The answer of a worker to the question that it was sent."""
    with start(sent) as worker:
        try:
            answer, errors = worker.communicate(timeout=TIMEOUT_S)
        finally:
            worker.kill()
    assert worker.returncode == 0, errors
    return ast.literal_eval(answer)


def ask(subject: object, question: Callable[[Any], Any]) -> Any:
    """What ``question(subject)`` gives in a worker: plain values only."""
    sent = shared_dataset.to_shared_memory(shared_dataset.pack((subject, question)))
    assert sent is not None
    try:
        return ask_sent(sent)
    finally:
        sent.close()


def ask_loaded(subject: object, question: Callable[[Any], Any]) -> Any:
    """What ``question`` gives in a worker, which frameworks are imported there then, and all warnings."""

    def both(subject: Any) -> Any:
        import warnings  # noqa: PLC0415 - of the worker

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = question(subject)
        return answer, imports.frameworks_loaded(), [str(warning.message) for warning in caught]

    answer, loaded, warned = ask(subject, both)
    return answer, loaded, list(map(without_figures, warned))


def without_figures(text: str) -> str:
    """The same with N for what was measured, and for the number of a line."""
    return re.sub(r"(?<=line )\d+|\d+(\.\d+)?(?= s and | MB )", "N", text)


def warning_of(line: str, roots: str) -> str:
    """What a worker says of the import that a line of the user's makes, without the figures."""
    return (
        f"{line} makes the workers import {roots}, which took N s and N MB in this one; use NumPy "
        "there or leave it to the model, keep the import out of the dataset's module, or give "
        "workers=0 or backend='thread'"
    )
