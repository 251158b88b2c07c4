"""A page opened in Chromium without a window: how soon it is drawn, what the console says, and how it looks.

Chromium is spoken to over two pipes, in its DevTools protocol: JSON, with a zero byte behind each
message.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FREE = 10  # descriptors from here on are none of those that the browser reads and writes
PIPED = (
    "import os, sys; [os.dup2(int(a), b) for a, b in zip(sys.argv[1:3], (3, 4))]; "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
DRAWN = "document.documentElement.dataset.drawnMs"  # which the page sets when all is drawn
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"
MOST_S = 60.0


def chromium() -> str | None:
    """Where the browser is; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class Opened:
    """What a page was like: milliseconds until it was drawn, and what the console said that was no mere information.

    overflow: by how many pixels it is wider than the window. text: what can be read on it.
    """

    drawn_ms: float
    overflow: int
    text: str
    complaints: list[str] = field(default_factory=list)


class Browser:
    """A browser of one page; a context manager, which ends it with all its processes."""

    def __enter__(self) -> Self:
        """Start it."""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._rest, self._count, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self._start(
            [chromium() or NAMES[0], *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        )
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, command: list[str]) -> None:
        (to_read, self._write), (self._read, to_write) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FREE) for fd in (to_read, to_write)]
        self._process = subprocess.Popen(  # noqa: S603 - the browser
            [sys.executable, "-c", PIPED, *map(str, ends), *command],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for fd in (to_read, to_write, *ends):
            os.close(fd)

    def _attach(self) -> None:
        """Begin to speak with an empty page of it."""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        """End it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def open(
        self, page: Path, width: int, height: int = 900, picture: Path | None = None
    ) -> Opened:
        """Open a file, wait until it is drawn, and take its picture from top to bottom, if one is wanted."""
        self.complaints.clear()
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._ask("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + MOST_S
        while (drawn_ms := self.value(DRAWN)) is None:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{page} was not drawn within {MOST_S:g} s; the console says {self.complaints}"
                )
            time.sleep(0.02)
        wide, inner = self.value(WIDTHS)
        if picture is not None:
            shot = self._ask(
                "Page.captureScreenshot", captureBeyondViewport=True, clip=self._whole(width)
            )
            picture.write_bytes(base64.b64decode(shot["data"]))
        return Opened(
            float(drawn_ms), wide - inner, self.value("document.body.innerText"), [*self.complaints]
        )

    def value(self, expression: str) -> Any:
        """Return what an expression has for a value in the page; None for undefined."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def _whole(self, width: int) -> dict[str, float]:
        height = self.value("document.documentElement.scrollHeight")
        return {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a request, and return what is answered; events that come meanwhile are noted."""
        self._count += 1
        request: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        request |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(request).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._count:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def _note(self, message: dict[str, Any]) -> None:
        """Note what is no mere information: warnings, errors, exceptions, and requests to a network."""
        method, about = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and about["type"] in {
            "error",
            "warning",
            "assert",
        }:
            self.complaints.append(str([part.get("value") for part in about["args"]]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(str(about["entry"]["text"]))
