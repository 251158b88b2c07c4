"""The matrix of versions: each framework installed, and its adapter's tests on a wheel of dist/.

    make wheels && make versions               # all of it: hours
    nox -s "tensorflow(version='2.18.1')"      # one cell; nox --list names them
    make upstream                              # the next releases, on the sdist

Each cell is an environment of its own, which goes when the cell has run: together they would be 40
GB. What ran is one line of release/versions.jsonl, of which docs/versions.md is made: python
release/versions.py.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "release"))
import versions  # noqa: E402 - a neighbour of this file, in no package

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = False
os.environ.setdefault(
    "UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", "")
)  # pip's wheels of one's own: uv's too
# Where pyenv has an interpreter, its shims on PATH run only after `pyenv local`.
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *map(str, PYENV.glob("3.1*/bin"))])


def tests(folder: str, *names: str) -> tuple[str, ...]:
    """Return the paths of a folder's tests."""
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


# What meets a framework's own classes and functions. What kills, waits and stalls is the core's,
# and asks no framework.
TENSORFLOW = tests(
    "frameworks/tensorflow",
    *(
        "tensorflow",
        "tensorflow_op",
        "tensorflow_forms",
        "tensorflow_cast",
        "tensorflow_values",
        "tensorflow_state",
    ),
)
KERAS = (
    *tests(
        "frameworks/keras",
        "keras",
        "keras_arguments",
        "keras_aliases",
        "keras_whole_batches",
        "keras_iterables",
    ),
    *tests("frameworks/keras", "keras_cast", "keras_helpers"),
    *tests("keras", "keras_install", "keras_dataset", "keras_enqueuers", "keras_objects"),
)
TORCH = (
    *tests(
        "frameworks/torch", "torch", "torch_forms", "torch_cast", "torch_datasets", "torch_values"
    ),
    *tests("torch", "torch_loader", "torch_states", "torch_streams"),
)
JAX = ("tests/frameworks/jax",)
RAY = ("tests/ray/test_ray.py", "tests/nodes/test_cluster.py")
CORE = tuple(
    f"tests/{folder}"
    for folder in ("system", "ring", "spec", "transport", "workers", "monitor", "tools")
)
CPU = "tensorflow-cpu" if os.uname().machine == "x86_64" else "tensorflow"


def cell(
    session: nox.Session,
    framework: str,
    packages: list[str],
    paths: tuple[str, ...],
    built: Path | None = None,
) -> int:
    """Install a wheel and packages, run these tests, note what came of it, and tidy up.

    Return how many failed.
    """
    python = str(session.python)
    environment = Path(session.virtualenv.location)
    try:
        built = built or versions.wheel_of(ROOT / "dist", python)
        session.install(f"ringfeed[test] @ {built.as_uri()}", "setuptools", *packages)
        report = ROOT / "build" / "versions" / f"{framework}.xml"
        began = time.time()
        command = (
            "python",
            "-m",
            "pytest",
            "-q",
            "--first-parameters",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
        )
        session.run(
            *command, *paths, *session.posargs, success_codes=[0, 1], env={"PYTHONPATH": ""}
        )
        found = session.run("python", "release/versions.py", "--installed", silent=True)
        return versions.note(framework, python, json.loads(str(found)), report, time.time() - began)
    finally:
        shutil.rmtree(environment, ignore_errors=True)


@nox.session(python="3.11")
@nox.parametrize("version", ["2.18.1", "2.19.1", "2.20.0", "2.21.0"])
def tensorflow(session: nox.Session, version: str) -> None:
    """tf.data, on each TensorFlow, with the Keras that it brings."""
    cell(session, "tensorflow", [f"{CPU}=={version}"], TENSORFLOW)


@nox.session(python="3.11")
@nox.parametrize(
    "version",
    ["3.7.0", "3.8.0", "3.9.2", "3.10.0", "3.11.3", "3.12.4", "3.13.2", "3.14.1", "3.15.1"],
)
def keras(session: nox.Session, version: str) -> None:
    """`fit` and what replaces Keras' loading, on each Keras, with a TensorFlow of its time."""
    tensorflow = (
        "2.18.1" if versions.number(version) < (3, 12) else "2.21.0"
    )  # which demands Keras 3.12
    cell(session, "keras", [f"keras=={version}", f"{CPU}=={tensorflow}"], KERAS)


@nox.session(python="3.11")
@nox.parametrize("version", ["0.4.30", "0.6.2", "0.8.1", "0.10.2"])
def jax(session: nox.Session, version: str) -> None:
    """`to_jax`, on the oldest JAX, that of a year ago, one between, and the newest."""
    cell(session, "jax", [f"jax=={version}"], JAX)


@nox.session(python="3.11")
@nox.parametrize("version", ["2.9.1", "2.13.0", "2.14.1"])
def torch(session: nox.Session, version: str) -> None:
    """`to_torch` and torch's DataLoader, on the torch of a year ago, and newer ones."""
    cell(session, "torch", [f"torch=={version}"], TORCH)


PACKAGES = {
    "core": ([], CORE),
    "tensorflow": ([CPU], TENSORFLOW),
    "keras": ([CPU], KERAS),
    "jax": (["jax"], JAX),
}
# What is to come. GitHub alone has Keras' main branch; a specifier with "rc" allows releases ahead
# of the final one.
NEXT = {
    "keras": ([CPU, "keras @ git+https://github.com/keras-team/keras"], KERAS),
    "tensorflow": ([f"{CPU}>=2.22.0rc0"], TENSORFLOW),
    "torch": (["torch>=2.14.0rc0"], TORCH),
    "jax": (["jax>=0.10.2rc0"], JAX),
    "ray": (["ray>=2.60.0rc0"], RAY),
}


def cell_if_any(
    session: nox.Session,
    framework: str,
    packages: list[str],
    paths: tuple[str, ...],
    built: Path,
) -> int:
    """Run a cell whose packages can be had for this Python."""
    try:
        session.install(f"ringfeed[test] @ {built.as_uri()}", *packages)
    except nox.command.CommandFailed:
        session.skip(
            f"cannot be had here: {', '.join(packages) or 'what the tests need'} "
            f"on Python {session.python}"
        )
    return cell(session, framework, packages, paths, built)


@nox.session(python=["3.12", "3.13", "3.14", "3.15"])
@nox.parametrize("framework", [*PACKAGES])
def python(session: nox.Session, framework: str) -> None:
    """The newest of each framework that a Python has, on the Pythons beside 3.11."""
    wheel = versions.wheel_of(ROOT / "dist", str(session.python))
    cell_if_any(session, framework, *PACKAGES[framework], wheel)


def ahead(
    session: nox.Session, framework: str, packages: list[str], paths: tuple[str, ...]
) -> None:
    """Try what is to come; what is red is a row of docs/versions.md, and an error."""
    (sdist,) = (ROOT / "build" / "sdist").glob("*.tar.gz")
    failed = cell_if_any(session, framework, packages, paths, sdist)
    if failed:
        session.error(f"{failed} tests failed: see docs/versions.md")


@nox.session(python="3.13", default=False)  # JAX's next releases are not for 3.11
@nox.parametrize("framework", [*NEXT])
def upstream(session: nox.Session, framework: str) -> None:
    """The next release of a framework: Keras' main branch, and the newest candidate of others."""
    ahead(session, framework, *NEXT[framework])


@nox.session(python="3.16", default=False)
def upstream_python(session: nox.Session) -> None:
    """What depends on Python most, on the next one."""
    ahead(session, "core", [], CORE)
