"""Pages that a model recalls, by a tag or by a gate, and what a recall gives it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.world.house import House, open_house
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.pages import FilePages

Form = Literal["tag", "gate"]
FORMS: tuple[Form, ...] = ("tag", "gate")
EACH = pytest.mark.parametrize("form", FORMS)
TOLD = re.compile(r"<memory name=.*?\n</memory>|<cathedral>.*?</cathedral>", re.DOTALL)


def twice(title: str) -> str:
    """Return the answer to a second recall of a page."""
    return (
        f"<cathedral>The page '{title}' was already given in this turn. Answer without recalling it"
        " again.</cathedral>"
    )


def memory_block(title: str, text: str) -> str:
    """Return a recalled page as a request shows it."""
    return f'<memory name="{title}">\n{text}\n</memory>'


def recall(form: Form, *titles: str, said: str = "") -> Step:
    """An answer that asks for these pages."""
    if form == "gate":
        return Calls(tuple(Use("recall", {"title": title}) for title in titles), said)
    return Text("\n".join(filter(None, [said, *(f"<recall>{t}</recall>" for t in titles)])))


def recalled(seen: Seen, form: Form) -> list[str]:
    """What the recalls in a request gave, one by one."""
    if form == "gate":
        given = [each["content"] for each in seen.messages if each["role"] == "tool"]
        return [text.removeprefix("error: ") for text in given]
    given = [each["content"] for each in seen.messages if each["role"] == "user"]
    return [one for text in given if TOLD.match(text) for one in TOLD.findall(text)]


def tools_of(seen: Seen) -> set[str]:
    """List the tools that a request offers."""
    return {tool["function"]["name"] for tool in seen.body.get("tools", ())}


@asynccontextmanager
async def wiki_house(
    folder: Path, model: ModelServer, pages: FilePages | None = None, **more: Any
) -> AsyncIterator[House]:
    """A house at work whose owner has pages."""
    pages = pages or FilePages(folder / "wiki")
    opened = open_house(folder, model.url, pages=pages, **more)
    async with opened as house, house.working():
        yield house


async def tell_pages(house: House, *texts: str) -> None:
    """Say these one right after the other."""
    for text in texts:
        await house.say(text)
