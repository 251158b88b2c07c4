"""Which tests mean something where workers are threads, for `make test-portable`.

A plugin of pytest: `-p without_linux`. What it leaves out is said here, with the reason, and nowhere else.
"""

from __future__ import annotations

import os
import signal
import threading
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

LEFT_OUT: dict[str, tuple[str, ...]] = {
    "a worker dies, is replaced, or is stuck until it is killed": (
        "*::*_dies*",
        "*::*killed*",
        "*::*kills*",
        "*::*death*",
        "*::*replace*",
        "*::*stuck*",
        "*::*_ends_its_workers*",
        "*::*every_reader*",
        "*::*ends_every_worker*",
        "*::*lose_its_reader*",
        "*::*have_ended*",
        "*::*have_failed*",
        "*::*ended_the_workers*",
        "*::*die_with*",
        "*::*_cut_short_*",
        "*/test_batch_deaths.py*",
        "*/test_optional_workers.py*",
        "engine/test_engine.py::test_workers_that_have_not_begun_are_shown*",
    ),
    "a dataset travels to another process, or is counted for each": (
        "*::*cannot_travel*",
        "*::*can_no_longer_be_sent*",
        "*::*cannot_be_sent*",
        "*::*the_programs_own_classes*",
        "*::*the_plan_says_it*",
        "monitor/test_tables.py::test_a_plan*",
        "engine/test_engine.py::test_a_dataset_that_cannot_be_opened*",
        "engine/test_options.py::test_a_budget_bounds_workers*",
        "datasets/test_source.py::test_a_worker_imports*",
        "datasets/test_iterables.py::test_each_of_several_has_its_worker*",
        "datasets/test_steered.py::test_what_cannot_be_compared*",
        "datasets/test_words.py::*",
        "frameworks/torch/test_torch_datasets.py::test_nothing_is_warned*",
    ),
    "threads hold the dataset itself, compute as this process does, and start at once": (
        "datasets/test_source.py::test_a_dataset_that_knows_its_loader*",
        "monitor/test_insight.py::*",
        "frameworks/torch/test_torch_datasets.py::test_a_worker_computes_in_one_thread*",
        "frameworks/torch/test_torch_datasets.py::test_a_subset_of_a_dataset_that*",
    ),
    "it looks at another process, or into /proc": (
        "monitor/test_attach.py::*",
        "monitor/test_memory.py::*",
        "monitor/test_waits.py::test_a_recorded_trace*",
        "frameworks/torch/test_torch_cuda.py::*",
        "frameworks/*_share.py::*",
    ),
    "it is about the op in C, by which tf.data takes batches on Linux": (
        "frameworks/tensorflow/test_tensorflow_op.py::*",
        "frameworks/tensorflow/test_tensorflow_turns.py::*",
        "frameworks/tensorflow/test_tensorflow_waits.py::test_ctrl_c_while*",
        "frameworks/tensorflow/test_tensorflow_waits.py::*iterator_goes*",
        "frameworks/tensorflow/test_tensorflow_waits.py::*again_and_again*",
        "frameworks/tensorflow/test_tensorflow_waits.py::*two_datasets*",
        "frameworks/tensorflow/test_tensorflow_waits.py::*hook*",
        "frameworks/tensorflow/test_tensorflow_waits.py::*fork*",
        "frameworks/tensorflow/test_tensorflow_waits.py::*cannot_start*",
        "frameworks/tensorflow/test_tensorflow_waits.py::*pool_that_has_failed*",
        "frameworks/tensorflow/test_tensorflow.py::test_an_iteration_ends_where*",
    ),
    "it is slow beside others, or has interpreters of its own": (
        "frameworks/jax/test_jax_device.py::*",
        "frameworks/jax/test_jax_ranks.py::*",
        "frameworks/tensorflow/test_tensorflow_ranks.py::*",
        "frameworks/tensorflow/test_tensorflow_resizer.py::*",
    ),
    "threads share what reseed=True would seed": ("*::*reseed*",),
    "it is about memfds, their seals and descriptors": (
        "ring/test_segment.py*",
        "ring/test_watch.py*",
        "ring/test_scribbling.py*",
        "ring/test_forked_views.py::*leaves_no_mapping*",
        "ring/test_ring.py::test_a_foreign_segment*",
        "ring/test_ring.py::test_a_bad_descriptor*",
        "engine/test_plan.py::test_what_the_kernel_reserves*",
        "frameworks/torch/test_torch_worker_info.py::test_torchs_own_workers*",
    ),
    "a cache writes at a place of a file that appends, which Linux puts behind its end": (
        "frameworks/torch/test_torch_cache.py::*",
    ),
    "its text, or the output of its script, names processes": (
        "engine/test_loader.py::test_script_without_main_guard*",
        "engine/test_loader.py::test_what_is_printed_is_a_line*",
        "engine/test_free_threads.py::test_with*",
        "monitor/test_page.py::test_a_loader_draws_its_own*",
        "monitor/test_tables.py::test_a_loader*",
        "monitor/test_trace.py::test_what_the_loader_says*",
        "*::test_a_script_ends_with_a_live_iterator*",
    ),
}
"""Patterns of what is left out, by the reason."""
FATAL = {signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT}


def pytest_configure(config: pytest.Config) -> None:
    """Let loaders say that their workers are threads: tests/portable looks for it."""
    config.addinivalue_line("filterwarnings", "ignore:a worker process needs memory:RuntimeWarning")
    for module, name in ((os, "kill"), (os, "_exit"), (os, "abort"), (signal, "raise_signal")):
        setattr(module, name, _outliving(getattr(module, name)))


def _outliving(end: Callable[..., object]) -> Callable[..., object]:
    """Refuse a worker that ends its process, since that is the tests' own: the test fails by this error."""

    def end_another(*given: Any) -> object:
        is_own = given[0] == os.getpid() if len(given) > 1 else True
        is_end = not given or end.__name__ == "_exit" or given[-1] in FATAL
        if is_own and is_end and threading.current_thread() is not threading.main_thread():
            message = f"a thread calls {end.__name__}, which ends the tests"
            raise RuntimeError(message)
        return end(*given)

    return end_another


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs processes."""
    patterns = [f"tests/{pattern}" for some in LEFT_OUT.values() for pattern in some]
    left = [item for item in items if any(fnmatch(item.nodeid, pattern) for pattern in patterns)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
