"""A room is upgraded, as a client of today does it: a new room, a tombstone, everybody asked in."""

from collections.abc import Iterable
from urllib.parse import quote

from tests.world.person import Person
from tests.world.user import CLIENT, Json

ENCRYPTION = {"algorithm": "m.megolm.v1.aes-sha2"}


def room_path(room: str, *parts: str) -> str:
    """Where a room's things are."""
    return "/".join([f"{CLIENT}/rooms", *(quote(part, safe="") for part in (room, *parts))])


async def upgrade(host: Person, room: str, *, invite: Iterable[str] = ()) -> str:
    """The homeserver's own upgrade; clients ask the members in afterwards. The new room."""
    status, answer = await host.api("POST", room_path(room, "upgrade"), {"new_version": "11"})
    assert status == 200, answer
    new = str(answer["replacement_room"])
    for user in invite:
        await host.invite(new, user)
    return new


async def bury(host: Person, room: str, successor: object) -> None:
    """A tombstone, whatever it says."""
    content = {"body": "gone", "replacement_room": successor}
    await put_state(host, room, "m.room.tombstone", content)


async def put_state(host: Person, room: str, kind: str, content: Json) -> None:
    """Any state of a room."""
    status, answer = await host.api("PUT", room_path(room, "state", kind, ""), content)
    assert status == 200, answer


async def follower(
    host: Person, room: str, invite: Iterable[str] = (), *, encrypted: bool = False
) -> str:
    """A room that claims to follow another; anybody can make one."""
    state = [{"type": "m.room.encryption", "state_key": "", "content": ENCRYPTION}]
    made = {
        "creation_content": {"predecessor": {"room_id": room, "event_id": "$gone"}},
        "preset": "private_chat",
        "invite": list(invite),
        "initial_state": state if encrypted else [],
        "room_version": "11",
    }
    status, answer = await host.api("POST", f"{CLIENT}/createRoom", made)
    assert status == 200, answer
    return str(answer["room_id"])
