"""Edits fork: the new text is answered where the old one stood, and what was done stays done."""

import asyncio
from typing import Any

import pytest

from tests.world.forks import DONE_BEFORE, branches, edit
from tests.world.house import Gate, HeldClock, House
from tests.world.model import (
    Calls,
    Fail,
    Hang,
    ModelServer,
    Seen,
    Step,
    Text,
    Use,
    is_for_summary,
    own_words,
)
from tests.world.story import Story
from wintermute.config.schema import Context
from wintermute.conversation import replies
from wintermute.conversation.toolbox import Caller
from wintermute.errors import ToolFailed
from wintermute.messages import Json


async def casts(house: House) -> list[tuple[str, str]]:
    rows = await house.rows("SELECT intent, reason FROM casts ORDER BY seq")
    return [(row["intent"], row["reason"]) for row in rows]


@pytest.mark.breaks("edit")
async def test_an_edit_is_answered_in_a_branch_of_its_own(story: Story) -> None:
    """L-052 to L-054: what came before is in view, the first answer is not, and it stays on record."""
    echo = Gate()
    story.model.script(
        Calls((Use("echo", {"say": "seen"}),)), Text("one"), Text("two"), Text("better")
    )
    async with story.at_work(gates=[echo]) as house:
        await house.say_at_once("first")
        [event] = await house.say_at_once("secnd")
        before = await house.rows("SELECT * FROM turns ORDER BY seq")
        await edit(house, event, "second")
        assert await house.said(3) == ["one", "two", "better"]
        await house.say_at_once("third")
        assert (await house.spoken())[3:] == ["echo: third"]
        assert await casts(house) == [
            (text, "text") for text in ("first", "secnd", "second", "third")
        ]
        start, fork = await branches(house)
        turns = await house.rows("SELECT * FROM turns ORDER BY seq")
        past = await house.casts.past(start["id"], None)
    assert (start["forked_from"], fork["reason"]) == (None, "edit")
    assert fork["forked_from"] == turns[1]["id"] == turns[3]["parent_id"]
    assert turns[:3] == before
    assert [cast.intent for cast in past.casts] == ["first", "secnd"]
    assert story.model.requests[3].texts[1:] == ["first", "", "seen", "one", "second"]
    assert story.model.requests[4].texts[1:] == [
        *("first", "", "seen", "one", "second", "better", "third")
    ]
    assert echo.taken == [{"say": "seen"}]


async def test_the_first_message_of_a_room_may_be_edited(story: Story) -> None:
    """L-054: nothing is in view before it."""
    async with story.at_work() as house:
        await edit(house, (await house.say_at_once("helo"))[-1], "hello")
        await house.said(2)
        await house.say_at_once("more")
        assert [row["forked_from"] for row in await branches(house)] == [None, None]
    assert story.model.requests[1].texts[1:] == ["hello"]
    assert story.model.requests[2].texts[1:] == ["hello", "echo: hello", "more"]


async def fail(_caller: Caller, _args: Json) -> object:
    raise ToolFailed("no")


async def test_what_was_done_for_the_old_text_is_named_to_the_model(story: Story) -> None:
    """L-054: not what was only looked at, nor what failed; never run again; nobody's tag is ours."""
    mail, look, broken = Gate("mail"), Gate("read_file"), Gate("broken", fail)
    uses = [Use("mail", {"say": f"to Bob <event> {'x' * 2000}"}), Use("read_file", {"say": "a"})]
    story.model.script(Calls((*uses, Use("broken"))), Text("sent"))
    async with story.at_work(gates=[mail, look, broken]) as house:
        [event] = await house.say_at_once("mail Bob")
        await edit(house, event, "mail Bib")
        await house.said(2)
        await edit(house, event, "mail Bab")
        await house.said(3)
    assert len(mail.taken) == 1
    for seen, text in zip(story.model.requests[2:], ("mail Bib", "mail Bab"), strict=True):
        (told,) = seen.texts[1:]
        assert DONE_BEFORE in told
        assert told.endswith(text)
        assert 'mail {"say": "to Bob &lt;event> xxx' in told
        assert "read_file" not in told
        assert "broken" not in told
        assert len(told) < 700


async def test_an_edit_while_the_old_text_is_answered_takes_its_place(story: Story) -> None:
    """L-054: within the same second; there is one answer, and the old cast has its end."""
    story.model.keyed(lambda seen: Hang() if seen.last_user == "old" else None)
    async with story.at_work() as house:
        event = await house.incoming("old")
        await story.model.request_arrived(1)
        await edit(house, event, "newer")
        assert await house.said(1) == ["echo: newer"]
        await house.settled()
        await edit(house, event, "newest")
        await house.said(2)
        assert await casts(house) == [("old", "edited"), ("newer", "text"), ("newest", "text")]
        assert len(await branches(house)) == 3
    assert [seen.texts[1:] for seen in story.model.requests] == [["old"], ["newer"], ["newest"]]


async def test_only_the_last_of_several_edits_is_answered(story: Story) -> None:
    """L-054: those before it were never looked at, so nothing is forked for them."""
    async with story.house() as house:
        event = await house.incoming("one")
        for text in ("two", "three", "four"):
            await edit(house, event, text)
        async with house.working():
            await house.settled()
        assert await house.spoken() == ["echo: four"]
        assert await casts(house) == [("four", "text")]
        assert len(await branches(house)) == 1


async def test_an_edit_that_came_while_we_were_down_is_all_that_is_answered(story: Story) -> None:
    """L-051, L-054: the cast that the kill interrupted does not go on."""
    mail = Gate("mail", durable=False)
    story.model.script(Calls((Use("mail", {"say": "x"}),)), Hang())
    async with story.at_work(gates=[mail]) as house:
        event = await house.incoming("old")
        await story.model.request_arrived(2)
    async with story.house(gates=[mail]) as house:
        await edit(house, event, "new")
        async with house.working():
            await house.settled()
        (said,) = await house.spoken()
        assert [reason for _, reason in await casts(house)] == ["edited", "text"]
    assert said.endswith("new")
    assert DONE_BEFORE in said
    assert len(mail.taken) == 1


async def test_what_began_and_has_no_result_is_named_too(story: Story) -> None:
    """L-051, L-054: it may have been done."""

    async def hang(_caller: Caller, _args: Json) -> object:
        await edit(house, event, "new")
        await never.wait()
        raise AssertionError

    never = asyncio.Event()
    story.model.script(Calls((Use("mail", {"say": "x"}),)))
    async with story.at_work(gates=[Gate("mail", hang)]) as house:
        event = await house.incoming("old")
        (said,) = await house.said(1)
    assert f'{DONE_BEFORE}mail {{"say": "x"}}' in said


async def test_a_reminder_after_the_message_is_left_behind_with_it(story: Story) -> None:
    """L-052, L-054: nothing after the fork is in view; what it did is named."""
    note = Gate("note")
    story.model.keyed(
        lambda seen: (
            Calls((Use("note", {"say": "it"}),))
            if seen.messages[-1]["content"] == "remind"
            else None
        )
    )
    async with story.at_work(gates=[note]) as house:
        [event] = await house.say_at_once("old")
        await house.say("remind", kind="event", origin="timer")
        await edit(house, event, "new")
        await house.said(3)
    (told,) = story.model.requests[-1].texts[1:]
    assert 'note {"say": "it"}' in told
    assert len(note.taken) == 1


@pytest.mark.breaks("edit")
async def test_stop_ends_an_edit_as_any_message(story: Story) -> None:
    """L-023, L-054: the branch stays, and the next message goes on in it."""
    story.model.keyed(lambda seen: Hang() if seen.last_user == "new" else None)
    async with story.at_work() as house:
        await house.say_at_once("first")
        [event] = await house.say_at_once("old")
        await edit(house, event, "new")
        await story.model.request_arrived(3)
        await house.say_at_once("/stop")
        await house.say_at_once("next")
        assert (await house.spoken())[2:] == ["Stopped.", "echo: next"]
    assert story.model.requests[-1].texts[1:] == [
        *("first", "echo: first", "new", "[no answer was given]", "next")
    ]


@pytest.mark.breaks("fold")
@pytest.mark.breaks("edit", perhaps=True)
async def test_only_a_summary_of_what_both_share_is_used(story: Story) -> None:
    """L-039, L-052: folds belong to a path."""

    def choose(seen: Seen) -> Step:
        if is_for_summary(seen.body):
            return Text(f"summary of {len(summaries)} so far", usage=None)
        return Text(f"noted {seen.last_user[-1]}", usage=None)

    summaries: list[Any] = []
    story.model.keyed(choose)
    context = Context(keep_recent=1)
    async with story.at_work(context=context) as house:
        await house.say_at_once("a long story a", "a long story b", "/compact")
        [event] = await house.say_at_once("a long story c")
        summaries.append(1)
        await house.say_at_once("/compact")
        await house.say("a long story e", kind="event", origin="timer")
        await house.say_at_once("/compact")
        assert [row["turns"] for row in await house.rows("SELECT turns FROM folds")] == [1, 2, 3]
        await edit(house, event, "a long story d")
        await house.said(8)
    last = story.model.requests[-1].messages
    assert "[Folded: turns 1-2]" in last[1]["content"]
    assert [own_words(text) for text in story.model.requests[-1].texts[1:]] == ["a long story d"]


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.breaks("fork", perhaps=True)
async def test_a_fork_shows_a_cast_up_to_the_turn_it_came_from(story: Story, done: bool) -> None:
    """L-052, L-053: in the middle of a cast, with its results from the record."""
    echo = Gate()
    story.model.script(Calls((Use("echo", {"say": "a"}),)), Calls((Use("echo", {"say": "b"}),)))
    async with story.at_work(gates=[echo]) as house:
        await house.say_at_once("go")
        (branch,) = await house.rows("SELECT id, conversation_id FROM branches")
        turns = await house.rows("SELECT id FROM turns ORDER BY seq")
        async with house.database.transaction() as tx:
            await house.conversations.branch(
                tx, branch["conversation_id"], "fork", None, turns[1 if done else 0]["id"]
            )
        await house.say_at_once("and now?")
    results = ["", "a", "", "b"] if done else ["", "a"]
    assert story.model.requests[-1].texts[1:] == [
        *("go", *results, "[no answer was given]", "and now?")
    ]
    assert echo.taken == [{"say": "a"}, {"say": "b"}]


def away_for(model: ModelServer, text: str) -> list[bool]:
    """The model does not answer this text while the list has something."""
    gone = [True]
    model.keyed(lambda seen: Fail(500) if gone and seen.last_user.endswith(text) else None)
    return gone


async def test_an_edit_that_waits_tells_newcomers_nothing(story: Story) -> None:
    """L-054, M-010: effects of another scope stay there, arguments and all."""
    mail, clock = Gate("mail"), HeldClock()
    story.model.script(Calls((Use("mail", {"say": "private words"}),)), Text("sent"))
    async with story.at_work(gates=[mail], clock=clock) as house:
        [event] = await house.say_at_once("old")
        gone = away_for(story.model, "new")
        await edit(house, event, "new")
        await clock.asleep()
        await house.incoming("hi all", scope="room:!room:test", kind="context", direct=False)
        gone.clear()
        asked = len(story.model.requests)
        await clock.move(61)
        await house.settled()
        (*_, last) = await house.rows("SELECT scope FROM branches ORDER BY seq")
        *_, said = await house.spoken()
    assert last["scope"] == "room:!room:test"
    assert said == replies.JOINED
    assert len(story.model.requests) == asked


async def test_new_keeps_its_place_behind_an_edit_that_waits(story: Story) -> None:
    """F-035, L-054: the edit is answered where it was said, and what follows begins afresh."""
    mail, clock = Gate("mail"), HeldClock()
    story.model.script(Calls((Use("mail", {"say": "x"}),)), Text("sent"))
    async with story.at_work(gates=[mail], clock=clock) as house:
        [event] = await house.say_at_once("old")
        gone = away_for(story.model, "new")
        await edit(house, event, "new")
        await clock.asleep()
        await house.incoming("/new")
        await house.said(2)
        gone.clear()
        await clock.move(61)
        await house.settled()
        reasons = [row["reason"] for row in await branches(house)]
        assert DONE_BEFORE in story.model.requests[-1].texts[1:][-1]
        await house.say("then")
    assert story.model.requests[-1].texts[1:] == ["then"]
    assert reasons == ["start", "edit", "new"]


async def test_an_edit_that_finds_the_model_away_forks_once(story: Story) -> None:
    """L-034, L-054: it goes on where it began, with what was done for it in view."""
    mail, clock = Gate("mail"), HeldClock()
    story.model.script(Calls((Use("mail", {"say": "old one"}),)), Text("sent"))
    async with story.at_work(gates=[mail], clock=clock) as house:
        [event] = await house.say_at_once("old")
        story.model.script(Calls((Use("mail", {"say": "new one"}),)), Fail(500), Fail(500))
        await edit(house, event, "new")
        await clock.asleep()
        await clock.move(61)
        await story.model.request_arrived(5)
        await clock.asleep()
        await clock.move(61)
        await house.settled()
        assert [row["reason"] for row in await branches(house)] == ["start", "edit"]
    told, call, result = story.model.requests[-1].texts[1:]
    assert told.count(DONE_BEFORE) == 1
    assert (call, result) == ("", "new one\n\n[written 14:00, 2 minutes ago]")
    assert mail.taken == [{"say": "old one"}, {"say": "new one"}]
