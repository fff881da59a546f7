"""What a person reads of a verification: in its room, at the machine and in the log."""

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.world.clock import HeldClock
from tests.world.desk import ANN, BOB, ROOM, Desk, at_desk, talk
from tests.world.phone import some_key
from tests.world.proxy import Proxy
from wintermute.clock import stamp
from wintermute.health.health import untrusted, verifications
from wintermute.matrix.sas import REASONS
from wintermute.matrix.verifications import (
    COMPARE,
    DIFFERENT,
    FAILURES,
    LOOK_SECONDS,
    NO_METHOD,
    UNFIT,
    VerificationStore,
)


@pytest.fixture
async def desk(tmp_path: Path, proxy: Proxy) -> AsyncIterator[Desk]:
    async with at_desk(tmp_path, proxy, HeldClock()) as opened:
        yield opened


async def notices(desk: Desk) -> list[str]:
    """What the room is told."""
    rows = await desk.stores.database.rows("SELECT body FROM outbox ORDER BY rowid")
    return [row["body"] for row in rows]


async def test_a_room_hears_why_no_verification_begins(desk: Desk) -> None:
    """X-019: where one of the two has no method of the other's."""
    request = desk.phone(room=ROOM).request() | {"methods": ["m.qr_code.show.v1"]}
    await desk.hear(desk.message("request", request, room=ROOM))
    await desk.settled()
    assert desk.kinds == ["cancel m.unknown_method"]
    assert await notices(desk) == [NO_METHOD]


async def test_a_room_hears_once_that_what_was_sent_does_not_fit(desk: Desk) -> None:
    """X-020."""
    phone = desk.phone(room=ROOM)
    phone.keys = dict.fromkeys(phone.keys, some_key("another"))
    await talk(desk, phone, "cancel")
    await desk.hear(desk.message("cancel", {"code": "m.key_mismatch"}, room=ROOM))
    await desk.settled()
    assert await notices(desk) == [COMPARE, UNFIT]


async def test_somebody_at_the_machine_says_no(desk: Desk) -> None:
    """U-025: the daemon cancels it within a second, and says why; later a no counts for nothing."""
    store = VerificationStore(desk.stores.database, desk.clock)
    begun = desk.clock.now() - timedelta(seconds=1)
    assert await store.comparison(begun) is None
    await talk(desk, desk.phone(room=ROOM), "key")
    while not (found := await store.comparison(begun)):
        """Its row is about to be stored."""
    assert found["user_id"] == ANN
    assert await store.comparison(desk.clock.now()) is None  # another run has begun since
    for answer in ("noted", "too late"):
        assert await store.refuse(found) == answer
        await desk.clock.move(LOOK_SECONDS)
        await desk.settled()
    assert desk.kinds[-1] == "cancel m.mismatched_sas"
    assert await notices(desk) == [COMPARE, DIFFERENT]


@pytest.mark.parametrize("code", [*REASONS, "m.other"])
async def test_a_room_hears_of_an_end_that_its_person_did_not_choose(desk: Desk, code: str) -> None:
    """X-020: of emojis that were different in words that warn; of a cancellation nothing."""
    await talk(desk, desk.phone(room=ROOM), "key")
    await desk.hear(desk.message("cancel", {"code": code}, room=ROOM))
    await desk.settled()
    told = {**dict.fromkeys(FAILURES, UNFIT), "m.mismatched_sas": DIFFERENT}
    told["m.unknown_method"] = NO_METHOD
    assert await notices(desk) == [COMPARE, *([told[code]] if code in told else [])]


async def test_the_machine_shows_only_the_newest_of_each_person(desk: Desk) -> None:
    """X-019: a cancelled one is no warning once another was done."""
    rows = [
        *(("T1", ANN, 1, "cancelled", "m.user"), ("T2", ANN, 2, "done", "")),
        *(("T1", BOB, 4, "cancelled", "m.x"), ("T0", BOB, 3, "keyed", "")),
    ]
    async with desk.stores.database.transaction() as tx:
        for name, user, minute, phase, code in rows:
            began = stamp(desk.clock.now() + timedelta(minutes=minute))
            await tx.execute(
                "INSERT INTO verifications VALUES (?, ?, 'PHONE', '', ?, 'Dog', ?, ?, ?)",
                (name, user, phase, code, began, began),
            )
    assert await verifications(desk.stores.database) == [
        (f"verification with {BOB}", "warn", "cancelled (session PHONE): m.x"),
        (f"verification with {ANN}", "ok", "done (session PHONE)"),
    ]


@pytest.mark.parametrize("code", [*REASONS, ""])
async def test_the_machine_says_in_words_why_one_ended(desk: Desk, code: str) -> None:
    """X-020: and what to do, which is not to begin again where emojis were different."""
    await desk.hear(desk.message("request", desk.phone().request()))
    await desk.until(partial(desk.has_said, 1))
    await desk.hear(desk.message("cancel", {"code": code}))
    await desk.settled()
    [(_, state, text)] = await verifications(desk.stores.database)
    assert state == "warn"
    assert "m." not in text.replace("encryption.md", "")
    assert " -> " in text
    if code == "m.mismatched_sas":
        assert "begin again" not in text
        assert "docs/encryption.md" in text
    if code == "m.user":
        assert "if the emojis were different, do not" in text


@pytest.mark.parametrize(("count", "verb"), [(1, "waits"), (2, "wait")])
async def test_status_counts_what_waits_for_a_session(desk: Desk, count: int, verb: str) -> None:
    """X-034: in good grammar."""
    async with desk.stores.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO conversations (id, kind, scope, created_at) VALUES ('c', 'room', '', '')"
        )
        for n in range(count):
            await tx.execute(
                "INSERT INTO inbox (event_id, conversation_id, room_id, sender, sender_name, origin,"
                " kind, body, direct, raw, sent_at, received_at, state)"
                " VALUES (?, 'c', '', ?, '', 'other', 'message', '', 1, '', '', '', 'untrusted')",
                (f"${n}", ANN),
            )
    _, text = await untrusted(desk.stores.database)
    assert text.startswith(f"{count} message{'s' * (count > 1)} of {ANN} {verb} ")


@pytest.mark.parametrize(
    ("kind", "ending"), [("done", "phase=done"), ("cancel", "phase=cancelled code=m.user")]
)
async def test_the_log_says_how_it_ended_and_why(
    desk: Desk, caplog: pytest.LogCaptureFixture, kind: str, ending: str
) -> None:
    """X-019."""
    caplog.set_level(logging.INFO)
    await talk(desk, desk.phone(), "mac")
    await desk.hear(desk.message(kind, {"code": "m.user"}))
    await desk.settled()
    over = [line for line in caplog.messages if "verification over" in line]
    assert over == [f"verification over user={ANN} device=ANNSPHONE {ending}"]
