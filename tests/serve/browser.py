"""Chromium without a window, driven through two pipes by its DevTools protocol: enough to press keys and take pictures."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    return (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )


class Browser:
    """One page of a browser of its own."""

    def __init__(self, directory: Path) -> None:
        there, self._send = os.pipe()
        self._read, back = os.pipe()

        def place() -> None:  # the browser reads from 3 and writes to 4
            low, high = os.dup(there), os.dup(back)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self._process = subprocess.Popen(
            [str(find()), *FLAGS, f"--user-data-dir={directory}", "about:blank"],
            close_fds=False,
            preexec_fn=place,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self._held, self._number, self.log = b"", 0, []
        self._session = None
        target = next(
            t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"
        )["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown" or (
                answer.get("method") == "Log.entryAdded"
                and answer["params"]["entry"]["level"] == "error"
            ):
                self.log.append(answer["params"])

    def _next(self) -> dict:
        end = time.monotonic() + 60
        while b"\0" not in self._held:
            assert select.select([self._read], [], [], max(0, end - time.monotonic()))[0], (
                "the browser does not answer"
            )
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._held += part
        line, _, self._held = self._held.partition(b"\0")
        return json.loads(line)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def ask(self, expression: str):
        """The value of a JavaScript expression."""
        out = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in out, out
        return out["result"].get("value")

    def until(self, expression: str, seconds: float = 60.0) -> None:
        """Wait until it is true."""
        end = time.monotonic() + seconds
        while not self.ask(f"Boolean({expression})"):
            assert time.monotonic() < end, (
                f"never: {expression}; {self.ask('document.body.innerText')}; {self.log}"
            )
            time.sleep(0.05)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}),
            )

    def picture(self, path: Path) -> None:
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._send)
        os.close(self._read)
