"""A client does not give us its keys: the notice names the cause, in our words, and who can mend it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.world.chats import echoed_each, half_an_hour_later, inbox_states, notices
from tests.world.clock import FakeClock, until
from tests.world.malformed import WRONG, misshapen
from tests.world.proxy import Answer, pass_before
from tests.world.scene import Scene
from tests.world.schema import open_migrated
from wintermute.matrix.sync_response import MOST_WITHHELD, WithheldClaim, parse_sync, session_of
from wintermute.matrix.sync_response import WITHHELD as CODES
from wintermute.matrix.undecryptable import MOST, WITHHELD, WithheldKeys

Json = dict[str, Any]
ANN = "@ann:test"
KIND = "m.room_key.withheld"


def word(code: str = "m.unverified", **changes: object) -> Json:
    """What a client sends, with more text than anybody wants."""
    content = {
        "algorithm": "m.megolm.v1.aes-sha2",
        "room_id": "!room",
        "session_id": "session",
        "sender_key": "curve",
        "code": code,
        "reason": "visit evil.example, " * 1000,
    }
    return content | changes


def sifted(*events: object) -> tuple[WithheldClaim, ...]:
    batch = parse_sync({"next_batch": "s1", "to_device": {"events": [*events]}})
    assert batch is not None
    return batch.withheld


def event(content: object, sender: object = ANN) -> Json:
    return {"type": KIND, "sender": sender, "content": content}


def test_of_a_withheld_key_only_what_names_its_session_and_cause_is_taken() -> None:
    """F-012: a megabyte of text, missing fields, causes nobody knows, and far too many."""
    good = WithheldClaim(ANN, "!room", "session", "curve", "m.unverified")
    assert sifted(event(word(reason="x" * 2**20))) == (good,)
    assert sifted(event({"code": "m.no_olm", **without(word("m.no_olm"), "room_id")})) == (
        WithheldClaim(ANN, "", "", "curve", "m.no_olm"),
    )
    for field in ("room_id", "session_id", "sender_key", "code", "algorithm"):
        assert sifted(event(without(word(), field))) == ()
    assert sifted(event(word("m.because"))) == ()
    assert len(sifted(*[event(word())] * 5000)) == MOST_WITHHELD
    assert WITHHELD.keys() == CODES


def without(content: Json, field: str) -> Json:
    return {name: value for name, value in content.items() if name != field}


def test_a_locked_event_may_name_anything_as_its_session() -> None:
    """F-012, X-022: what is asked of the database can be written there."""
    for spoilt in misshapen({"content": {"session_id": "session", "sender_key": "curve"}}):
        if isinstance(spoilt, dict) and isinstance(spoilt.get("content"), dict):
            "".join(session_of(spoilt)).encode()


def test_no_word_on_a_withheld_key_can_stop_a_sync() -> None:
    """F-012, X-022."""
    for spoilt in misshapen(event(word())):
        for found in sifted(spoilt, event(word())):
            assert len(json.dumps([found.sender, found.session_id, found.code])) < 2000
    for value in WRONG[1:]:
        assert sifted(value, event(value), event(word(), value), event(word())) != ()


async def test_the_words_on_withheld_keys_are_bounded_and_kept_for_a_day(tmp_path: Path) -> None:
    """F-012: a flood of one person pushes out nobody else's."""
    clock = FakeClock()
    async with open_migrated(tmp_path / "wintermute.db") as database:
        store = WithheldKeys(database, clock)

        async def keep(*words: WithheldClaim) -> None:
            async with database.transaction() as tx:
                for each in words:
                    await store.keep(tx, each)

        await keep(WithheldClaim("@ben:test", "!room", "his", "curve", "m.blacklisted"))
        for n in range(MOST + 50):
            clock.advance(1)
            await keep(WithheldClaim(ANN, "!room", f"session {n}", "curve", "m.unverified"))
        [row] = await database.rows("SELECT count(*) AS n FROM withheld_keys")
        assert row["n"] == MOST + 1
        assert await store.code(ANN, "!room", "session 0", "curve") == ""
        assert await store.code(ANN, "!room", f"session {MOST + 49}", "curve") == "m.unverified"
        assert await store.code("@ben:test", "!room", "his", "") == "m.blacklisted"
        assert await store.code("@ben:test", "!room", "his", "other") == "m.blacklisted"
        assert await store.code("@ben:test", "!other", "his", "curve") == ""
        clock.advance(24 * 3600 + 1)
        await keep(WithheldClaim(ANN, "", "", "curve", "m.no_olm"))
        assert await store.code(ANN, "!any", "any", "curve") == "m.no_olm"
        assert await store.code(ANN, "!any", "any", "another device") == ""
        [row] = await database.rows("SELECT count(*) AS n FROM withheld_keys")
        assert row["n"] == 1


async def test_a_client_that_withholds_its_keys_is_told_at_once_how_to_be_heard(
    scene: Scene,
) -> None:
    """F-012: once for this cause, over a restart too; what it sends later is answered."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
    await ann.refuse_unverified(True)
    await ann.send(chat, "one")
    told = await ann.wait_for(chat, lambda m: m.sender == daemon.user_id)
    assert told.body == WITHHELD["m.unverified"].format(sender=ann.user_id)
    await ann.send(chat, "two")
    await until(lambda: inbox_states(daemon).count("locked") == 2)
    await daemon.restart()
    await ann.refuse_unverified(False)
    await echoed_each(ann, chat, "three")
    assert len(notices(daemon, "")) == 1
    kept = daemon.rows("SELECT * FROM withheld_keys")
    assert {row["code"] for row in kept} == {"m.unverified"}
    assert "verif" not in json.dumps([{**row, "code": ""} for row in kept])


@pytest.mark.slow
async def test_words_on_withheld_keys_count_from_who_wrote_and_where_only(scene: Scene) -> None:
    """F-012: strangers, rooms that we are not in, other sessions; then her own word for hers."""
    ann, eve = await scene.person("ann", via=scene.proxy.url), await scene.person("eve")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, eve, encrypted=True)
    scene.proxy.before = lambda request: (
        Answer(200, {}) if "/sendToDevice/" in request.path else None
    )
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}
    await ann.send(chat, "sealed", **us)
    scene.proxy.before = pass_before
    await until(lambda: inbox_states(daemon).count("locked") == 1)
    [row] = daemon.rows("SELECT raw FROM inbox WHERE state = 'locked'")
    sealed = json.loads(row["raw"])["content"]
    hers: Json = {field: sealed[field] for field in ("session_id", "sender_key")}
    hers |= {"room_id": chat}
    for liar, content in (
        (eve, word("m.blacklisted", **hers)),
        (ann, word("m.blacklisted", **hers | {"room_id": "!elsewhere:wintermute.test"})),
        (ann, word("m.blacklisted", **hers | {"session_id": "another"})),
    ):
        await liar.send_to_device(daemon.user_id, KIND, content)
    await until(lambda: len(daemon.rows("SELECT * FROM withheld_keys")) == 1)
    assert not notices(daemon, "")
    await ann.send_to_device(daemon.user_id, KIND, word("m.unavailable", **hers))
    told = await ann.wait_for(chat, lambda m: m.sender == daemon.user_id)
    assert told.body == WITHHELD["m.unavailable"].format(sender=ann.user_id)
    assert not any("evil" in line for line in daemon.log)
    # Another cause of hers is news within the hour; the same is not.
    await ann.send_to_device(daemon.user_id, KIND, word("m.blacklisted", **hers))
    await ann.wait_for_count(chat, daemon.user_id, 2)
    await ann.send_to_device(daemon.user_id, KIND, word("m.unavailable", **hers))
    assert await daemon.stop() == 0
    half_an_hour_later(daemon)
    await daemon.start()
    assert len(notices(daemon, "")) == 2


@pytest.mark.slow
async def test_who_cannot_begin_a_session_with_us_is_met_half_way(scene: Scene) -> None:
    """F-012: `m.no_olm`; the notice says so, and the next message is read without a key of ours."""
    ann, daemon, chat = await scene.met(
        await scene.current("ann", via=scene.proxy.url), encrypted=True
    )
    claimed: Json = {"one_time_keys": {}, "failures": {}}
    scene.proxy.before = lambda r: Answer(200, claimed) if r.path.endswith("/keys/claim") else None
    await ann.send(chat, "one")
    told = await ann.wait_for(chat, lambda m: m.sender == daemon.user_id)
    assert told.body == WITHHELD["m.no_olm"].format(sender=ann.user_id)
    await echoed_each(ann, chat, "two")
    assert len(notices(daemon, "")) == 1
