"""What makes two builds the same, and what is said of a release in several files."""

from __future__ import annotations

import calendar
import io
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

import ringfeed

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "release"))
import archives  # noqa: E402 - scripts, in no package
import versions  # noqa: E402

from watching import run_script  # noqa: E402

pytestmark = pytest.mark.once
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
CELL = {
    "framework": "jax",
    "version": "0.8.1",
    "python": "3.11",
    "versions": {"jax": "0.8.1", "numpy": "2.4.6", "ringfeed": "0.2.0", "keras": "3.15.1"},
    "passed": 46,
    "failed": 1,
    "skipped": 2,
    "commit": "54101e4a0b1c",
    "date": "2026-11-25",
}


def packed(path: Path, names: list[str], *, mtime: int, mode: int) -> Path:
    """Return an sdist of these files, as one builder would leave it."""
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"ringfeed-1/{name}")
            member.size, member.mtime, member.mode, member.uname = (
                3,
                mtime,
                mode,
                f"builder {mtime}",
            )
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def test_two_sdists_are_the_same(tmp_path: Path) -> None:
    """Whatever the order, the time, the owner and the umask were.

    Contents, and what may be executed, are kept.
    """
    first = packed(tmp_path / "a.tar.gz", ["one", "two"], mtime=5, mode=0o664)
    second = packed(tmp_path / "b.tar.gz", ["two", "one"], mtime=1_000_000, mode=0o600)
    assert archives.digest(first) != archives.digest(second)
    for sdist in (first, second):
        archives.normalise(sdist, 1_700_000_000)
    assert archives.digest(first) == archives.digest(second)
    third = packed(tmp_path / "c.tar.gz", ["one", "two"], mtime=5, mode=0o775)
    archives.normalise(third, 1_700_000_000)
    assert archives.digest(first) != archives.digest(third)
    assert archives.names(first) == {"one", "two"}
    fourth = packed(
        tmp_path / "d.tar.gz",
        ["one", "two", "setup.cfg", "src/x.egg-info/SOURCES.txt"],
        mtime=5,
        mode=0o664,
    )
    archives.normalise(fourth, 1_700_000_000)
    assert archives.digest(first) == archives.digest(fourth)
    with tarfile.open(first) as archive:
        assert [(archive.extractfile(member) or io.BytesIO()).read() for member in archive] == [
            b"one",
            b"two",
        ]


def test_an_sdist_has_only_what_git_tracks(tmp_path: Path) -> None:
    """What lies untracked in a clone, below a folder that is packed whole, stays there."""
    tools = [*map(str, (ROOT / "build").glob("tools-*/bin/python")), sys.executable]
    if not (ROOT / "setup.py").exists() or not shutil.which("git") or not any(map(builds, tools)):
        pytest.skip("needs setup.py, git and setuptools>=77, as make test has them")
    for name in (
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "MANIFEST.in",
        "src/ringfeed/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("a page")
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)  # noqa: S607
    (tmp_path / "docs" / "password.txt").write_text("a secret")
    (tmp_path / "src" / "ringfeed" / "scratch.py").write_text("a try")
    hook = "from setuptools import build_meta; build_meta.build_sdist('dist')"
    subprocess.run(
        [next(filter(builds, tools)), "-I", "-c", hook],
        cwd=tmp_path,
        check=True,
        stdout=-1,
        stderr=-2,
    )
    (sdist,) = (tmp_path / "dist").iterdir()
    names = archives.names(sdist)
    assert {"docs/page.md", "src/ringfeed/__init__.py", "setup.py"} <= names
    assert not names & {"docs/password.txt", "src/ringfeed/scratch.py"}
    assert not [name for name in names if ".egg-info" in name]  # which would name them


def builds(python: str) -> bool:
    """Whether an interpreter has what an sdist is made with."""
    probe = "import numpy, setuptools; assert int(setuptools.__version__.split('.')[0]) >= 77"
    return not subprocess.run([python, "-I", "-c", probe], check=False, stderr=-3).returncode


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf")
def test_extensions_look_nowhere_for_libraries_and_are_read_only_once_relocated() -> None:
    """No folder of the machine that built them is in them, and all of their symbols are bound before they run."""
    found = [*Path(ringfeed.__file__).parent.rglob("*.so")]
    assert len(found) > 15
    for extension in found:
        said = subprocess.run(
            ["readelf", "-dlW", extension],  # noqa: S607
            stdout=-1,
            text=True,
            check=True,
        ).stdout
        assert "RUNPATH" not in said, extension
        assert "RPATH" not in said, extension
        assert "GNU_RELRO" in said, extension
        assert "BIND_NOW" in said, extension


def test_the_time_of_a_release() -> None:
    """It is the day of the newest version of the changelog, and cibuildwheel is told the same."""
    seconds = archives.seconds_of(CHANGELOG)
    assert seconds == int(
        re.findall(r'SOURCE_DATE_EPOCH = "(\d+)"', (ROOT / "pyproject.toml").read_text())[0]
    )
    day = re.findall(r"^## \S+ \((\d.*)\)$", CHANGELOG, re.MULTILINE)[0]
    assert seconds == calendar.timegm(time.strptime(day, "%Y-%m-%d"))


def test_a_changelog_without_a_date() -> None:
    """It is refused, with what to write."""
    with pytest.raises(ValueError, match="has no heading") as caught:
        archives.seconds_of("## 0.2.0 (unreleased)\n")
    assert str(caught.value) == (
        "CHANGELOG.md has no heading such as '## 0.2.0 (2026-11-25)': give the newest version its "
        "date"
    )


def test_one_version_everywhere() -> None:
    """The package, the newest heading of the changelog that has a date and the citation say the same."""
    (heading, *_) = re.findall(r"^## (\S+) \(\d", CHANGELOG, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    assert [heading, *re.findall(r"^version: (\S+)", citation, re.MULTILINE)] == [
        ringfeed.__version__
    ] * 2
    assert f"({re.findall(r'date-released: .(.{10}).', citation)[0]})" in CHANGELOG


def test_the_wheels_of_cibuildwheel_are_for_the_pythons_of_the_classifiers() -> None:
    """Neither list has a Python that the other one lacks, and without the GIL it is one of these."""
    text = (ROOT / "pyproject.toml").read_text()
    (built,) = re.findall(r'^build = "(.*)"$', text, re.MULTILINE)
    pythons = re.findall(r"Python :: 3\.(\d+)\"", text)
    assert re.findall(r"cp3(\d+)-\*", built) == pythons
    assert {*re.findall(r"cp3(\d+)t-\*", built)} <= {*pythons}


def test_the_tests_of_a_wheel_need_no_framework() -> None:
    """`make test-wheels` collects its tests where none of them is installed."""
    makefile = (ROOT / "Makefile").read_text()
    folders = dict(re.findall(r"^([A-Z]+) := ([a-z /]+)$", makefile, re.MULTILINE))
    (core,) = re.findall(r"^CORE := (.*)$", makefile, re.MULTILINE)
    names = re.findall(r"\w+", core)
    paths = [f"tests/{folder}" for name in names for folder in folders[name].split()]
    out, _, status = run_script(
        "import sys, pytest\n"
        "sys.modules.update(dict.fromkeys(['tensorflow', 'keras', 'torch', 'jax', 'ray']))\n"
        f"sys.exit(pytest.main(['-q', '--collect-only', '-p', 'no:cacheprovider', *{paths}]))",
        cwd=ROOT,
    )
    assert status == 0, out[-4000:]


def test_a_cell_of_the_matrix() -> None:
    """It has what was installed, and the counts; what was not run has its reason.

    The last run of a cell counts.
    """
    reason = {
        "framework": "torch",
        "version": "2.15.0",
        "python": "3.11",
        "reason": "it has 3 GB of CUDA",
    }
    unknown = {"framework": "jax", "version": "newest", "python": "3.11", "reason": "of the time"}
    again = {
        **CELL,
        "version": "0.8.1+cpu",
        "passed": 47,
        "failed": 0,
    }  # the same, as the packager calls it
    assert versions.render([reason, unknown, CELL, again]) == (
        "### torch\n\nNot run, since it has 3 GB of CUDA: 2.15.0 on Python 3.11.\n\n"
        f"### JAX\n\n{versions.HEAD}\n"
        "| 0.8.1+cpu | 3.11 | 2.4.6 | Keras 3.15.1 | 47 | 0 | 2 | 2026-11-25, 54101e4 |"
    )


def test_the_published_matrix() -> None:
    """It is what the lines say."""
    assert versions.render(versions.read()) in versions.PAGE.read_text()


def test_a_wheel_that_is_missing(tmp_path: Path) -> None:
    """The error says how it is made."""
    with pytest.raises(FileNotFoundError, match="make wheels") as caught:
        versions.wheel_of(tmp_path, "3.12")
    assert str(caught.value) == f"{tmp_path} has 0 wheels for Python 3.12, not one: run make wheels"


def test_the_wheel_of_a_python_without_the_gil(tmp_path: Path) -> None:
    """It is another one than that of the same Python with the GIL."""
    for tag in ("cp313-cp313", "cp313-cp313t"):
        (tmp_path / f"ringfeed-0.3.0-{tag}-manylinux_2_34_x86_64.whl").touch()
    assert "-cp313-cp313-" in versions.wheel_of(tmp_path, "3.13").name
    assert "-cp313-cp313t-" in versions.wheel_of(tmp_path, "3.13t").name
    assert versions.number("3.13") == versions.number("3.13t") == (3, 13)


def test_counts_of_a_report(tmp_path: Path) -> None:
    """Errors count as failures, and what is left out is neither."""
    (tmp_path / "report.xml").write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"></testsuite></testsuites>'
    )
    assert versions.counted(tmp_path / "report.xml") == {"passed": 3, "failed": 3, "skipped": 3}
