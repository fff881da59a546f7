"""Whose memory, tasks and files a chat has is decided by who is in its room, and by nothing else.

No scope is set here: people make rooms, come in, speak and leave. What is known is seen in what
the model is asked, in what the room hears and at the command line.
"""

import asyncio
import re

import pytest

from tests.world.chats import FACT, REMEMBER, acting, ask_bot, come_in, handing_out, last_request
from tests.world.model import ModelServer, Slow, Text, Use
from tests.world.scene import NewAnybody, Scene
from wintermute.conversation import replies
from wintermute.matrix.outbox import KEPT_BACK
from wintermute.text import EMPTY_LISTS

PLAN = "Fix the leaking tap"


async def test_a_private_fact_is_known_in_chats_with_its_person_alone(scene: Scene) -> None:
    """M-010, M-012, L-081: in every chat of two with her; in no group, and with nobody else."""
    ann, ben, daemon = await scene.shared()
    first, second = [await scene.room(ann, daemon, encrypted=secret) for secret in (True, False)]
    club, bens = await scene.room(ann, daemon, ben, encrypted=True), await scene.room(ben, daemon)
    scene.model.keyed(acting(remember=REMEMBER))
    assert FACT in await ask_bot(ann, first, daemon, "remember it")
    for who, chat in ((ann, second), (ann, club), (ben, club), (ben, bens)):
        await ask_bot(who, chat, daemon, "hello")
        listed = await ask_bot(who, chat, daemon, "/memory")
        assert (FACT in last_request(scene.model), FACT in listed) == (
            chat == second,
            chat == second,
        )


@pytest.mark.slow
async def test_what_a_group_is_told_stays_in_that_group(scene: Scene, model: ModelServer) -> None:
    """M-010: not even the owner has it elsewhere; the shell names the room it belongs to."""
    ann, ben, daemon = await scene.shared()
    club, team, mine = [await scene.room(ann, daemon, *guests) for guests in ((ben,), (ben,), ())]
    model.keyed(acting(remember=REMEMBER))
    await ask_bot(ben, club, daemon, "remember it")
    await ask_bot(ben, club, daemon, "/new")
    for chat in (club, team, mine):
        await ask_bot(ann, chat, daemon, "hello")
        assert (FACT in last_request(model)) == (chat == club)
    assert FACT not in (await daemon.command("memory", "list"))[1]
    assert FACT in (await daemon.command("memory", "list", "--scope", f"room:{club}"))[1]


async def test_the_owners_files_are_read_with_the_owner_alone(scene: Scene) -> None:
    """M-011, M-013, M-015, M-053, P-009: core and memories, in the prompt and by the tool."""
    ann, ben, daemon = await scene.shared()
    (daemon.data / "core.md").write_text("# SOUL\n# TOOLS\n# RULE\n# USER\n- Ann is a spy\n")
    (daemon.data / "MEMORIES.txt").write_text(f"{FACT}\n")
    scene.model.keyed(acting(read=Use("read_file", {"path": "data/MEMORIES.txt"})))
    seen = []
    for who, guests in ((ann, ()), (ann, (ben,)), (ben, ())):
        chat = await scene.room(who, daemon, *guests)
        given = await ask_bot(who, chat, daemon, "read it")
        seen.append(
            (FACT in given, "it gave: error: " in given, "is a spy" in last_request(scene.model))
        )
        assert (FACT in last_request(scene.model)) == (FACT in given)
    assert seen == [(True, False, True), (False, True, False), (False, True, False)]


async def test_a_task_is_seen_and_changed_where_it_belongs(scene: Scene) -> None:
    """T-013, T-015, P-020: elsewhere its id is as good as any that does not exist."""
    ann, ben, daemon = await scene.shared()
    mine, again = [await scene.room(ann, daemon) for _ in range(2)]
    club, bens = await scene.room(ann, daemon, ben), await scene.room(ben, daemon)
    await ask_bot(ann, mine, daemon, f"/remind daily 09:00 {PLAN}")
    [task] = [row["id"] for row in daemon.rows("SELECT id FROM tasks")]
    assert "I'll remind you" in (await ask_bot(ann, again, daemon, f"/remind daily 09:00 {PLAN}"))
    for who, chat in ((ann, club), (ben, club), (ben, bens)):
        refused = [
            await ask_bot(who, chat, daemon, f"/tasks cancel {id_}") for id_ in (task, "task_0")
        ]
        assert refused == [f"no task {task}", "no task task_0"]
        assert await ask_bot(who, chat, daemon, "/tasks") == EMPTY_LISTS["tasks"]
        await ask_bot(who, chat, daemon, "hello")
        assert PLAN not in last_request(scene.model)
    assert PLAN in await ask_bot(ann, again, daemon, f"/tasks cancel {task}")
    await ask_bot(ann, mine, daemon, "hello")
    assert (task in last_request(scene.model), PLAN in last_request(scene.model)) == (False, True)


@pytest.mark.slow
async def test_a_task_of_a_group_is_everybodys_there_and_nobodys_elsewhere(scene: Scene) -> None:
    """T-013, T-062, M-010: who may talk to us there may change it, a stranger may not."""
    ann, ben, eve = await scene.person("ann"), await scene.person("ben"), await scene.person("eve")
    daemon = await scene.bot(ann, matrix={"allowed_users": [ben.user_id]})
    club, mine = await scene.room(ann, daemon, ben, eve), await scene.room(ann, daemon)
    made = await ask_bot(ann, club, daemon, f"/remind daily 09:00 {PLAN}")
    assert "I'll remind this room" in made
    [task] = re.findall("`([0-9]+)`", await ask_bot(ann, club, daemon, "/tasks"))
    assert await ask_bot(ann, mine, daemon, "/tasks") == EMPTY_LISTS["tasks"]
    await eve.send(club, f"/tasks cancel {task}")
    assert PLAN in await ask_bot(ben, club, daemon, "/tasks")
    assert "Cancelled" in await ask_bot(ben, club, daemon, f"/tasks cancel {task}")
    assert not scene.model.requests


async def test_a_task_for_all_rooms_is_made_by_the_owner_alone(scene: Scene) -> None:
    """T-014: it stands in every chat then."""
    ann, ben, daemon = await scene.shared()
    club, bens = await scene.room(ann, daemon, ben), await scene.room(ben, daemon)
    scene.model.keyed(
        acting(plan=Use("task", {"action": "add", "content": PLAN, "scope": "global"}))
    )
    assert "only the owner" in await ask_bot(ben, bens, daemon, "plan it")
    assert "only the owner" in await ask_bot(ben, club, daemon, "plan it")
    await ask_bot(ben, bens, daemon, "/new")
    assert "only the owner" not in await ask_bot(ann, club, daemon, "plan it")
    await ask_bot(ben, bens, daemon, "hello")
    assert PLAN in last_request(scene.model)


async def test_an_undo_takes_back_what_was_done_in_its_own_chat(scene: Scene) -> None:
    """L-081, M-065: what was done in private is out of a group's reach."""
    ann, ben, daemon = await scene.shared()
    mine, club = await scene.room(ann, daemon), await scene.room(ann, daemon, ben)
    scene.model.keyed(acting(remember=REMEMBER))
    await ask_bot(ann, mine, daemon, "remember it")
    assert await ask_bot(ann, club, daemon, "/undo") == "There is nothing to undo here."
    assert FACT in await ask_bot(ann, mine, daemon, "/memory")
    assert FACT in await ask_bot(ann, mine, daemon, "/undo")
    assert await ask_bot(ann, mine, daemon, "/memory") == EMPTY_LISTS["memories"]


async def test_status_names_details_to_the_owner_alone(scene: Scene) -> None:
    """L-081, X-003, F-002: by whom the message is signed, where nobody else reads the answer."""
    ann, ben, daemon = await scene.shared()
    mine, club, bens = [
        await scene.room(each, daemon, *other) for each, *other in ((ann,), (ann, ben), (ben,))
    ]
    asks = ((ann, mine), (ann, club), (ben, club), (ben, bens))
    told = [await ask_bot(who, chat, daemon, "/status all") for who, chat in asks]
    assert ["to be sent" in each for each in told] == [True, False, False, False]
    assert all("outbox" in each for each in told)


@pytest.mark.slow
async def test_who_comes_in_and_who_is_left_find_memories_of_their_own(scene: Scene) -> None:
    """X-031, M-010: a direct chat becomes a group and a direct chat again."""
    ann, ben, daemon = await scene.shared()
    chat = await scene.room(ann, daemon)
    scene.model.keyed(acting(remember=REMEMBER))
    await ask_bot(ann, chat, daemon, "remember it")
    await come_in(ben, ann, chat)
    await ask_bot(ann, chat, daemon, "what do we all know?")  # first it says who can read now
    await ann.wait_for(chat, lambda m: m.body.startswith("echo:") and "we all know?" in m.body)
    assert (FACT in last_request(scene.model), "remember it" in last_request(scene.model)) == (
        False,
        False,
    )
    assert await ask_bot(ben, chat, daemon, "/memory") == EMPTY_LISTS["memories"]
    await ben.leave(chat)
    await ann.until(lambda: ben.user_id not in ann.members(chat))
    await ask_bot(ann, chat, daemon, "and I alone?")
    assert (FACT in last_request(scene.model), "we all know" in last_request(scene.model)) == (
        True,
        False,
    )


async def test_an_answer_is_kept_back_from_somebody_who_came_in_meanwhile(
    scene: Scene, anybody: NewAnybody, model: ModelServer
) -> None:
    """X-031, M-010: who is heard while it is made is not told what it was made of."""
    ann, eve, release = await anybody("ann"), await scene.person("eve"), asyncio.Event()
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=True)
    model.script(Slow(release, Text(FACT)))
    await ann.send(chat, "what do I earn?")
    await model.request_arrived(1)
    await come_in(eve, ann, chat)
    await ask_bot(
        ann, await scene.room(ann, daemon), daemon, "/help"
    )  # it has read all that was before
    release.set()
    await ann.wait_for(chat, lambda message: message.body == replies.JOINED)
    await ask_bot(ann, chat, daemon, "and now?")
    assert "what do I earn" not in last_request(model)
    assert not [event for event in eve.messages(chat) if FACT in event.body]


@pytest.mark.slow
async def test_an_answer_that_a_crash_interrupted_is_kept_back_from_who_came_in_since(
    scene: Scene, model: ModelServer
) -> None:
    """M-010, L-051, X-031: somebody came and spoke while we were down."""
    ann, daemon, chat = await scene.direct()
    eve, release = await scene.person("eve"), asyncio.Event()
    model.keyed(lambda seen: Slow(release, Text(FACT)))
    await ann.send(chat, "what do I earn?")
    await model.request_arrived(1)
    await daemon.kill()
    await come_in(eve, ann, chat)
    await daemon.start()
    release.set()
    await ann.wait_for(chat, lambda message: message.body == replies.JOINED)
    assert not [event for event in ann.messages(chat) if FACT in event.body]


async def test_a_result_comes_back_to_the_chat_that_asked_for_it(scene: Scene) -> None:
    """L-058, L-067, L-072, M-010: each to its own, and both stay usable meanwhile."""
    ann, ben, release = await scene.person("ann"), await scene.person("ben"), asyncio.Event()
    daemon = await scene.bot(ann, matrix={"allowed_users": [ben.user_id]})
    mine, club = await scene.room(ann, daemon), await scene.room(ann, daemon, ben)
    scene.model.keyed(handing_out(release))
    for chat, work in ((mine, "the taxes"), (club, "the garden")):
        assert await ask_bot(ann, chat, daemon, f"hand out {work}") == "under way"
    assert "the garden" in await ask_bot(ben, club, daemon, "/sessions")
    assert "the taxes" not in await ask_bot(ben, club, daemon, "/sessions")
    assert await ask_bot(ann, mine, daemon, "hello") == "echo: hello"
    release.set()
    for chat, work, other in ((mine, "taxes", "garden"), (club, "garden", "taxes")):
        told = await ann.wait_for(chat, lambda message: message.body.startswith("told:"))
        assert (f"did the {work}" in told.body, other in told.body) == (True, False)


async def test_a_private_result_is_kept_back_when_the_chat_is_a_group_by_then(scene: Scene) -> None:
    """M-010, L-062, X-031: it is told that there was one, and no request has it."""
    ann, daemon, chat = await scene.direct()
    eve, release = await scene.person("eve"), asyncio.Event()
    scene.model.keyed(handing_out(release))
    await ask_bot(ann, chat, daemon, "hand out the taxes")
    await scene.model.request_arrived(3)
    await come_in(eve, ann, chat)
    await ask_bot(
        ann, await scene.room(ann, daemon), daemon, "/help"
    )  # it has read all that was before
    release.set()
    await ann.wait_for(chat, lambda message: message.body == KEPT_BACK)
    assert not [event for event in ann.messages(chat) if "did the taxes" in event.body]
    await ask_bot(ann, chat, daemon, "hello")
    assert "taxes" not in last_request(scene.model)


async def test_an_edit_of_what_was_said_in_private_brings_nothing_of_it_before_others(
    scene: Scene, model: ModelServer
) -> None:
    """L-054, X-031, M-010: what was done for the old text is named to nobody."""
    ann, ben, daemon = await scene.shared()
    chat = await scene.room(ann, daemon)
    model.keyed(acting(remember=REMEMBER))
    said = await ann.send(chat, "remember it")
    await ann.wait_for_count(chat, daemon.user_id, 1)
    await come_in(ben, ann, chat)
    await ann.edit(chat, said, f"{daemon.user_id}: count to ten")
    await ask_bot(ann, chat, daemon, "hello")
    assert not [
        told for told in (FACT, "remember it", "count to ten") if told in last_request(model)
    ]
