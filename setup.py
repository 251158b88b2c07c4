"""Declares the two extensions; everything else stands in pyproject.toml."""

from __future__ import annotations

import sys
from glob import glob

import numpy as np
from setuptools import Extension, setup

HEADERS = sorted(glob("cext/*.h") + glob("src/ringfeed/*.pxd"))
# c11: the ring is written in its atomics. No -march=native: a wheel runs on other machines than its builder.
COMPILE = ["-std=c11", "-O3", "-fvisibility=hidden", "-pthread"]

ring = Extension(
    "ringfeed._ring",
    [
        "src/ringfeed/_ring.pyx",
        "cext/ring.c",
        "cext/claim.c",
        "cext/binder.c",
        "cext/reap.c",
        "cext/wait.c",
        "cext/export.c",
    ],
    include_dirs=["cext"],
    depends=HEADERS,
    extra_compile_args=COMPILE,
    extra_link_args=["-pthread"],
)
arrays = Extension(
    "ringfeed._arrays",
    ["src/ringfeed/_arrays.pyx", "cext/gather.c"],
    include_dirs=["cext", np.get_include()],
    depends=HEADERS,
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
    extra_compile_args=COMPILE,
)

# Elsewhere the package still installs, so that `import ringfeed` can say what is missing.
setup(ext_modules=[ring, arrays] if sys.platform == "linux" else [])
