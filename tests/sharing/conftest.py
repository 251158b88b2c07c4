"""A share of a test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import shared

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def share() -> Iterator[shared.Share]:
    """Give a share of its own, and see that nothing of it stays."""
    made = shared.Share()
    yield made
    made.end()
