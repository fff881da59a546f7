"""How often a person's client rings for what we say, on a homeserver that counts (F-028)."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.world.chats import LATER
from tests.world.current import CurrentClient
from tests.world.duties import in_, once, promise, signs
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer
from tests.world.scene import NewBot, NewCurrent, NewName, NewRoom, Scene
from tests.world.user import CLIENT
from tests.world.warm import Interpreter
from wintermute.tasks.tasks import REMINDER_REACTIONS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def counting(blank: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homeserver]:
    """A Synapse that counts what is unread, as all do but those of other tests."""
    overrides = {"push": {"enabled": True}}
    with Homeserver(tmp_path_factory.mktemp("counting"), overrides, database=blank) as server:
        yield server


@pytest.fixture
async def scene(
    counting: Homeserver, python: Interpreter, fresh: NewName, model: ModelServer, tmp_path: Path
) -> AsyncIterator[Scene]:
    """People, bots and rooms there."""
    async with Scene(counting, python, fresh, tmp_path, model.url) as opened:
        yield opened


async def unread(person: CurrentClient, chat: str) -> int:
    """How many unread messages the homeserver counts for a person in a room."""
    status, answer = await person.api("GET", f"{CLIENT}/sync?timeout=0")
    assert status == 200, answer
    count = answer["rooms"]["join"][chat]["unread_notifications"]["notification_count"]
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_a_reminder_rings_once_however_many_signs_are_under_it(
    current: NewCurrent, bot: NewBot, room: NewRoom, encrypted: bool
) -> None:
    """F-028: by the homeserver's count and the client's own rules; the signs say nothing else."""
    ann = await current("ann", strict=True)
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=encrypted)
    await ann.send(chat, "hello")
    hello = await ann.wait_for(chat, lambda message: message.body == "echo: hello")
    before = await unread(ann, chat)
    await promise(daemon, ann.user_id, chat, {"tea": once(in_(LATER))})
    daemon.pass_time(LATER)
    reminder = await ann.wait_for(chat, lambda message: "tea" in message.body)
    await ann.until(lambda: signs(ann, chat) == {reminder.event_id: Counter([*REMINDER_REACTIONS])})
    assert await ann.rings(chat) == [hello.event_id, reminder.event_id]
    assert await unread(ann, chat) == before + 1
    reactions = [event for event in ann.events(chat) if event.type == "m.reaction"]
    assert {event.sender for event in reactions} == {daemon.user_id}
    assert not any(event.encrypted for event in reactions)
    assert {frozenset(event.content) for event in reactions} == {frozenset({"m.relates_to"})}
    relations = [frozenset(event.content["m.relates_to"]) for event in reactions]
    assert set(relations) == {frozenset({"rel_type", "event_id", "key"})}
