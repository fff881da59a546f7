"""Whose device speaks: only what somebody's identity signed speaks for them, however many messages wait."""

import json
import sqlite3  # noqa: TID251  a look from outside, with another library than the daemon's
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.world.bot import Bot, said
from tests.world.chats import echoed_each, inbox_states, notices, send_in_clear
from tests.world.clock import until
from tests.world.current import CurrentClient
from tests.world.homeserver import Homeserver
from tests.world.identities import identity_notice, trust
from tests.world.model import Calls, Text, Use
from tests.world.proxy import Action, Answer, Request, pass_after
from tests.world.scene import Scene
from tests.world.user import CLIENT
from wintermute.clock import stamp
from wintermute.matrix.people import People, Person
from wintermute.matrix.trust import harmless_id

Json = dict[str, Any]
ACCEPT: Json = {"unsigned_devices": "accept"}


async def echoes(watcher: CurrentClient, room: str, daemon: Bot) -> list[str]:
    return [m for m in await said(watcher, room, daemon.user_id) if m.startswith("echo: ")]


@pytest.mark.slow
async def test_an_unsigned_device_is_answered_once_its_owner_has_signed_it(scene: Scene) -> None:
    """X-034: told once; a restart in between; then in order, each once."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann)
    plain, chat = await scene.room(ann, daemon), await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "one")
    phone = await scene.current(ann, identity=False)
    named = {"display_name": "Ann's `@room` phone"}
    assert (await phone.api("PUT", f"{CLIENT}/devices/{phone.device_id}", named))[0] == 200
    for text in ("two", "three"):
        await phone.send(chat, text)
    await ann.wait_for(chat, lambda m: phone.device_id in m.body and m.sender == daemon.user_id)
    await echoed_each(ann, chat, "four")
    assert inbox_states(daemon).count("untrusted") == 2
    await daemon.restart()
    await echoed_each(ann, chat, "five")
    await phone.edit(chat, await phone.send(chat, "sicks"), "six")
    await echoed_each(ann, plain, "noted")
    assert inbox_states(daemon).count("untrusted") == 4
    [told] = notices(daemon, phone.device_id)
    assert f"session `Ann's room phone` `{phone.device_id}`, because" in told

    await ann.share_identity(phone)
    await ann.wait_for(chat, lambda m: m.body == "echo: six")
    await echoed_each(phone, chat, "seven")
    assert inbox_states(daemon).count("untrusted") == 0
    assert await echoes(ann, chat, daemon) == [
        f"echo: {word}" for word in ("one", "four", "five", "two", "three", "six", "seven")
    ]


@pytest.mark.slow
async def test_an_accepted_unsigned_device_has_the_rights_of_another(scene: Scene) -> None:
    """X-034: commands, tools, what runs by itself, and what comes in clear as well."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True, matrix=ACCEPT)
    await echoed_each(ann, chat, "one")
    phone = await scene.current(ann, identity=False)
    await echoed_each(phone, chat, "two")
    await send_in_clear(ann, chat, "three")
    await ann.wait_for(chat, lambda m: m.body == "echo: three")
    casts = daemon.rows("SELECT origin FROM casts WHERE event_id LIKE '$%' ORDER BY seq")
    assert [cast["origin"] for cast in casts] == ["owner", "other", "other"]
    assert not notices(daemon, "verified")

    for speaker, details in ((phone, False), (ann, True)):
        await speaker.send(chat, "/status all")
        shown = await speaker.wait_for(
            chat, lambda m: "**homeserver**" in m.body and m.sender == daemon.user_id
        )
        assert ("in sync" in shown.body) == details, shown.body
        await ann.redact(chat, shown.event_id)
        await speaker.until(lambda: "m.room.redaction" in [e.type for e in ann.events(chat)])
        ann._events[chat].pop(shown.event_id, None)

    teach = {"skill_name": "tea", "summary": "how", "documentation": "boil"}
    plan = {"action": "add", "content": "x", "schedule_type": "once", "at": "tomorrow 09:00"}
    plan |= {"execution_mode": "autonomous_silent", "ai_prompt": "do it"}
    for speaker, word, allowed in ((phone, "refused", False), (ann, "allowed", True)):
        scene.model.script(Calls((Use("add_skill", teach), Use("task", plan))), Text(word))
        await speaker.send(chat, "please")
        await speaker.wait_for(chat, lambda m, word=word: m.body == word)  # type: ignore[misc]  # mypy sees no default
        results = [m for m in scene.model.requests[-1].messages if m["role"] == "tool"][-2:]
        assert ["error" not in m["content"][:5] for m in results] == [allowed] * 2, results


@pytest.mark.slow
async def test_what_comes_in_clear_in_an_encrypted_room_is_nobodys(scene: Scene) -> None:
    """X-034: whoever runs the homeserver could have written it; with `preferred` too."""
    ann, ben = await scene.current("ann"), await scene.current("ben", identity=False)
    allowed = {"allowed_users": [ben.user_id]}
    daemon = await scene.bot(ann, matrix=allowed)
    chat = await scene.room(ann, daemon, encrypted=True)
    bens = await scene.room(ben, daemon, encrypted=True)
    for text in ("one", "two"):
        await send_in_clear(ann, chat, text)
    await ann.wait_for(chat, lambda m: "not encrypted" in m.body)
    await send_in_clear(ben, bens, "three")
    await ben.wait_for(bens, lambda m: m.body == "echo: three")
    await echoed_each(ann, chat, "four")
    group = await scene.room(ann, daemon, ben, encrypted=True)
    await send_in_clear(ann, group, "overheard")
    await send_in_clear(ben, group, "heard")
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}
    await ann.send(group, "five", **us)
    await ann.wait_for(group, lambda m: m.sender == daemon.user_id)
    assert "heard" in str(scene.model.requests[-1].messages)
    assert "overheard" not in str(scene.model.requests[-1].messages)
    assert len(scene.model.requests) == 3
    assert len(notices(daemon, "not encrypted")) == 1


@pytest.mark.slow
async def test_who_makes_an_identity_later_has_unsigned_devices_until_then_signed(
    scene: Scene,
) -> None:
    """X-034: a person without cross-signing is answered as before."""
    ben = await scene.person("ben")
    daemon = await scene.bot(ben)
    chat = await scene.room(ben, daemon, encrypted=True)
    await echoed_each(ben, chat, "one")
    laptop = await scene.current(ben)
    await echoed_each(laptop, chat, "two")
    await ben.send(chat, "three")
    await laptop.wait_for(chat, lambda m: ben.login.device_id in m.body)
    await laptop.crypto("crossSignDevice", ben.login.device_id)
    await laptop.wait_for(chat, lambda m: m.body == "echo: three")
    await echoed_each(ben, chat, "four")


@pytest.mark.slow
async def test_a_new_device_without_any_identity_is_answered_at_once(scene: Scene) -> None:
    """X-049: its keys are asked for after its message has come; that is no reason for a notice."""
    ben = await scene.person("ben")
    daemon = await scene.bot(ben, via=scene.proxy.url)
    chat = await scene.room(ben, daemon, encrypted=True)
    await echoed_each(ben, chat, "one")
    scene.proxy.after = without_device_lists
    phone = await scene.current(ben, identity=False)
    await echoed_each(phone, chat, "two")
    assert not notices(daemon, "decrypt")


def without_device_lists(request: Request, status: int, body: bytes) -> Action:
    """The homeserver forgets to say that somebody has a new device."""
    if not request.path.endswith("/sync"):
        return None
    answer = json.loads(body)
    answer.pop("device_lists", None)
    return Answer(status, answer)


@pytest.mark.slow
async def test_a_device_that_signed_out_is_answered_for_what_it_sent(scene: Scene) -> None:
    """X-034: a signature once seen stays, over a restart."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
    phone = await scene.current(ann)
    await echoed_each(phone, chat, "one")
    assert await daemon.stop() == 0
    await phone.send(chat, "two")
    assert (await phone.api("POST", f"{CLIENT}/logout", {}))[0] == 200
    await daemon.start()
    await ann.wait_for(chat, lambda m: m.body == "echo: two")
    await daemon.restart()
    await echoed_each(ann, chat, "three")
    assert await echoes(ann, chat, daemon) == ["echo: one", "echo: two", "echo: three"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["missing", "failed"])
async def test_who_is_not_in_an_answer_stays_as_they_were(scene: Scene, how: str) -> None:
    """X-034: over a restart too."""
    ann, daemon, chat = await scene.met(
        await scene.current("ann"), encrypted=True, via=scene.proxy.url
    )
    phone = await scene.current(ann, identity=False)
    await echoed_each(ann, chat, "one")
    await phone.send(chat, "two")
    await ann.wait_for(chat, lambda m: phone.device_id in m.body)

    def away(request: Request, status: int, body: bytes) -> Action:
        if not request.path.endswith("/keys/query"):
            return None
        answer = json.loads(body)
        if how == "failed":
            server = ann.user_id.partition(":")[2]
            answer["failures"] = {server: {}}
        else:
            for part in answer.values():
                part.pop(ann.user_id, None)
        return Answer(status, answer)

    scene.proxy.after = away
    await ann.share_identity(phone)
    await daemon.restart()
    await echoed_each(ann, chat, "three")
    await phone.send(chat, "four")
    await echoed_each(ann, chat, "five")
    assert inbox_states(daemon).count("untrusted") == 2
    scene.proxy.after = pass_after
    await daemon.restart()
    await ann.wait_for(chat, lambda m: m.body == "echo: four")
    assert (await echoes(ann, chat, daemon))[-2:] == ["echo: two", "echo: four"]


@pytest.mark.slow
async def test_of_very_many_messages_that_waited_each_is_answered_in_order(scene: Scene) -> None:
    """X-034: more than are read at once."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
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
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
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
    ann, daemon, chat = await scene.met(await scene.current("ann"))
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
    ann, daemon, chat = await scene.met(await scene.current("ann"))
    await echoed_each(ann, chat, "one")
    await ann.make_identity(anew=True)
    await identity_notice(ann, chat)
    await ann.send(chat, "two")
    await until(lambda: inbox_states(daemon).count("untrusted") == 1)
    await trust(daemon, ann.user_id)
    await ann.wait_for(chat, lambda m: m.body == "echo: two")
