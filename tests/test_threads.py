"""Threads: each is a conversation of its own, which begins at its root and has the readers of its room."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.tiers import tiered
from tests.world.chats import down_for_sends, encrypted_or_not, hears, planning, slip_in, slip_out
from tests.world.clock import until
from tests.world.drafts import WORDS, GrowingTalk
from tests.world.forger import Forger
from tests.world.house import ANN, ROOM, House, open_thread
from tests.world.model import Drip, ModelServer, Slow, Step, Text
from tests.world.person import Person
from tests.world.proxy import Proxy, pass_before
from tests.world.redacted import take_back
from tests.world.scene import JS, NIO, Scene
from tests.world.story import Story
from tests.world.upgrades import upgrade
from tests.world.user import Message, under
from wintermute.conversation import replies
from wintermute.conversation.dispatcher import PRIVATE, UNREADABLE
from wintermute.mailbox.history import MailboxReader
from wintermute.mailbox.outbox import Outgoing
from wintermute.matrix.inbox import thread_of
from wintermute.matrix.outbox import relations_of
from wintermute.messages import Incoming
from wintermute.schedule.firing import REMINDER
from wintermute.web.messages import title_of

Json = dict[str, Any]
SECRET, BOT = "4711 euros", "@other_bot:test"
OF_ROOM = "SELECT id, thread_id, scope FROM conversations WHERE room_id = ? ORDER BY thread_id"


def place(message: Message) -> tuple[str, str]:
    """The thread that a message is in, and what it replies to; "" for none."""
    relation = message.content.get("m.relates_to", {})
    thread = relation["event_id"] if relation.get("rel_type") == "m.thread" else ""
    assert not thread or relation["is_falling_back"] is True
    return thread, relation.get("m.in_reply_to", {}).get("event_id", "")


async def ask_in(person: Person, chat: str, text: str, root: str = "", **more: Any) -> Message:
    """Say something, in a thread with a `root`; the answer of a model that repeats it."""
    sent = await person.send(chat, text, **(under(root) if root else {}), **more)
    found = await person.wait_for(
        chat,
        lambda m: m.sender != person.user_id and m.body.startswith("echo: ") and text in m.body,
    )
    assert place(found) == ((root, sent) if root else place(found))
    return found


def seen(model: ModelServer) -> list[str]:
    """The last question to the model, without its instructions."""
    said = [str(message["content"]) for message in model.requests[-1].messages[1:]]
    return [text.partition("\n\n<context>")[0] for text in said]


async def settle(house: House, text: str, **more: Any) -> None:
    """Say something, until nothing is left to be answered."""
    await house.say(text, **more)


def test_where_an_event_belongs() -> None:
    """X-056: whatever strangers write, and an edit or a sign where its message is."""
    thread = {"rel_type": "m.thread", "event_id": "$root"}
    types: tuple[object, ...] = ("M.Thread", ["m.thread"])
    roots: tuple[object, ...] = ("$own", "root", {"$root": 1}, "$" + "r" * 300)
    nowhere = [
        *({**thread, "rel_type": each} for each in types),
        *({**thread, "event_id": each} for each in roots),
        *({"rel_type": "m.thread"}, "m.thread", [thread], None),
    ]
    for relation, found in (
        (thread, ("", "$root")),
        ({**thread, "rel_type": "m.replace"}, ("$root", "")),
        ({**thread, "rel_type": "m.annotation", "key": "+"}, ("$root", "")),
        *((each, ("", "")) for each in nowhere),
    ):
        assert thread_of({"event_id": "$own", "content": {"m.relates_to": relation}}) == found
    assert thread_of({"content": "m.thread"}) == thread_of({}) == ("", "")


def test_where_an_answer_is_said_and_whom_it_mentions() -> None:
    """X-025, X-052: only its first event rings, and only that replies to what was asked in a room."""
    row = Outgoing(1, "out_1", "!room:here", "reply", "x")
    reply = {"m.in_reply_to": {"event_id": "$asked"}}
    named = {"m.mentions": {"user_ids": ["@ben:here"]}}
    thread = {"rel_type": "m.thread", "event_id": "$root", "is_falling_back": True}
    asked = replace(row, replies_to="$asked", mentions="@ben:here")
    assert [relations_of(row), relations_of(row, 1)] == [{}, {}]
    assert [relations_of(asked), relations_of(asked, 1)] == [{"m.relates_to": reply} | named, {}]
    below = replace(asked, thread="$root")
    assert relations_of(below) == {"m.relates_to": thread | reply} | named
    assert relations_of(below, 1) == {"m.relates_to": thread | reply}
    unasked = thread | {"m.in_reply_to": {"event_id": "$root"}}
    assert relations_of(replace(row, thread="$root")) == {"m.relates_to": unasked}


@pytest.mark.breaks("fork")
@pytest.mark.parametrize("client", tiered({"nio": NIO, "js": JS}, ["nio"]))
@encrypted_or_not
async def test_a_thread_goes_on_from_its_root_and_the_room_does_not_see_it(
    scene: Scene, model: ModelServer, encrypted: bool, client: str
) -> None:
    """X-025, X-042: below a question, below an answer; `/new`; after a kill; as its owner reads it."""
    ann = await scene.at(client)("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=encrypted)
    one = await ask_in(ann, chat, "one")
    assert place(one) == ("", "")
    root = await ann.send(chat, "two")
    await hears(ann, chat, "echo: two")
    await ask_in(ann, chat, "three")
    await ask_in(ann, chat, "below two", root)
    assert seen(model) == ["one", "echo: one", "two", "echo: two", "below two"]
    await ask_in(ann, chat, "more", root)
    await ask_in(ann, chat, "four")
    assert seen(model)[-3:] == ["three", "echo: three", "four"]
    await ask_in(ann, chat, "below one", one.event_id)
    assert seen(model) == ["one", "echo: one", "below one"]
    await ann.send(chat, "/new", **under(root))
    await ann.wait_for(chat, lambda m: m.sender == daemon.user_id and "echo" not in m.body)
    await daemon.kill()
    sent = await ann.send(chat, "anew", **under(root))
    await daemon.start()
    assert place(await hears(ann, chat, "echo: anew")) == (root, sent)
    assert seen(model) == ["anew"]
    await ask_in(ann, chat, "five")
    assert seen(model)[-3:] == ["four", "echo: four", "five"]
    threads = [row["thread_id"] for row in daemon.rows(OF_ROOM, chat)]
    assert threads == sorted(("", root, one.event_id))


@pytest.mark.breaks("fork")
@encrypted_or_not
async def test_who_joins_silently_reads_no_thread(
    scene: Scene, model: ModelServer, encrypted: bool
) -> None:
    """X-037, X-056, X-042, F-001 to F-004: while it is answered, and of what was private; with two it goes on."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=encrypted)
    root = await ann.send(chat, f"I earn {SECRET}")
    await hears(ann, chat, f"echo: I earn {SECRET}")
    await ask_in(ann, chat, "below", root)
    talk = GrowingTalk(ann, daemon, chat, model, asyncio.Semaphore(9))
    more = Drip(f"{SECRET} is " + "much " * 300, talk.gate)
    never = Slow(asyncio.Event(), Text(SECRET))
    steps: dict[str, Step] = {"is it much?": more, "is it?": never}
    model.keyed(lambda seen: steps.get(seen.last_user))
    sent = await ann.send(chat, "is it much?", **under(root))
    beside = await ann.send(chat, "is it?")
    draft = await talk.grown(f"{SECRET} is {' '.join(['much'] * 6)}")
    assert place(draft) == (root, sent)
    await model.request_arrived(4)
    await slip_in(eve, ann, chat)
    await ann.until(lambda: str([m.body for m in ann.messages(chat)]).count(replies.JOINED) == 2)
    [told] = [place(m) for m in ann.messages(chat) if m.body == replies.JOINED]
    [edit] = [m.content for m in ann.messages(chat) if m.body == f"* {replies.JOINED}"]
    assert (told, edit["m.relates_to"]["event_id"]) == (("", ""), draft.event_id)
    assert edit["m.new_content"]["body"] == replies.JOINED
    assert {row["scope"] for row in daemon.rows(OF_ROOM, chat)} == {f"room:{chat}"}
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}
    await ask_in(ann, chat, "and now?", root, **us)
    assert [SECRET in text for text in seen(model)] == [False]
    await ask_in(ann, chat, "and here?", beside, **us)  # which was never answered
    assert (PRIVATE in seen(model)[0], len(seen(model))) == (True, 1)
    await slip_out(eve, ann, chat)
    await until(lambda: daemon.rows(OF_ROOM, chat)[0]["scope"] == f"person:{ann.user_id}")
    await ask_in(ann, chat, "we two", root)
    assert SECRET in seen(model)[0]
    assert seen(model)[-3:-1] == ["below", "echo: below"]
    assert "and now?" not in str(seen(model))
    since = [m for m in ann.events(chat) if m.sender in (eve.user_id, daemon.user_id)]
    first = next(n for n, m in enumerate(since) if m.sender == eve.user_id)
    assert not [m.body for m in since[first:] if SECRET in m.body]


@pytest.mark.breaks("fork")
async def test_in_a_group_who_asked_is_named_and_need_not_name_us_again(
    scene: Scene, model: ModelServer
) -> None:
    """X-052, F-025: until somebody else speaks in the thread; not below what was not for us."""
    ann, ben, eve = [await scene.person(name) for name in ("ann", "ben", "eve")]
    daemon = await scene.bot(ann, matrix={"allowed_users": [ben.user_id]})
    chat = await scene.room(ann, daemon, ben, eve)
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}
    root = await ann.send(chat, "one", **us)
    first = await ann.wait_for(chat, lambda m: m.sender == daemon.user_id)
    assert (place(first), mentioned(first)) == (("", root), [ann.user_id])
    answer = await ask_in(ann, chat, "two", root)
    assert mentioned(answer) == [ann.user_id]
    talk = GrowingTalk(ann, daemon, chat, model, asyncio.Semaphore())
    grown = await talk.grow(**under(root))
    talk.say(20)
    assert (place(grown)[0], mentioned(grown)) == (root, [ann.user_id])
    *_, edit = await talk.ends(f"* {WORDS}")
    assert (edit.content["m.relates_to"]["event_id"], mentioned(edit)) == (grown.event_id, None)
    await ann.send(chat, "not for you", **under(await ben.send(chat, "pizza?")))
    await ben.send(chat, "nor this", **under(root))
    await ann.send(chat, "nor that", **under(root))
    other = await ask_in(ben, chat, "below", first.event_id)  # ours, and begun by him
    assert mentioned(other) == [ben.user_id]
    await eve.send(chat, "he is right", **under(first.event_id))
    await ben.send(chat, "is he?", **under(first.event_id))
    await ask_in(ben, chat, "so?", first.event_id, **us)
    assert "he is right" in seen(model)[-1]
    await ask_in(ann, chat, "well?", root, **us)
    assert [text in seen(model)[-1] for text in ("nor this", "pizza")] == [True, False]
    assert len(model.requests) == 6


def mentioned(message: Message) -> Any:
    return message.content["m.mentions"].get("user_ids")


@pytest.mark.breaks("fork", "edit")
async def test_what_is_about_a_message_counts_where_that_was_said(
    scene: Scene, model: ModelServer
) -> None:
    """X-041, X-056: `/stop`, a sign and an edit; we type until nothing is at work in the room."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon)
    root = await ann.send(chat, "one")
    await hears(ann, chat, "echo: one")
    gate = asyncio.Event()
    model.keyed(lambda s: Slow(gate, Text("late")) if "think" in s.last_user else None)
    await ann.send(chat, "think")
    inside = await ann.send(chat, "think too", **under(root))
    await model.request_arrived(3)
    await ann.until(lambda: daemon.user_id in ann.typing(chat))
    stop = await ann.send(chat, "/stop", **under(root))
    assert place(await hears(ann, chat, replies.STOPPED)) == (root, stop)
    assert daemon.user_id in ann.typing(chat)
    states = [row["state"] for row in daemon.rows("SELECT state FROM casts ORDER BY seq")]
    assert states[1:] == ["running", "truncated"]
    await ann.edit(chat, inside, "below")
    edited = await hears(ann, chat, "echo: below")
    assert place(edited)[0] == root
    again = await ann.send(chat, "think again", **under(root))
    await model.request_arrived(5)
    await ann.react(chat, again, "\N{OCTAGONAL SIGN}")
    await ann.until(lambda: [m.body for m in ann.messages(chat)].count(replies.STOPPED) == 2)
    assert [place(m)[0] for m in ann.messages(chat) if m.body == replies.STOPPED] == [root, root]
    gate.set()
    assert place(await hears(ann, chat, "late")) == ("", "")
    await ann.until(lambda: daemon.user_id not in ann.typing(chat))
    await ann.react(chat, edited.event_id, "\N{THUMBS UP SIGN}")
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM rewards")))


@pytest.mark.slow
@pytest.mark.breaks("fork", "redaction")
async def test_a_root_that_cannot_be_shown_is_no_hindrance(
    scene: Scene, model: ModelServer, proxy: Proxy
) -> None:
    """X-056, F-027: gone, of before we came, of another room, in a thread; or nothing of the kind."""
    ann = await scene.person("ann")
    early = await ann.create_room(encrypted=True)
    unread = await ann.send(early, "of before")
    daemon = await scene.bot(ann, via=proxy.url)
    await ann.invite(early, daemon.user_id)
    await ann.wait_joined(early, daemon.user_id)
    await ask_in(ann, early, "what of it?", unread)
    assert (UNREADABLE in seen(model)[0], "of before" in seen(model)[0]) == (True, False)
    other = await ask_in(ann, early, "other")

    chat = await scene.room(ann, daemon)
    root = await ann.send(chat, f"I earn {SECRET}")
    await hears(ann, chat, f"echo: I earn {SECRET}")
    inner = await ask_in(ann, chat, "below", root)
    await ann.redact(chat, root)
    await daemon.until(lambda: not daemon.rows("SELECT 1 FROM casts WHERE intent GLOB 'I earn*'"))
    await ask_in(ann, chat, "more", root)
    assert seen(model)[-3:] == ["below", "echo: below", "more"]
    assert f"I earn {SECRET}" not in seen(model)
    gone = await ann.send(chat, "/help")
    await ann.redact(chat, gone)
    await ask_in(ann, chat, "help with that", gone)

    def lie(_room: str, event: Json) -> Json:
        content = event.get("content", {})
        return {**event, "content": content | lies.get(content.get("body"), {})}

    thread = {"rel_type": "m.thread", "event_id": root}
    lies = {
        "nested": {"m.relates_to": {**thread, "event_id": inner.event_id}},
        "elsewhere": {"m.relates_to": {**thread, "event_id": other.event_id}},
        "unknown": {"m.relates_to": {**thread, "event_id": unread}},
        "wrong case": {"m.relates_to": {**thread, "rel_type": "m.THREAD"}},
    }
    Forger.at(proxy).change = lie
    for text in lies:
        answer = await ask_in(ann, chat, text)
        assert place(answer)[0] == (root if text == "nested" else "")
    threads = {row["thread_id"] for row in daemon.rows(OF_ROOM, chat)}
    assert threads == {"", root, gone, f"over {unread}"}


@pytest.mark.slow
@pytest.mark.breaks("fork", perhaps=True)
@encrypted_or_not
async def test_a_thread_ends_with_its_room_and_what_it_owes_is_said_in_the_next(
    scene: Scene, model: ModelServer, proxy: Proxy, encrypted: bool
) -> None:
    """X-056, F-013: its answer, which waits or is still made, and its reminders; earlier ones in it."""
    ann, ben = await scene.person("ann"), await scene.person("ben")
    daemon = await scene.bot(ann, via=proxy.url, matrix={"allowed_users": [ben.user_id]})
    club = await scene.room(ann, daemon, ben, encrypted=encrypted)
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}
    gate, plan = asyncio.Event(), planning(3)
    late = Slow(gate, Text("late"))
    model.keyed(lambda seen: late if "think" in seen.last_user else plan(seen))
    root = await ann.send(club, "one", **us)
    await ann.wait_for(club, lambda m: m.sender == daemon.user_id)
    await ann.send(club, "plan water", **under(root))
    water = await ann.wait_for(club, lambda m: m.body == f"{REMINDER}water")
    assert place(water) == (root, root)
    await ann.send(club, "/remind in 20 minutes tea", **under(root))
    await ann.wait_for(club, lambda m: m.sender == daemon.user_id and "tea" in m.body)
    await ann.send(club, "think", **under(root))
    await model.request_arrived(4)
    if encrypted:
        proxy.before = down_for_sends
        gate.set()
        await until(lambda: bool(daemon.rows("SELECT 1 FROM outbox WHERE body = 'late'")))
    new = await upgrade(ann, club, invite=[daemon.user_id, ben.user_id])
    await ann.wait_joined(new, daemon.user_id)
    await ben.join(new)
    moved = "SELECT 1 FROM conversations WHERE room_id = ? AND thread_id <> ''"
    await daemon.until(lambda: bool(daemon.rows(moved, new)))
    gate.set()
    proxy.before = pass_before
    said = await ann.wait_for(new, lambda m: m.body == "late")
    assert (place(said), said.encrypted) == (("", ""), encrypted)
    [home] = daemon.rows("SELECT id FROM conversations WHERE room_id = ? AND thread_id = ''", new)
    [tea] = daemon.rows("SELECT conversation_id FROM tasks WHERE content LIKE '%tea%'")
    assert tea["conversation_id"] == home["id"]
    again = await ann.send(new, "two", **us)
    await ann.wait_for(new, lambda m: place(m) == ("", again))
    answer = await ask_in(ann, new, "three", again)
    assert "one" in seen(model)[0]
    assert answer.encrypted == encrypted


@pytest.mark.breaks("redaction")
async def test_what_is_taken_back_in_a_room_is_gone_from_its_threads(story: Story) -> None:
    """X-056, F-027: from what is being asked, and from its summary; no thread has a seed."""
    gate = asyncio.Event()
    story.model.keyed(lambda s: Slow(gate, Text("late")) if s.last_user == "think" else None)
    async with story.at_work(language="en") as house:
        first = await house.incoming(SECRET)
        await settle(house, "two", event_id="$two")
        thread, asked = await open_thread(house.stores, root="$two"), len(story.model.requests)
        await house.incoming("think", conversation=thread)
        await story.model.request_arrived(asked + 1)
        assert SECRET in str(seen(story.model))
        [turn] = await house.rows("SELECT max(seq), id FROM turns")
        async with house.database.transaction() as tx:
            branch = await house.conversations.current_branch(tx, thread)
            made: Json = {"after": None, "tokens_before": 9, "tokens_after": 1}
            await house.stores.folds.add(tx, branch, turn["id"], f"they told {SECRET}", **made)
        await take_back(house, first)
        await story.model.request_arrived(asked + 2)
        assert SECRET not in str(seen(story.model))
        gate.set()
        await house.settled()
        assert (await house.one("SELECT summary FROM folds"))["summary"] == ""
        empty = await open_thread(house.stores, root="$nobody knows")
        await settle(house, "below", conversation=empty)
        seeds = await house.rows("SELECT 1 FROM inbox WHERE event_id GLOB 'seed_*'")
        assert len(seeds) == 1


@pytest.mark.breaks("fork")
async def test_a_thread_is_listed_by_its_name_and_hears_what_concerns_it(story: Story) -> None:
    """X-025, X-056, X-004, V-017: its readers are those of its room, whoever asks; other rooms' are not."""
    scope, group = f"person:{ANN}", f"room:{ROOM}"
    async with story.at_work() as house:
        await house.incoming("elsewhere", room="!other:test")
        await settle(house, "one", event_id="$one")
        thread = await open_thread(house.stores, root="$one")
        await settle(house, "below", conversation=thread)
        await settle(house, "where?", room="!other:test")
        held = await MailboxReader(house.database, house.stores.owner).conversations(9)
        titles = [title_of(each) for each in held]
        assert titles == ["Matrix: elsewhere", "Matrix thread: below", "Matrix: one"]
        async with house.database.transaction() as tx:
            rooms = [each.id for each in await house.conversations.target_conversations(tx, scope)]
            mine = [
                each.id
                for each in await house.conversations.target_conversations(tx, scope, thread)
            ]
            assert (len(rooms), mine) == (2, [thread, *rooms])
            for n, where in enumerate((rooms[1], thread)):
                more: Json = {"sent_at": house.clock.now(), "direct": False, "by_bot": True}
                bot = Incoming(f"$bot{n}", ROOM, BOT, "", "other", "message", "hm", **more)
                await house.inbox.store(tx, where, bot, "answered")
            assert await house.inbox.bot_streak(tx, rooms[1]) == 2
            await house.conversations.in_room(tx, ROOM, group)  # by whoever asks for it
        changed = await house.rows("SELECT 1 FROM conversations WHERE scope = ?", group)
        assert len(changed) == 2
        await settle(house, "us three", event_id="$three", scope=group)
        await settle(house, "we two", event_id="$other")
        began = "SELECT forked_from FROM branches WHERE conversation_id = ?"
        for readers, root, forks in (
            (scope, "$three", False),
            (scope, "$one", True),
            (group, "$three", False),  # others may have come than were here then
        ):
            async with house.database.transaction() as tx:
                await house.conversations.in_room(tx, ROOM, readers)
                gone = "UPDATE conversations SET thread_id = id WHERE thread_id = ?"
                await tx.execute(gone, (root,))
            found = await house.rows(began, await open_thread(house.stores, root=root))
            assert [row["forked_from"] is not None for row in found] == [forks]
