"""The examples of docs/waiting.md run against a server of this process."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "waiting.md").read_text()
BLOCKS = dict(re.findall(r"\n## With (\w+)\n.*?```python\n(.*?)```", PAGE, re.DOTALL))
pytestmark = pytest.mark.once


class _Files(BaseHTTPRequestHandler):
    """Has the file i.npy for each number i below 100."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send a file."""
        file = BytesIO()
        np.save(file, np.full(8, int(Path(self.path).stem), np.float32))
        self.send_response(200)
        self.send_header("Content-Length", str(len(file.getvalue())))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(file.getvalue())

    def log_message(self, *unused: Any) -> None:
        """Write no log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@pytest.fixture
def url() -> Iterator[str]:
    """Return the address of a server of files."""
    with _Server(("127.0.0.1", 0), _Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_all_are_found() -> None:
    """Each example stands under the name of what it needs."""
    assert len(BLOCKS) == PAGE.count("```python") == 3


@pytest.mark.parametrize("package", BLOCKS)
def test_an_example(
    package: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All samples come, in order; in processes that import the dataset's module."""
    pytest.importorskip(package)
    if package == "fsspec":  # which comes with torch, and leaves to others what asks a server
        pytest.importorskip("aiohttp")
    setting, _, use = BLOCKS[package].partition("\nloader = ")
    (tmp_path / f"with_{package}.py").write_text(setting)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"url": url, "ringfeed": ringfeed, "found": []}
    exec(f"from with_{package} import Remote", names)  # noqa: S102 - the page's own code
    names["train_step"] = lambda batch: names["found"].extend(batch[:, 0].tolist())
    exec("loader = " + use, names)  # noqa: S102 - as above
    names["loader"].close()
    assert names["found"] == [*range(100)]


@pytest.mark.parametrize("text", re.findall(r"^\| `(.*?)` \|", PAGE, re.MULTILINE))
def test_a_text(text: str) -> None:
    """It is what a test expects."""
    tests = (ROOT / "tests/reading/test_waiting.py").read_text()
    assert text in re.sub(r'"\n\s*"', "", tests)
