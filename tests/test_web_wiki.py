"""Reading the wiki in the browser."""

from pathlib import Path

from tests.world.house import open_house
from tests.world.model import ModelServer
from tests.world.web import web_served
from tests.world.wiki import made, page
from wintermute.web.speaker import WebSpeaker


async def test_reading(tmp_path: Path, model: ModelServer) -> None:
    """V-021."""
    async with (
        open_house(tmp_path, model.url) as house,
        house.working(),
        web_served(house, house.config, WebSpeaker()) as web,
    ):
        print((await web.get("/wiki")).text)
        made(
            web.parts.stores.wiki.root,
            {
                "semantic/Garden.md": page("# Garden\n\n[[Pond]] [[Nix]] [[Trip]] <b>"),
                "semantic/Pond.md": page("# Pond\n\n[[Garden|the garden]]"),
                "semantic/Trip.md": page("x"),
                "episodic/Trip.md": page("y"),
            },
        )
        for path in (
            "/wiki",
            "/wiki/semantic/Garden",
            "/wiki/Garden",
            "/wiki/Nix",
            "/wiki/Trip",
            "/wiki-search?q=garden",
            "/wiki-problems?kind=orphan",
            "/wiki-pages",
            "/api/memory/read?title=Garden",
            "/wiki/%00",
            "/wiki/../../x",
            "/wiki//etc",
            "/wiki-history?path=semantic/Garden.md",
            "/wiki-history?path=semantic/Garden.md&change=x",
        ):
            got = await web.get(path)
            print("=====", path, got.status_code, got.headers.get("location"))
            print(got.text)
