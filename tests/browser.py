"""A real Chromium without a window, driven over its debugging pipe: nothing to install beside the
browser."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time

import pytest

NAMED_KEYS = dict(Tab=9, ArrowLeft=37, ArrowUp=38, ArrowRight=39, ArrowDown=40)


def chromium():
    "Path of the browser; skips the test where there is none"
    if sys.platform == "win32":
        pytest.skip("the debugging pipe needs file descriptors that Windows does not pass on")
    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    return found or pytest.skip("no chromium on this machine: apt-get install chromium")


class Browser:
    """One page: `open`, `run` JavaScript in it, `picture`; `events` are what the browser said,
    network requests and errors among it"""

    def __init__(self, folder, width=1280, height=900, dark=False):
        program = chromium()
        (reads, self.out), (self.inn, writes) = os.pipe(), os.pipe()
        swap = f'exec {program} "$@" 3<&{reads} 4>&{writes}'
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--no-first-run",
            f"--user-data-dir={folder}/profile",
        ]
        self.process = subprocess.Popen(
            ["bash", "-c", swap, "bash", *flags],
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self.buffer, self.count, self.session, self.events = b"", 0, None, []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self(f"{domain}.enable")
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self(
            "Emulation.setEmulatedMedia",
            features=[dict(name="prefers-color-scheme", value="dark" if dark else "light")],
        )

    def message(self, until):
        while b"\0" not in self.buffer:
            if not select.select([self.inn], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            if not (more := os.read(self.inn, 1 << 16)):
                raise RuntimeError("the browser is gone")
            self.buffer += more
        one, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(one)

    def __call__(self, method, seconds=300, **params):
        "One command of the DevTools protocol, and its answer"
        self.count += 1
        command = dict(id=self.count, method=method, params=params) | (
            {"sessionId": self.session} if self.session else {}
        )
        os.write(self.out, json.dumps(command).encode() + b"\0")
        until = time.monotonic() + seconds
        while (m := self.message(until)).get("id") != self.count:
            self.events.append(m)
        if "error" in m:
            raise RuntimeError(m["error"])
        return m["result"]

    def open(self, url):
        self("Page.navigate", url=str(url))
        return self

    def follow(self, script, seconds=60):
        "Run what leads to another page, and wait until that page is loaded"
        loaded = len(self.seen("Page.loadEventFired"))
        self.run(script)
        until = time.monotonic() + seconds
        while len(self.seen("Page.loadEventFired")) == loaded:
            self.events.append(self.message(until))

    def run(self, script):
        "The value of an expression in the page, awaited"
        got = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in got:
            raise RuntimeError(got["exceptionDetails"]["exception"].get("description", got))
        return got["result"].get("value")

    def wait(self, condition):
        "Until the expression holds"
        self.run(
            f"new Promise(ok => {{ const look = () => {{ try {{ if ({condition}) return ok() }} "
            f"catch {{}} setTimeout(look, 20) }}; look() }})"
        )

    def press(self, key):
        "A key, down and up: `Tab`, an arrow or a character"
        named = NAMED_KEYS.get(key)
        code = dict(windowsVirtualKeyCode=named or ord(key.upper()))
        for kind in ("rawKeyDown" if named else "keyDown", "keyUp"):
            self(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                **code,
                **({"text": key} if kind == "keyDown" else {}),
            )

    def picture(self, path, whole=True):
        path.write_bytes(
            base64.b64decode(self("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
        )
        return path

    def seen(self, method):
        return [e["params"] for e in self.events if e.get("method") == method]

    def close(self):
        os.close(self.out)
        os.close(self.inn)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
