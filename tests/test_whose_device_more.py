"""Many messages that wait, rooms that were left, people who are no longer asked, and odd names."""

import json
import sqlite3  # noqa: TID251  a look from outside, with another library than the daemon's
from datetime import UTC, datetime, timedelta

import pytest

from tests.world.chats import echoed_each, inbox_states, notices
from tests.world.clock import until
from tests.world.homeserver import Homeserver
from tests.world.identities import identity_notice, trust
from tests.world.scene import Scene
from tests.world.user import CLIENT
from wintermute.clock import stamp
from wintermute.matrix.people import People, Person
from wintermute.matrix.trust import harmless_id


@pytest.mark.slow
async def test_of_very_many_messages_that_waited_each_is_answered_in_order(scene: Scene) -> None:
    """X-034: more than are read at once."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=True)
    phone = await scene.current(ann, identity=False)
    texts = [f"message {n}" for n in range(230)]
    for text in texts:
        await phone.send(chat, text)
    await until(lambda: inbox_states(daemon).count("untrusted") == len(texts))
    await ann.share_identity(phone)
    said = await ann.wait_for_count(chat, daemon.user_id, len(texts) + 1)
    assert [m.body for m in said if m.body.startswith("echo")] == [f"echo: {t}" for t in texts]


@pytest.mark.slow
async def test_what_nobody_vouched_for_is_given_up_after_a_week(scene: Scene) -> None:
    """Issue 13: bounded in days; what is younger waits on."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=True)
    phone = await scene.current(ann, identity=False)
    for text in ("old", "young"):
        await phone.send(chat, text)
    await until(lambda: inbox_states(daemon).count("untrusted") == 2)
    assert await daemon.stop() == 0
    week = stamp(datetime.now(UTC) - timedelta(days=7, hours=1))  # noqa: TID251  the daemon asks it too
    with sqlite3.connect(daemon.data / "wintermute.db") as database:
        database.execute("UPDATE inbox SET received_at = ? WHERE seq = 1", (week,))
    await daemon.start()
    await until(lambda: inbox_states(daemon) == ["ignored", "untrusted"])
    await ann.share_identity(phone)
    await ann.wait_for(chat, lambda m: m.body == "echo: young")
    assert not [m for m in ann.messages(chat, daemon.user_id) if m.body == "echo: old"]


@pytest.mark.slow
async def test_the_notice_goes_where_the_bot_still_is(scene: Scene, homeserver: Homeserver) -> None:
    """X-035: not into a direct chat that it has left."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann)
    left, chat = [await scene.room(ann, daemon, encrypted=True) for _ in range(2)]
    await echoed_each(ann, left, "one")
    await echoed_each(ann, chat, "two")
    token = json.loads((daemon.data / "matrix" / "session.json").read_text())["access_token"]
    homeserver.request("POST", f"{CLIENT}/rooms/{left}/leave", {}, token=token)
    await until(lambda: len(daemon.rows("SELECT 1 FROM rooms WHERE state = 'left'")) == 1)
    await ann.make_identity(anew=True)
    await identity_notice(ann, chat)
    await trust(daemon, ann.user_id)
    await echoed_each(ann, chat, "three")


@pytest.mark.slow
async def test_who_is_no_longer_allowed_holds_up_nobody(scene: Scene) -> None:
    """X-035: their changed identity is nobody's concern any more."""
    ann, ben = await scene.person("ann"), await scene.current("ben")
    daemon = await scene.bot(
        ann, matrix={"allowed_users": [ben.user_id], "mention_in_groups": False}
    )
    club = await scene.room(ann, daemon, ben, encrypted=True)
    await ann.send(club, "one")
    await ann.wait_for(club, lambda m: m.sender == daemon.user_id)
    await ben.make_identity(anew=True)
    await until(lambda: len(notices(daemon, "new cryptographic identity")) == 1)
    await ann.send(club, "two")
    await until(lambda: len(daemon.rows("SELECT 1 FROM outbox WHERE state = 'waiting'")) == 1)
    settings = json.loads(daemon.config.read_text())
    settings["matrix"]["allowed_users"] = []
    daemon.config.write_text(json.dumps(settings))
    await daemon.restart()
    await ann.wait_for(club, lambda m: m.sender == daemon.user_id and m.body.endswith("two"))


def test_only_the_allowed_are_taken_from_what_was_kept() -> None:
    people = People({"@ann:test"})
    people.restore([Person("@ben:test", "old", "new")], ())
    assert not people.is_changed("@ben:test")
    assert people.changed() == []


@pytest.mark.parametrize(
    ("device", "shown"),
    [
        ("ABCDEFGH", "ABCDEFGH"),
        ("a_b-c.d=", "a_b-c.d="),
        ("x`[verify-here](https://evil.example)`x", "?"),
        ("<b>", "?"),
        ("two words", "?"),
        ("", "?"),
        ("x" * 300, "?"),
    ],
)
def test_the_name_of_a_session_cannot_write_in_our_notice(device: str, shown: str) -> None:
    """Whoever makes a session chooses its id."""
    assert harmless_id(device, "?") == shown


@pytest.mark.slow
async def test_the_owner_hears_of_somebody_elses_new_identity(scene: Scene) -> None:
    """X-035: who can act on it is told too, once, in a chat of their own."""
    ann, ben = await scene.person("ann"), await scene.current("ben")
    daemon = await scene.bot(ann, matrix={"allowed_users": [ben.user_id]})
    mine, bens = await scene.room(ann, daemon), await scene.room(ben, daemon, encrypted=True)
    await echoed_each(ben, bens, "one")
    await ben.make_identity(anew=True)
    await identity_notice(ben, bens)
    notice = await ann.wait_for(mine, lambda m: "new cryptographic identity" in m.body)
    assert f"matrix trust {ben.user_id}" in notice.body
    await echoed_each(ann, mine, "two")
    assert len(notices(daemon, "new cryptographic identity")) == 2


@pytest.mark.slow
async def test_a_broken_identity_is_told_again_when_it_was_in_order_between(scene: Scene) -> None:
    """X-017: somebody with the bot's password makes another identity, twice."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon)
    await echoed_each(ann, chat, "one")
    for count in (1, 2):
        await scene.current(daemon)
        await until(lambda count=count: len(notices(daemon, "identity has a problem")) == count)  # type: ignore[misc]  # mypy sees no default
        assert await daemon.stop() == 0
        code, words = await daemon.command("matrix", "reset-crypto", "--identity")
        assert code == 0, words
        await daemon.start()


async def test_a_new_identity_is_noticed_where_nothing_is_encrypted(scene: Scene) -> None:
    """X-035: in a plain room too, while the daemon runs."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon)
    await echoed_each(ann, chat, "one")
    await ann.make_identity(anew=True)
    await identity_notice(ann, chat)
    await ann.send(chat, "two")
    await until(lambda: inbox_states(daemon).count("untrusted") == 1)
    await trust(daemon, ann.user_id)
    await ann.wait_for(chat, lambda m: m.body == "echo: two")
