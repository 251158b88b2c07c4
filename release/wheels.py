"""Build the sdist and the wheels into dist/, each twice and to the same bytes, and check them.

    python release/wheels.py PYTHON...     # the interpreters; `make wheels` names all that it finds

The second sdist is made of the first one, unpacked, so the first one holds all that it is made of.
The two wheels of a Python are compiled in folders of different names. `auditwheel repair` gives a
wheel the lowest manylinux tag that its symbols allow: by the glibc of this machine, or an older
one. cibuildwheel (pyproject.toml) builds where glibc is old.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from archives import digest, names, normalise, seconds_of
from build import ProjectBuilder

ROOT = Path(__file__).resolve().parents[1]
DIST, TOOLS = ROOT / "dist", ROOT / "build" / "wheels"
BUILD = "-m", "build", "--no-isolation", "--outdir"
USE = """
import ringfeed

class Squares:
    def __len__(self):
        return 100

    def __getitem__(self, i):
        return i * i

with ringfeed.Loader(Squares(), batch_size=10, workers=2) as loader:
    assert sum(int(batch.sum()) for batch in loader) == 328350
print(ringfeed.__version__, "runs from", ringfeed.__file__)
"""


def run(*command: str | Path, cwd: Path = ROOT, path: str | None = None) -> str:
    """Run a command to its end and return what it said; exit with that where the command fails."""
    env = {**os.environ, "PATH": path or os.environ["PATH"]}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=env, stdout=-1, stderr=-2, text=True, check=False
    )
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout[-4000:]}"
        )
    return done.stdout


def environment(python: str) -> Path:
    """Return the Python of an environment that has what a wheel is built with, and nothing else."""
    name = "import sys; print('%d.%d' % sys.version_info[:2] + sys.abiflags)"
    folder = TOOLS / f"tools-{run(python, '-c', name).strip()}"
    inside = folder / "bin" / "python"
    if not (folder / "made").exists():
        run(python, "-m", "venv", "--clear", folder)
        run(
            inside,
            "-m",
            "pip",
            "install",
            "-q",
            "--only-binary",  # the newest NumPy that has a wheel for this Python
            ":all:",
            "build",
            *ProjectBuilder(ROOT).build_system_requires,
        )
        (folder / "made").touch()
    return inside


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist in a folder; return where its files are."""
    shutil.unpack_archive(sdist, folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def built(kind: str, python: Path, tree: Path, folder: Path) -> Path:
    """Build one archive of a tree, and return it."""
    run(
        python, *BUILD, folder, kind, tree, cwd=folder.parent
    )  # elsewhere than build/, which would be taken for `build`
    (found,) = folder.iterdir()
    return found


def same(first: Path, second: Path) -> Path:
    """Return the first of two builds; exit where they differ."""
    if digest(first) != digest(second):
        sys.exit(
            f"two builds of {first.name} differ: {first} and {second}; compare them with diffoscope"
        )
    return first


def sources(folder: Path) -> tuple[Path, set[str]]:
    """Return where the sources are, and their names: a copy of what git tracks, or all."""
    if not (ROOT / ".git").exists():
        return ROOT, set()
    tracked = {name for name in run("git", "ls-files").splitlines() if not name.startswith(".git")}
    for name in tracked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder, tracked


def make_sdist(python: Path, scratch: Path, seconds: int) -> Path:
    """Put the sdist into dist/."""
    tree, tracked = sources(scratch / "sources")
    first = built("--sdist", python, tree, scratch / "first")
    normalise(first, seconds)
    second = built("--sdist", python, unpacked(first, scratch / "again"), scratch / "second")
    normalise(second, seconds)
    if tracked and (missed := tracked ^ (names(first) - {"PKG-INFO"})):
        sys.exit(f"the sdist and what git tracks differ by {sorted(missed)}: mend MANIFEST.in")
    return Path(shutil.copy2(same(first, second), DIST))


def repaired(python: Path, sdist: Path, scratch: Path) -> Path:
    """Return a wheel of an sdist that is unpacked in this folder, with its manylinux tag."""
    wheel = built("--wheel", python, unpacked(sdist, scratch / "tree"), scratch / "wheel")
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", scratch / "repaired", wheel)
    (found,) = (scratch / "repaired").iterdir()
    return found


def make_wheel(python: Path, sdist: Path, scratch: Path) -> Path:
    """Put the wheel of one Python into dist/. Its two builds run at once."""
    folders = [scratch / name for name in ("a", "another-folder")]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(partial(repaired, python, sdist), folders)
    return Path(shutil.copy2(same(first, second), DIST))


def tried(python: Path, wheel: Path, scratch: Path) -> str:
    """Install a wheel without compiler or source, read a dataset by workers, and say what ran."""
    run(python, "-m", "venv", scratch / "empty")
    inside = scratch / "empty" / "bin"
    run(
        inside / "python",
        "-m",
        "pip",
        "install",
        "-q",
        "--only-binary",
        ":all:",
        wheel,
        cwd=scratch,
        path=str(inside),
    )
    (scratch / "use.py").write_text(USE)
    run(
        inside / "ringfeed",
        "plan",
        "--shape",
        "8",
        "--dtype",
        "uint8",
        cwd=scratch,
        path=str(inside),
    )
    return run(inside / "python", scratch / "use.py", cwd=scratch, path=str(inside)).strip()


def main(pythons: list[str]) -> None:
    """Build, compare, audit, check and try."""
    os.umask(0o022)
    seconds = seconds_of((ROOT / "CHANGELOG.md").read_text())
    os.environ["SOURCE_DATE_EPOCH"] = str(seconds)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        sdist = make_sdist(environment(pythons[0]), scratch, seconds)
        print(f"== {sdist.name}: two builds, one hash", flush=True)
        for number, python in enumerate(map(environment, pythons)):
            place = scratch / str(number)
            place.mkdir()
            wheel = make_wheel(python, sdist, place)
            audit = run(sys.executable, "-m", "auditwheel", "show", wheel)
            tag = re.search(r'tag:\s+"(\S+)"', audit)
            print(
                f"== {wheel.name}: two builds, one hash; {tag and tag[1]}; "
                f"{tried(python, wheel, place)}",
                flush=True,
            )
    print(run(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir()), end="")
    for path in sorted(DIST.iterdir()):
        print(digest(path), path.name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "pythons", nargs="+", metavar="PYTHON", help="an interpreter, for one wheel"
    )
    main(parser.parse_args().pythons)
