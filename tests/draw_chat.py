"""Draws docs/chat.png, the README's picture, from a demo that is really held: `python -m tests.draw_chat`."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from wintermute.markdown import html

PICTURE = Path(__file__).parent.parent / "docs" / "chat.png"
LINES = """\
remember that my sister Anna lives in Lyon and is allergic to nuts
remind me every friday at 18:30 to buy flowers
add milk to my shopping list
what's on my list?
milk is done
what should I know about Anna?
"""
PAGE = """<!doctype html><meta charset=utf-8><style>
body {{ margin: 0; width: 760px; font: 15px/1.45 "DejaVu Sans", sans-serif; background: #fff; color: #1d2733 }}
header {{ padding: 12px 20px; border-bottom: 1px solid #d8dee6; font-weight: bold }}
header span {{ float: right; color: #2f7d4f; font-weight: normal; font-size: 13px }}
main {{ display: flex; flex-direction: column; gap: 8px; padding: 16px 20px }}
div {{ max-width: 600px; padding: 7px 12px; border-radius: 10px; background: #eef1f5 }}
div.you {{ align-self: flex-end; background: #d9ebe0 }}
div:not(.you) {{ align-self: flex-start }}
p, ul {{ margin: 0; padding-left: 0 }} ul {{ padding-left: 20px }} a {{ color: #2d5f93 }}
</style><header>Wintermute <span>end-to-end encrypted</span></header><main>{messages}</main>"""


def held() -> list[tuple[str, str]]:
    """Lines and speakers of a demo of these lines, without the greeting."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "lines")
        script.write_text(LINES)
        options = ("--practice", "--script", str(script))
        command = (sys.executable, "-m", "wintermute", "demo", *options)
        shown = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    said = re.split(r"^(you|wintermute)> *", shown, flags=re.MULTILINE)[1:]
    pairs = zip(said[::2], said[1::2], strict=True)
    return [pair for pair in pairs if "Type `help`" not in pair[1]]


def draw() -> None:
    """Write the picture anew."""
    messages = "".join(f'<div class="{who}">{html(text.strip())}</div>' for who, text in held())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium")
        page = browser.new_page(viewport={"width": 760, "height": 100}, device_scale_factor=1.25)
        page.set_content(PAGE.format(messages=messages))
        page.screenshot(path=PICTURE, full_page=True)
        browser.close()


if __name__ == "__main__":
    draw()
