"""Take the pictures of pages that README.md and the documentation show.

    python docs/images/take.py

Needs what `make browser` needs.
"""

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import qkv

HERE = Path(__file__).parent


def main() -> None:
    model = qkv.load()
    views = {  # what to show, how much of it, and what to press first
        "play": (qkv.play(model=model), 680, None),
        "walk": (qkv.walk("The cat sat on the mat", model=model), 715, "weights"),
    }
    named = os.environ.get("QKV_CHROMIUM")
    chromium = named or shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for name, (view, height, step) in views.items():
            file = Path(folder) / f"{name}.html"
            view.to_html(file)
            width = 1280 if name == "play" else 1040
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto(file.as_uri())
            if name == "play":
                page.wait_for_selector("html[data-qkv=ready]")
            page.wait_for_timeout(500)
            if step is not None:
                page.locator("button", has_text=step).first.click()
                page.mouse.move(1, 1)
            path = HERE / f"{name}.png"
            page.screenshot(path=path)
            print(path.name, f"{path.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
