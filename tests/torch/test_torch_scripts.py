"""Training scripts with another import of DataLoader alone have the same losses, bit for bit."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed

torch = pytest.importorskip("torch", reason="torch is not installed")
scripts = importlib.import_module("torch_scripts")
close = importlib.import_module("torch_checks").close

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # of more workers than CPUs
]


@pytest.mark.parametrize("script", scripts.SCRIPTS, ids=lambda script: script.__name__)
def test_a_script_has_the_same_losses(script: Callable[[Any], list[float]]) -> None:
    """Over the ring, with no line left to torch."""
    made = []

    def loader(*given: Any, **settings: Any) -> Any:
        made.append(ringfeed.torch.DataLoader(*given, **settings))
        return made[-1]

    losses = script(loader)
    assert all(one._rings.own_reason is None for one in made), "it went torch's own way"
    for one in made:
        close(one)
    assert losses == script(torch.utils.data.DataLoader)
    assert len({*losses}) > 4
