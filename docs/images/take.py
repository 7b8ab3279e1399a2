"""Take the pictures of pages that README.md and the documentation show.

    python docs/images/take.py

This script needs the same programs as `make browser`.
"""

import base64
import io
import os
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import qkv

HERE = Path(__file__).parent
RESTS, STEPS, STEP = 1800, range(0, 401, 50), 50  # the times in play.gif, in milliseconds
# Pause the animations that run once after a click, and set them to a time in milliseconds.
HELD = """(at) => {
  const all = document.querySelector(".qkv-view").shadowRoot.getAnimations();
  const moving = all.filter((one) => one.effect.getTiming().iterations === 1);
  for (const one of moving) { one.pause(); one.currentTime = Math.min(at, 399); }
  return moving.length;
}"""


def press_in_motion(page: Page) -> None:
    """Write play.gif: on the first screen, a word is masked, then shown again."""
    frames, lasts = [], []

    def take(milliseconds: int) -> None:
        frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        lasts.append(milliseconds)

    for _ in range(2):
        take(RESTS)
        page.evaluate(
            """() => {
              const view = document.querySelector(".qkv-view").shadowRoot;
              view.querySelector("[data-qkv-first]").click();
            }"""
        )
        while not page.evaluate(HELD, 0):
            page.wait_for_timeout(5)
        for at in STEPS:
            page.evaluate(HELD, at)
            take(STEP)
        page.evaluate(
            """() => document.querySelector(".qkv-view").shadowRoot.getAnimations()
              .filter((one) => one.effect.getTiming().iterations === 1)
              .forEach((one) => one.finish())"""
        )
    path = HERE / "play.gif"
    small = [frame.resize((960, frame.height * 960 // frame.width)) for frame in frames]
    colours = small[len(small) // 2].quantize(64)
    first, *others = [frame.quantize(palette=colours) for frame in small]
    first.save(path, save_all=True, append_images=others, duration=lasts, loop=0, optimize=True)
    print(path.name, f"{path.stat().st_size:,} bytes")


def share(page: Page) -> None:
    """Write card.png, the card of the first screen with a masked word, for links to the site."""
    page.locator("[data-qkv-first]").click()
    page.get_by_role("button", name="Share", exact=True).click()
    page.wait_for_selector("html[data-qkv=ready]")
    url: str = page.locator(".share .card").evaluate("(card) => card.toDataURL()")
    path = HERE / "card.png"
    card = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")
    card.quantize(64).save(path, optimize=True)
    print(path.name, f"{path.stat().st_size:,} bytes")


def main() -> None:
    model = qkv.load()
    views = {  # the view, the height of the picture, and the button to click first
        "play": (qkv.play(), 560, None),
        "walk": (qkv.walk(f"She drank a glass of {model.mask}.", model=model), 715, "weights"),
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
            if name == "play":
                press_in_motion(page)
                share(page)
                continue
            path = HERE / f"{name}.png"
            page.screenshot(path=path)
            print(path.name, f"{path.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
