"""How Sphinx builds the pages: `make docs`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import ringfeed

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "ringfeed"
copyright = "the authors of ringfeed"  # noqa: A001 - Sphinx' name
release = version = ringfeed.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"ringfeed {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
exclude_patterns = ["build"]
nitpicky = False

myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]

default_role = (
    "py:obj"  # the house writes `Loader` for a name: a link where the reference has it
)
autodoc_member_order = "bysource"
autodoc_mock_imports = ["jax", "keras", "tensorflow", "tf_keras", "torch"]
maximum_signature_line_length = 80
python_use_unqualified_type_names = True

_PARAMETER = re.compile(r"(\w+(?:, \w+)*): +(.*)")
_ROW = re.compile(r"\w[\w.]* {2,}\S.*")  # of a table: a name, and what it is


def to_rst(lines: list[str]) -> list[str]:
    """Return a docstring of the house as reStructuredText, block by block."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line:
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    made: list[str] = []
    in_parameters = False
    for block in filter(None, blocks):
        is_indented = block[0].startswith(" ")
        begins = not is_indented or in_parameters
        in_parameters = begins and all(
            _PARAMETER.fullmatch(line) or line.startswith("    ") for line in block
        )
        made += [
            *_block(block, is_indented=is_indented, in_parameters=in_parameters),
            "",
        ]
    return made


def _block(block: list[str], *, is_indented: bool, in_parameters: bool) -> list[str]:
    """Return parameters as definitions, tables and indented code as code, and all else as it is."""
    if in_parameters:
        return [part for line in block for part in _definition(line)]
    if is_indented or _ROW.fullmatch(block[0]):
        language = "python" if is_indented else "text"
        return [f".. code-block:: {language}", "", *(f"    {line}" for line in block)]
    return [re.sub(r"^(\w+): ", r"``\1``: ", line) for line in block]


def _definition(line: str) -> list[str]:
    found = _PARAMETER.fullmatch(line)
    return [line] if found is None else ["", f"``{found[1]}``", f"    {found[2]}"]


def setup(app: Sphinx) -> None:
    """Have Sphinx read the docstrings so."""

    def convert(*given: object) -> None:
        lines = given[-1]
        assert isinstance(lines, list)
        lines[:] = to_rst(lines)

    app.connect("autodoc-process-docstring", convert)
