"""A headless Chromium and the little of its DevTools protocol that tests of a page need, over a pair of pipes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from missing import find_program

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 30.0
"""Seconds after which an answer that did not come is a failure."""

# The browser talks on descriptors 3 and 4, whatever Python has there.
_LAUNCH = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"


def find_chromium() -> str | None:
    return os.environ.get("OCTAVO_CHROMIUM") or find_program(*NAMES)


class Browser:
    """One page. Everything its console says in error, and every exception nobody caught, is kept in `complaints`."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._rest = b""
        self._last = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reader], [], [], max(deadline - time.monotonic(), 0))
            chunk = os.read(self._reader, 1 << 20) if ready else b""
            assert chunk, "the browser gave no answer"
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert", "warning"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"never came true: {expression}"
            time.sleep(0.02)

    def click(self, element: str) -> None:
        """Press the mouse in the middle of the element that a JavaScript expression gives."""
        x, y = self.evaluate(
            f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, key: str, code: int, text: str = "") -> None:
        common = {"key": key, "windowsVirtualKeyCode": code, "code": key}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Browser]:
    """Run Chromium with a profile of its own in `folder`."""
    to_child, writer = os.pipe()
    reader, from_child = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_child, from_child)]  # out of the way of 3 and 4
    os.close(to_child)
    os.close(from_child)
    options = [
        "--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", f"--user-data-dir={folder}",
    ]  # fmt: skip
    if os.geteuid() == 0:
        options.append("--no-sandbox")  # Chromium's sandbox refuses to run as root
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, *map(str, ends), program, *options, "about:blank"],
        pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for end in ends:
        os.close(end)
    try:
        yield Browser(reader, writer)
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        os.close(writer)


@contextmanager
def fresh(chromium: Browser, page: Path) -> Iterator[Browser]:
    """Open a page as nobody has used it. Whatever is done: no complaint on the console, no request but for the page itself."""
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.size(1280, 800)
    chromium.scheme("light")
    chromium.open(page)
    chromium.wait("document.querySelector('#heads th')")
    yield chromium
    assert chromium.evaluate("document.body.dataset.hacked") is None
    assert chromium.complaints == []
    assert [url for url in chromium.requests if url != page.as_uri() and not url.startswith("data:")] == []


def inked(element: str) -> str:
    """JavaScript: how many pixels of a canvas are drawn on."""
    # Read from a copy: Chromium complains where a canvas that is drawn on is read again and again.
    return f"""(() => {{ const c = {element};
        const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', {{willReadFrequently: true}});
        copy.drawImage(c, 0, 0);
        const d = copy.getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }})()"""
