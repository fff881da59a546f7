"""The web door: who comes in, and what everybody gets."""

from pathlib import Path

from tests.world.house import open_house
from tests.world.model import ModelServer
from tests.world.web import web_served
from wintermute.web.speaker import WebSpeaker


async def test_the_pages_are_there_for_who_is_logged_in(tmp_path: Path, model: ModelServer) -> None:
    """V-006, V-010."""
    async with (
        open_house(tmp_path, model.url) as house,
        house.working(),
        web_served(house, house.config, WebSpeaker(house.stores.outbox, house.checked)) as web,
    ):
        for path in ("/", "/wiki"):
            page = await web.get(path)
            assert page.status_code == 200
            assert "default-src 'none'" in page.headers["content-security-policy"]
