"""The texts of the errors that calls raise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringfeed import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable


def raised(kind: type[Exception], call: Callable[[], object]) -> str:
    """Return the text of the error of this very kind that a call raises."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value)


def refusal(call: Callable[[], object]) -> str:
    """Return the text of the SpecError that a call raises."""
    with pytest.raises(SpecError) as caught:
        call()
    return str(caught.value)
