"""Our own identity: made once, uploaded, our device signed by it; clients trust what it signs."""

import json
from pathlib import Path
from typing import Any

from tests.world.bot import Bot
from tests.world.proxy import Proxy, Request
from tests.world.scene import NewBot, NewCurrent, NewPerson, NewRoom

Json = dict[str, Any]


def seeds(daemon: Bot) -> Json:
    """What is kept of the identity."""
    kept: Json = json.loads((daemon.data / "matrix" / "cross-signing.json").read_text())
    return kept


def uploads(proxy: Proxy) -> list[Request]:
    """What was uploaded of identity and signatures."""
    return [*proxy.seen("POST", "keys/device_signing"), *proxy.seen("POST", "keys/signatures")]


async def test_a_strict_client_and_the_bot_read_each_other_without_a_shield(
    current: NewCurrent, bot: NewBot, room: NewRoom
) -> None:
    """X-018: from the first message."""
    ann = await current("ann", strict=True)
    daemon = await bot(ann, matrix={"encryption": "required"})
    chat = await room(ann, daemon, encrypted=True)
    await ann.send(chat, "hello")
    answer = await ann.wait_for(chat, lambda m: m.body == "echo: hello")
    assert (answer.shield, answer.failure) == (None, None)


async def test_an_identity_is_made_once_and_nothing_is_uploaded_again(
    person: NewPerson, bot: NewBot, proxy: Proxy
) -> None:
    """X-017, X-050: the token alone is enough; file and folder are ours alone."""
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    file = daemon.data / "matrix" / "cross-signing.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    made = seeds(daemon)
    assert made["user_id"] == daemon.user_id
    assert len(uploads(proxy)) == 2
    assert "auth" not in uploads(proxy)[0].json
    await daemon.restart()
    assert len(uploads(proxy)) == 2
    assert seeds(daemon) == made
    [state] = daemon.rows("SELECT state, detail FROM health WHERE part = 'identity'")
    assert state["state"] == "ok", state["detail"]
