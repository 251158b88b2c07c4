"""The loaders of docs/sources with threads, each start method, and a killed worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sourced

if TYPE_CHECKING:
    from pathlib import Path

REFUSE_A_FORK = {
    "hdf5": "dataset.file is an h5py object (File)",
    "lmdb": "dataset.environment is a lmdb.Environment",
    "sqlite": "dataset.rows: global 'connected (cached)' is a database connection",
}


@pytest.mark.parametrize("page", sourced.pages())
def test_the_same_batches(page: str, tmp_path: Path) -> None:
    """Each way gives the batches that one process reads.

    Where a file must not be forked, it is refused.
    """
    script = tmp_path / "page.py"
    script.write_text(sourced.code_of(page))
    path = f"import sys; sys.path.append({sourced.SUPPORT!r})"  # last: it has a module `datasets`
    command = f"import __main__, sourced; sourced.run_in_each_way(__main__, {str(script)!r})"
    printed = sourced.run(tmp_path, "-c", f"{path}; {command}").splitlines()
    different = [line for line in printed if line.startswith(sourced.DIFFERS)]
    if (refused := REFUSE_A_FORK.get(page)) is not None:
        assert different != []
        different = [line for line in different if f", fork: {refused}" not in line]
    assert different == []
