"""Headless Chromium for tests that look at pages, driven by Debian's chromedriver."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

__all__ = ["Browser", "find_browser", "run_browser"]

# A width at which phones lay pages out, and one of a laptop.
PHONE, LAPTOP = (390, 844), (1280, 900)


def find_browser() -> tuple[str, str] | None:
    """The paths of chromium and chromedriver, or None where one is missing."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (chromium, driver) if chromium and driver else None


class Browser:
    """One page: open it, wait for what it shows, ask it in JavaScript, take its picture."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str, *, size: tuple[int, int] = LAPTOP) -> None:
        """Load ``url`` in a viewport of ``size`` CSS pixels."""
        self.resize(*size)
        self.driver.get(url)

    def resize(self, width: int, height: int) -> None:
        """Set the viewport; a window alone is never narrower than 500 pixels."""
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def wait_for(
        self, script: str, *, seconds: float = 30, accept: Callable[[Any], bool] = bool
    ) -> Any:
        """The first value of the JavaScript expression ``script`` that ``accept`` takes.

        Raises selenium's TimeoutException with the page's words.
        """
        last: list[Any] = [None]

        def poll(driver: webdriver.Chrome) -> bool:
            last[0] = driver.execute_script(f"return {script}")
            return accept(last[0])

        try:
            WebDriverWait(self.driver, seconds, poll_frequency=0.2).until(poll)
        except Exception as error:
            error.add_note(f"{script} gave {last[0]!r}; the page says:\n{self.words()[:2000]}")
            raise
        return last[0]

    def wait_for_words(self, *words: str, seconds: float = 30) -> None:
        """Wait until the page shows each of ``words``."""
        for phrase in words:
            self.wait_for(f"document.body.innerText.includes({phrase!r})", seconds=seconds)

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self.driver.execute_script(f"return {script}")

    def words(self) -> str:
        """What the page says."""
        return str(self.ask("document.body ? document.body.innerText : ''"))

    def click(self, words: str) -> None:
        """Click the first link or button that says ``words``, once there is one."""
        found = (
            "[...document.querySelectorAll('button, a')]"
            f".find(e => e.innerText.includes({words!r}))"
        )
        self.wait_for(f"{found} !== undefined")
        self.ask(f"{found}.click()")

    def press(self, key: str, *, code: int = 0) -> None:
        """One real key press (`Tab`, `Enter`, …), as the keyboard sends it."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "ArrowRight": 39}
        for kind in ("keyDown", "keyUp"):
            self._command(
                "Input.dispatchKeyEvent", type=kind, key=key, text="\r" if key == "Enter" else "",
                windowsVirtualKeyCode=code or codes[key],
            )  # fmt: skip

    def complaints(self) -> list[str]:
        """Errors of the page's console since the last call."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE"
        ]

    def save_picture(self, path: Path, *, whole_page: bool = False) -> None:
        """Write a PNG of the viewport, or of the page in its whole length."""
        shot = self._command("Page.captureScreenshot", captureBeyondViewport=whole_page)
        path.write_bytes(base64.b64decode(shot["data"]))

    def print_pdf(self) -> bytes:
        """The page as it would be printed on A4."""
        pdf = self._command("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(pdf["data"])

    def _command(self, name: str, **parameters: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.driver.execute_cdp_cmd(name, parameters)
        return answer


@contextmanager
def run_browser(*, offline: bool = False) -> Iterator[Browser]:
    """A browser for the length of the block; ``offline`` refuses it every network address."""
    found = find_browser()
    if found is None:
        raise RuntimeError("no chromium with chromedriver; install chromium-driver")
    chromium, driver_path = found
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # Chromium's sandbox needs privileges that root in a container does not have.
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
    ):
        options.add_argument(flag)
    if offline:
        options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
