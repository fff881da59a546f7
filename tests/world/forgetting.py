"""Facts that are learnt from messages and forgotten: everything that must be gone then."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.world.bot import Bot
from tests.world.clock import WITHIN
from tests.world.files import WORD, files_with
from tests.world.house import ANN, ROOM, SCOPE, House
from tests.world.model import Calls, ModelServer, Text, Use
from tests.world.person import Person
from wintermute.changes.change_sets import Reason
from wintermute.forgetting.forgetting import Forgotten, forget
from wintermute.memory.exchange import Import, ImportResult
from wintermute.memory.fact import key
from wintermute.messages import Incoming

FACT = f"The bird is a {WORD}"
MATTER = "---\ncreated: 2026-05-04\nupdated: 2026-05-04\n---\n\n"
RAW = "episodic-raw/20260504/birds"
SOURCE = f"Source: [[{RAW}/0001-user]]"
OTHER = "episodic-raw/20260505/garden"
STORE = {
    "meta/Index.md": f"{MATTER}# Index\n\n- [[Bird]]: {FACT}.\n- [[Garden]]\n",
    "meta/conversations.json": "[]",
    "semantic/Bird.md": f"{MATTER}# Bird\n\n{FACT}, bought in May.\n\n{SOURCE}\n",
    "semantic/Garden.md": f"{MATTER}# Garden\n\nRoses grow there.\n- {FACT}\n- See [[Bird]]. {FACT}.\n"
    f"\n{SOURCE}\nSource: [[{OTHER}/0001-user]]\n",
    "semantic/Shed.md": f"{MATTER}# Shed\n\nA spade.\n",
    f"{RAW}/0001-user.md": f"{FACT}\n",
    f"{OTHER}/0001-user.md": "Roses grow in the garden\n",
    "conversations/20260504-090000/0001-user.md": f"Did you know? {FACT}!\n",
    "sleep/20260504-010000/job.json": '{"status": "applied"}',
    "sleep/20260504-010000/diff.patch": f"--- a\n+++ b\n+{FACT}\n+Roses\n",
    "sleep/20260504-010000/changes.json": json.dumps(
        [{"path": "semantic/Bird.md", "before": None, "after": f"# Bird\n\n{FACT}.\n"}]
    ),
    "sleep/20260504-010000/agent.stdout.txt": f"I wrote that {FACT}.",
}
IN_CLUB: dict[str, Any] = {"room": "!club:test", "scope": "room:!club:test"}
OPEN_JOBS = "SELECT 1 FROM jobs WHERE state IN ('waiting', 'running') AND name NOT IN ('embeddings', 'page again')"
SCRUBBED = "SELECT 1 FROM jobs WHERE name = 'scrub' AND state = 'done'"


async def deliver(house: House) -> None:
    """Send all that is to be sent, as the Matrix side does."""
    while outgoing := await house.next_outgoing():
        content = {"body": outgoing.body, "formatted_body": f"<p>{outgoing.body}</p>"}
        (part,) = await house.outbox.store_parts(outgoing.id, [(outgoing.id, content)], "DEVICE")
        await house.outbox.mark_sent(part, f"${outgoing.id}")


async def import_lines(house: House, lines: Iterable[str]) -> ImportResult:
    """Import these lines as memories of Ann."""
    stores = house.stores
    zone = house.clock.now().tzinfo
    assert zone is not None
    reading = Import(stores.database, stores.facts, stores.changes, SCOPE, zone)
    return await reading.store_lines(lines, Reason("import", SCOPE))


async def forget_live(house: House, word: str = WORD) -> Forgotten:
    """Forget the facts that have the word."""
    facts = await house.stores.facts.live(SCOPE)
    return await forget(house.stores, [fact for fact in facts if word in fact.text])


async def forgotten(house: House) -> None:
    """Wait until nothing is left to be forgotten."""

    query = "SELECT 1 FROM jobs WHERE name = 'forget' AND state <> 'done'"
    async with asyncio.timeout(WITHIN):
        house.runner.wake("forget")
        while await house.rows(query):
            await house.settled()


async def learn(house: House, model: ModelServer, text: str, entry: str) -> str:
    """Ann says it, and it is remembered from that; the id of her message."""
    before = len(await house.spoken())
    model.script(
        Calls((Use("append_memory", {"entry": entry, "source": "user_explicit"}),)),
        Text(f"I keep: {text}!"),
    )
    event_id = await house.incoming(text)
    await house.said(before + 1)
    await deliver(house)
    return event_id


async def wrote(house: House, page: str, *ours: str) -> None:
    """A person typed this page, all but these bullets of it: an update brought those."""
    pages = house.stores.core_pages
    lines = {f"- {each}" for each in ours}
    typed = "".join(f"{line}\n" for line in page.splitlines() if line not in lines)
    house.stores.places.core(SCOPE).write_text(typed)
    why = Reason("reconstruction", SCOPE)
    assert await pages.replace(why, page, await pages.found(SCOPE), [key(each) for each in ours])


async def forgotten_by(daemon: Bot) -> None:
    """Wait until nothing is owed but the rewriting of the file."""
    query = "SELECT 1 FROM jobs WHERE name = 'forget'"
    owed = f"{query} AND state <> 'done'"
    await daemon.until(lambda: bool(daemon.rows(query)) and not daemon.rows(owed))


async def is_gone(ann: Person, daemon: Bot, room: str, model: ModelServer, to: str = "") -> None:
    """No record has it, no request has it, and once the daemon has left and tidied no file has."""
    await forgotten_by(daemon)
    before = len(model.requests)
    await ann.send(room, f"{to}And now?")
    await ann.wait_for(room, lambda m: m.body.startswith("echo: ") and "And now?" in m.body)
    await daemon.said_all()
    assert WORD not in json.dumps([seen.body for seen in model.requests[before:]]).lower()
    assert await daemon.stop() == 0
    code, said = await daemon.command("memory", "forget")
    assert code == 0, said
    assert files_with(daemon.data, WORD) == []


def edit_of(event: str, text: str, house: House) -> Incoming:
    """Make an edit of a message of Ann's."""
    return Incoming(
        event_id="$edit",
        room_id=ROOM,
        sender=ANN,
        sender_name="Ann",
        origin="owner",
        kind="message",
        body=text,
        sent_at=house.clock.now(),
        direct=True,
        edits=event,
    )


def furnish(root: Path) -> Path:
    for name, text in STORE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


async def said_by(house: House, sender: str) -> list[str]:
    """List the texts that the inbox has of a sender."""
    query = "SELECT body FROM inbox WHERE sender = ? ORDER BY seq"
    return [row["body"] for row in await house.rows(query, sender)]


async def forget_all(house: House, room: str = ROOM, **more: Any) -> str:
    """Somebody has the memory of a chat forgotten; what that is answered with."""
    scope = more.get("scope") or f"person:{more.get('sender', ANN)}"
    (fact,) = await house.stores.facts.live(scope)
    answer = await house.ask(f"/forget {fact.id}", room=room, **more)
    while await house.deliver(room):
        pass
    await forgotten(house)
    assert await house.stores.facts.live(scope) == []
    return answer
