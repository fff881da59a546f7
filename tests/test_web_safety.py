"""The words of other people and of groups: on no page, in no search, in no answer of the API."""

import json
from pathlib import Path

from tests.world.furnished import furnished
from tests.world.model import ModelServer

OTHERS = "CANARY-OF-BOB"
GROUPS = "CANARY-OF-THE-GROUP"


async def test_no_page_shows_what_others_said_or_were_told(
    tmp_path: Path, model: ModelServer
) -> None:
    """V-030, V-016: their conversations are not there, whatever their address; no search finds them."""
    async with furnished(tmp_path, model) as home:
        house, bob = home.house, "@bob:test"
        for text, room, scope in (
            (OTHERS, "!bob:test", f"person:{bob}"),
            (GROUPS, "!group:test", "room:!group:test"),
        ):
            await house.incoming(
                text, room=room, sender=bob, name=OTHERS, origin="other", scope=scope, direct=False
            )
            await house.settled()
        theirs = await house.rows(
            "SELECT id, room_id FROM conversations WHERE scope <> ?", house.stores.owner.scope
        )
        assert {row["room_id"] for row in theirs} == {"!bob:test", "!group:test"}
        outbox = json.dumps(await house.rows("SELECT body FROM outbox"))
        assert OTHERS in outbox
        assert GROUPS in outbox
        asked = [home.address(route) for route in home.routes if route.method == "GET"]
        asked += [
            address
            for word in (*("CANARY", OTHERS), *(row["id"] for row in theirs))
            for address in home.asked(word)
        ]
        shown = 0
        for address in asked:
            if "/stream" in address or address.startswith("/static"):
                continue
            text = (await home.web.get(address)).text
            for word in (OTHERS, GROUPS):
                assert word in address or word not in text, address
            shown += "echo: hello" in text
        assert shown
        for row in theirs:
            for address in (
                f"/chat/{row['id']}",
                f"/api/chats/{row['id']}/messages",
                f"/api/chats/{row['id']}/stream",
            ):
                assert (await home.web.get(address)).status_code == 404, address
            given = {"key": "key_1", "text": "hello"}
            answer = await home.web.client.post(
                f"{home.web.base}/api/chats/{row['id']}/messages", json=given
            )
            assert answer.status_code in (403, 404)
