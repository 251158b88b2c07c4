"""What a script prints whose dataset raises.

The user's own error and line first, under no frames of ours.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from watching import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

WAYS = {
    "here": "workers=0",
    "thread": "workers=1, backend='thread'",
    "spawn": "workers=1, backend='spawn'",
    "fork": "workers=1, backend='fork'",
    "process": "workers=1, backend='process'",
}

SCRIPT = """
import traceback
import ringfeed


class PictureError(Exception):
    def __init__(self, name, why):
        super().__init__(f"{name}: {why}")


def decode(index):
    if index == 2:
        raise KeyError("no picture 2")
    return index


class Pictures:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return decode(index)


class Chained(Pictures):
    def __getitem__(self, index):
        try:
            return decode(index)
        except KeyError as error:
            raise PictureError("two.png", "cut short") from error


class InPlace(Pictures):
    def read_into(self, index, out):
        out[...] = decode(index)


class Bulk(Pictures):
    def __getitems__(self, indices):
        return list(map(decode, indices))


class Misfit(Pictures):
    def __getitem__(self, index):
        return [0, 0.5][index == 2]


class Begins(Pictures):
    def on_epoch_begin(self):
        decode(2)


class Ends(Pictures):
    def __getitem__(self, index):
        return index

    def on_epoch_end(self):
        decode(2)


class First(Pictures):
    def __getitem__(self, index):
        return decode(2)


def numbers():
    yield 1
    decode(2)


for dataset in Pictures(), Chained(), InPlace(), Bulk(), numbers, Misfit(), Begins(), Ends(), First():
    try:
        for batch in ringfeed.Loader(dataset, batch_size=2, seed=3, {WAY}):
            pass
    except Exception:
        traceback.print_exc()
for batch in ringfeed.Loader(Pictures(), batch_size=2, {WAY}):
    pass
"""

DIRECT = "The above exception was the direct cause of the following exception:"
NEXT = "  File ringfeed, in __next__"
LOOP = (
    "  File script, in <module>\n    for batch in ringfeed.Loader(dataset, batch_size=2, seed=3, "
    "{WAY}):"
)
DECODE = "  File script, in decode\n    raise KeyError(\"no picture 2\")\nKeyError: 'no picture 2'"
PRINTED = [
    # a sample
    f"""Traceback (most recent call last):
  File script, in __getitem__
    return decode(index)
{DECODE}

{DIRECT}

Traceback (most recent call last):
{LOOP}
{NEXT}
ringfeed.errors.WorkerError: dataset[2] raised KeyError: 'no picture 2'""",
    # an error that was raised from another, and that no pickle can make again
    f"""Traceback (most recent call last):
  File script, in __getitem__
    return decode(index)
{DECODE}

{DIRECT}

Traceback (most recent call last):
  File script, in __getitem__
    raise PictureError("two.png", "cut short") from error
PictureError: two.png: cut short

{DIRECT}

Traceback (most recent call last):
{LOOP}
{NEXT}
ringfeed.errors.WorkerError: dataset[2] raised PictureError: two.png: cut short""",
    # read_into
    f"""Traceback (most recent call last):
  File script, in read_into
    out[...] = decode(index)
{DECODE}

{DIRECT}

Traceback (most recent call last):
{LOOP}
{NEXT}
ringfeed.errors.WorkerError: dataset[2] raised KeyError: 'no picture 2'""",
    # __getitems__
    f"""Traceback (most recent call last):
  File script, in __getitems__
    return list(map(decode, indices))
{DECODE}

{DIRECT}

Traceback (most recent call last):
{LOOP}
{NEXT}
ringfeed.errors.WorkerError: dataset[2] raised KeyError: 'no picture 2'""",
    # an iterable
    f"""Traceback (most recent call last):
  File script, in numbers
    decode(2)
{DECODE}

{DIRECT}

Traceback (most recent call last):
{LOOP}
{NEXT}
ringfeed.errors.WorkerError: element 1 of the iterable raised KeyError: 'no picture 2'""",
    # a sample that does not fit
    f"""Traceback (most recent call last):
{LOOP}
{NEXT}
ringfeed.errors.SpecError: dataset[2]: sample is the float 0.5, expected a value for dtype int64; a Python float goes \
into float32 or float64, if it is in range: convert it in __getitem__, or give another dtype in spec=""",
    # on_epoch_begin
    f"""Traceback (most recent call last):
{LOOP}
  File ringfeed, in __iter__
  File script, in on_epoch_begin
    decode(2)
{DECODE}""",
    # on_epoch_end
    f"""Traceback (most recent call last):
{LOOP}
{NEXT}
  File script, in on_epoch_end
    decode(2)
{DECODE}""",
    # sample 0, read to learn the spec
    f"""Traceback (most recent call last):
{LOOP}
  File ringfeed, in __init__
  File script, in __getitem__
    return decode(2)
{DECODE}""",
]
PRINTED.append(
    PRINTED[0].replace("dataset, batch_size=2, seed=3,", "Pictures(), batch_size=2,")
)  # by Python itself


def plain(printed: str, script: Path) -> str:
    """Return tracebacks without line numbers, column marks, and the text of our own lines."""
    printed = printed.replace(f'File "{script}"', "File script")
    printed = re.sub(r"^ +[~^][~^ ]*\n", "", printed, flags=re.MULTILINE)
    printed = re.sub(r", line \d+", "", printed)
    return re.sub(
        r'File "[^"]*ringfeed/.*, in (?:.*\.)?(\w+)(?:\n    .*)?', r"File ringfeed, in \1", printed
    )


@pytest.mark.parametrize("way", WAYS)
def test_the_users_error_comes_first_and_short(way: str, tmp_path: Path) -> None:
    """Whatever raises, and whatever fills.

    The whole printed text is the user's frames, and one of ours at most.
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{WAY}", WAYS[way]))
    found = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=tmp_path,
    )
    assert (found.stdout, found.returncode) == ("", 1)
    assert plain(found.stderr, script) == "".join(f"{text}\n" for text in PRINTED).replace(
        "{WAY}", WAYS[way]
    )
