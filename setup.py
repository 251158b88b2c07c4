"""Declares the extensions and a library of TensorFlow ops.

Everything else stands in pyproject.toml.
"""

from __future__ import annotations

import os
import subprocess
import sys
from glob import glob
from pathlib import Path

import numpy as np
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

# Where there is no Linux, workers are threads: the same C core over POSIX calls. On Linux this
# variable has that built, so that it can be tested.
LINUX = sys.platform == "linux" and os.environ.get("RINGFEED_PORTABLE") != "1"
WAIT = "os/posix os/wait_linux" if LINUX else "os/posix os/wait_portable"
PAGES = "os/pages_linux" if LINUX else "os/pages_portable os/processes_portable"
# Each module with the C files that are compiled into it. One without a .pyx is a library that
# TensorFlow opens; it is built without TensorFlow, and looks up there what it calls.
SOURCES = {
    "system._system": f"{WAIT} {PAGES}" + " os/descriptors_linux" * LINUX,
    "ring._ring": "segment slots plan bind take await cancel wake claim reap damage fork snapshot "
    f"export/dlpack export/feed export/feed_registry {WAIT} {PAGES}",
    "monitor._snapshot": f"snapshot {WAIT} {PAGES}",
    "spec._fields": "",
    "spec._writer": "bytes/copy bytes/gather bytes/convert",
    "spec._rows": WAIT,
    "spec._tensors": "",
    "spec._forms": "bytes/forms",
    "datasets._changes": WAIT,
    "reading._claims": WAIT,
    "cache._records": f"bytes/entries {WAIT}",
    "orders._permute": "bytes/permute",
    "engine._repeated": "",
    "engine._iterator": "",
    "frameworks._dlpack": "",
    "frameworks.tensorflow._feed": "",
}
if LINUX:  # it looks for TensorFlow's library by its name there; without it, Python calls
    SOURCES["frameworks.tensorflow._tf_op"] = "export/tf_op"
# c11: the ring is written in its atomics. No -march=native: a wheel runs on other machines than its
# builder. -g0: what debuggers read would be two thirds of a wheel, and a third of the time to build
# it.
COMPILE = [
    "-std=c11",
    "-O3",
    "-g0",
    "-fvisibility=hidden",
    "-pthread",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
]
# What is relocated is read-only before any code runs; other linkers have no such options.
LINK = ["-pthread", *["-Wl,-z,relro", "-Wl,-z,now"] * LINUX]
FLAGS = {
    # One rounding a step: a processor that multiplies and adds at once would differ from NumPy.
    "spec._writer": ["-ffp-contract=off"],
    # A fifth faster than -O3 by GCC 12, which unrolls what fills the registers.
    "orders._permute": ["-O2"],
}


def extension(name: str, sources: str) -> Extension:
    """Return the extension of one module."""
    cython = Path("src/ringfeed", *name.split(".")).with_suffix(".pyx")
    return Extension(
        f"ringfeed.{name}",
        [
            *([str(cython)] if cython.exists() else []),
            *(f"cext/{source}.c" for source in sources.split()),
        ],
        include_dirs=["cext", np.get_include()],
        depends=sorted(
            glob("cext/**/*.h", recursive=True) + glob("src/ringfeed/**/*.px[di]", recursive=True)
        ),
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=[*COMPILE, *FLAGS.get(name, [])],
        extra_link_args=LINK,
        libraries=["dl"] * LINUX,
    )


class WithoutRunpath(build_ext):
    """Leaves out where the building interpreter has its own library, which its flags name."""

    def finalize_options(self) -> None:
        """Declare each module right without the GIL; one that does not say so turns the GIL on."""
        super().finalize_options()
        self.cython_directives = {"freethreading_compatible": True}

    def build_extensions(self) -> None:
        """Build with the compiler's own path of libraries."""
        self.compiler.linker_so = [
            flag for flag in self.compiler.linker_so if not flag.startswith("-Wl,-rpath")
        ]
        super().build_extensions()


class OfTracked(sdist):
    """Leaves out what git does not track, in a clone: notes, secrets and data."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy what is tracked of the files."""
        if Path(".git").exists():
            listed = subprocess.run(
                ["git", "ls-files", "-z"],  # noqa: S607
                stdout=-1,
                text=True,
                check=True,
            ).stdout
            files = [name for name in files if name in {*listed.split("\0")}]
        super().make_release_tree(base_dir, files)


# On Windows the package still installs, so that `import ringfeed` can say what to do.
setup(
    ext_modules=[extension(*pair) for pair in SOURCES.items()] if sys.platform != "win32" else [],
    cmdclass={"build_ext": WithoutRunpath, "sdist": OfTracked},
)
