"""A headless Chromium, asked over a pipe in its own protocol: pages as readers see them, with nothing to install."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
# Nothing but the pages asked for is fetched.
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
# Seconds after which a browser that says nothing is taken for hung: on a busy machine one page may take a minute.
SILENCE = 180.0
# The tab is drawn and its clocks run, whether the browser believes that anybody sees it or not.
AWAKE = (
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
    "--disable-background-timer-throttling",
)


def find() -> str | None:
    """The program, where there is one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One tab. `complaints` are what console and network said was wrong with the page, `fetched` what it asked for."""

    def __init__(self, ask: int, answers: int) -> None:
        self._ask, self._answers = ask, answers
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.complaints: list[str] = []
        self.fetched: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """What the method returns."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._ask, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def open(self, url: str) -> None:
        """Go there, and wait until it and its pictures have come."""
        self.complaints.clear()
        self.fetched.clear()
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._next()

    def show(self, width: int, scheme: str) -> None:
        """How wide the window is, and whether the reader likes pages light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page as a PNG file."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        """The next answer or event; what events say is kept."""
        deadline = time.monotonic() + SILENCE
        while b"\0" not in self._rest:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser says nothing")
            read = os.read(self._answers, 1 << 20)
            if not read:
                raise EOFError("the browser has ended")
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\0")
        said: dict[str, Any] = json.loads(line)
        about = said.get("params", {})
        match said.get("method"):
            case "Network.requestWillBeSent":
                self.fetched.append(about["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.complaints.append(str(about["exceptionDetails"].get("exception", {}).get("description")))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "assert"):
                self.complaints.append(" ".join(str(arg.get("value")) for arg in about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] == "error":
                self.complaints.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
            case "Network.responseReceived" if about["response"]["status"] >= 400:
                self.complaints.append(f"{about['response']['status']} {about['response']['url']}")
        return said


@contextmanager
def browser() -> Iterator[Browser]:
    """A tab of a browser that ends with the block."""
    program = find()
    assert program, "no Chromium"
    (theirs, ask), (answers, replies) = os.pipe(), os.pipe()
    # The browser reads from 3 and writes to 4: what it is to find there must not lie there now.
    given = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs, replies)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [*OPTIONS, *QUIET, *AWAKE, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{given[0]} 4>&{given[1]}', "bash", program, *options],
            pass_fds=given,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs, replies, *given):
            os.close(end)
        try:
            opened = Browser(ask, answers)
            yield opened
            opened._session = None
            opened.call("Browser.close")
            process.wait(20)
        finally:
            process.kill()
            process.wait()
            os.close(ask)
            os.close(answers)
