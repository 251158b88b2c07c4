"""What a dataset of your own is to be, looked at before the run, and in its tests.

    check          checking: reads some samples twice, in two processes, and names what is wrong
                     └── look: what one process sees of the dataset
    check_resume   resume: a run that is cut and resumed gives what one uncut gives

def test_my_dataset():
    ringfeed.testing.check(MyDataset())

def test_my_loader_resumes():
    ringfeed.testing.check_resume(lambda: ringfeed.Loader(MyDataset(), batch_size=32, shuffle=True))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed._exports import importing

if TYPE_CHECKING:
    from ringfeed.testing.checking import check
    from ringfeed.testing.resume import check_resume

__all__ = ["check", "check_resume"]

__getattr__ = importing("ringfeed.testing", {"check": "checking", "check_resume": "resume"})
