"""Declares the extensions and a library of TensorFlow ops; everything else stands in pyproject.toml."""

from __future__ import annotations

import sys
from glob import glob

import numpy as np
from setuptools import Extension, setup

HEADERS = sorted(glob("cext/*.h") + glob("src/ringfeed/*.px[di]"))
# c11: the ring is written in its atomics. No -march=native: a wheel runs on other machines than its builder.
COMPILE = ["-std=c11", "-O3", "-fvisibility=hidden", "-pthread"]

ring = Extension(
    "ringfeed._ring",
    [
        "src/ringfeed/_ring.pyx",
        "cext/ring.c",
        "cext/claim.c",
        "cext/binder.c",
        "cext/damage.c",
        "cext/wakes.c",
        "cext/sizes.c",
        "cext/reap.c",
        "cext/wait.c",
        "cext/pages.c",
        "cext/descriptors.c",
        "cext/export.c",
        "cext/fork.c",
        "cext/feed.c",
        "cext/feeds.c",
        "cext/watch.c",
    ],
    include_dirs=["cext"],
    depends=HEADERS,
    extra_compile_args=COMPILE,
    extra_link_args=["-pthread"],
)
feed = Extension(
    "ringfeed._feed",
    ["src/ringfeed/_feed.pyx"],
    include_dirs=["cext"],
    depends=HEADERS,
    extra_compile_args=COMPILE,
)
pages = Extension(
    "ringfeed._pages",
    ["src/ringfeed/_pages.pyx", "cext/pages.c", "cext/wait.c"],
    include_dirs=["cext"],
    depends=HEADERS,
    extra_compile_args=COMPILE,
    extra_link_args=["-pthread"],
)
watch = Extension(
    "ringfeed._watch",
    ["src/ringfeed/_watch.pyx", "cext/watch.c", "cext/pages.c", "cext/wait.c"],
    include_dirs=["cext"],
    depends=HEADERS,
    extra_compile_args=COMPILE,
    extra_link_args=["-pthread"],
)
# No module of Python's: TensorFlow opens it. It is built without TensorFlow, and looks up there what it calls.
ops = Extension(
    "ringfeed.adapters._tf_op",
    ["cext/tf_op.c"],
    include_dirs=["cext"],
    depends=HEADERS,
    extra_compile_args=COMPILE,
    libraries=["dl"],
)
arrays = Extension(
    "ringfeed._arrays",
    ["src/ringfeed/_arrays.pyx", "cext/copy.c", "cext/gather.c", "cext/convert.c"],
    include_dirs=["cext", np.get_include()],
    depends=HEADERS,
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
    # One rounding a step: a processor that multiplies and adds at once would differ from NumPy.
    extra_compile_args=[*COMPILE, "-ffp-contract=off"],
)
rows = Extension(
    "ringfeed._rows",
    ["src/ringfeed/_rows.pyx", "cext/wait.c"],
    include_dirs=["cext", np.get_include()],
    depends=HEADERS,
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
    extra_compile_args=COMPILE,
    extra_link_args=["-pthread"],
)

taker = Extension(
    "ringfeed._taker",
    ["src/ringfeed/_taker.pyx"],
    include_dirs=["cext", np.get_include()],
    depends=HEADERS,
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
    extra_compile_args=COMPILE,
)
permute = Extension(
    "ringfeed._permute",
    ["src/ringfeed/_permute.pyx", "cext/permute.c"],
    include_dirs=["cext"],
    depends=HEADERS,
    extra_compile_args=[*COMPILE, "-O2"],  # a fifth faster than -O3 by GCC 12, which unrolls what fills the registers
)

# Elsewhere the package still installs, so that `import ringfeed` can say what is missing.
setup(ext_modules=[ring, feed, pages, watch, arrays, rows, taker, permute, ops] if sys.platform == "linux" else [])
