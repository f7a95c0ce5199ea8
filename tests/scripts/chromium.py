# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for tests of pages, driven through the DevTools protocol over two pipes.

Browser has the methods that a test needs: open a page, evaluate, move the mouse, press keys, take a screenshot; errors of the
page and requests that it makes are collected. No test needs it; find() is None where no Chromium is installed.
"""
from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Optional


def find() -> Optional[str]:
    names = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


class Browser:
    def __init__(self, program: str, width: int = 1300, height: int = 1400) -> None:
        self._profile = tempfile.mkdtemp()
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # It reads commands from descriptor 3 and answers on 4. Nothing outside this machine is asked for or offered.
        self._child = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "sh", program, "--headless", "--no-sandbox", "--disable-gpu",
             "--remote-debugging-pipe", "--no-first-run", "--disable-extensions", "--disable-background-networking",
             "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1",
             f"--user-data-dir={self._profile}", f"--window-size={width},{height}", "about:blank"],
            pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._count = 0
        self._session: Optional[str] = None
        self.problems: list[str] = []  # exceptions, console errors, log entries
        self.requests: list[str] = []
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self) -> None:
        os.close(self._write)  # it ends when nobody can command it
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)  # processes of the browser may still write there

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            got = os.read(self._read, 1 << 20)
            if not got:
                raise ConnectionError("the browser ended")
            self._buffer += got
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        name, p = message.get("method"), message.get("params", {})
        if name == "Runtime.exceptionThrown":
            details = p["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif name == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console {p['type']}: {[a.get('value', a.get('description')) for a in p['args']]}")
        elif name == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.problems.append(p["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif name == "Page.loadEventFired":
            self._loaded = True
        return message

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 60
        while True:
            got = self._receive(until)
            if got.get("id") == self._count:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']}")
                result: dict[str, Any] = got["result"]
                return result

    def open(self, page: Path) -> None:
        self._loaded = False
        self.call("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + 60
        while not self._loaded:
            self._receive(until)
        self.frame()

    def evaluate(self, expression: str) -> Any:
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            raise AssertionError(got["exceptionDetails"].get("exception", {}).get("description", got))
        return got["result"].get("value")

    def frame(self) -> None:
        """Wait until what was asked for so far is drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, x0: float, y0: float, x1: float, y1: float) -> None:
        self.mouse("mouseMoved", x0, y0)
        self.mouse("mousePressed", x0, y0, button="left", buttons=1, clickCount=1)
        for part in (0.3, 0.7, 1.0):
            self.mouse("mouseMoved", x0 + (x1 - x0) * part, y0 + (y1 - y0) * part, button="left", buttons=1)
        self.mouse("mouseReleased", x1, y1, button="left", clickCount=1)
        self.frame()

    def click(self, x: float, y: float, count: int = 1) -> None:
        for n in range(1, count + 1):
            self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=n)
            self.mouse("mouseReleased", x, y, button="left", clickCount=n)
        self.frame()

    def key(self, key: str, **more: Any) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **more)
        self.frame()

    def colors(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.frame()

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
