"""Jobs and proposals in the browser: what was done to pages while nobody watched, and a yes or a no."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import httpx2

from tests.test_consolidation import CARP, POND
from tests.test_consolidation_chats import Pages, consolidate
from tests.test_harvest import say
from tests.world.house import PROMPTS
from tests.world.model import ModelServer, Text
from tests.world.shelf import GARDEN, Json, Shelf
from tests.world.tidied import Tidied, open_nights
from tests.world.web import Served, web_served
from wintermute.web.speaker import WebSpeaker
from wintermute.wiki.page_jobs import WikiJob, begin, note

VALUE = re.compile(r'data-value="([^"]*)"')
LESS = CARP.replace("carp", "<script>koi</script>")


@dataclass(frozen=True)
class Asked:
    """A house of which a page would lose a line that its owner wrote."""

    night: Tidied
    shelf: Shelf
    web: Served

    async def answers(self) -> list[Json]:
        """What the buttons of the page of proposals say: a yes and a no for each."""
        page = await self.web.get("/proposals")
        assert page.status_code == 200
        assert "<script>koi" not in page.text
        import json

        return [json.loads(unescape(unescape(each))) for each in VALUE.findall(page.text)]

    async def answer(self, given: Json) -> httpx2.Response:
        return await self.web.client.post(f"{self.web.base}/api/wiki/answer", json=given)
