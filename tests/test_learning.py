"""From one message to the next prompt: picked out, brought together, put on the page, used.

A real daemon behind a real homeserver; what the model makes of each stage is scripted, the time
between them is what its machine's clock says.
"""

import json
import re
from collections.abc import Callable
from urllib.parse import quote

import pytest

from tests.world.bot import Bot
from tests.world.chats import REMEMBER, acting, ask_bot
from tests.world.harvested import is_harvest, talk_at_the_door, transcript
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.request_rules import canary, is_for_core, is_for_json, is_for_reconstruction
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.upgrades import upgrade
from tests.world.user import Message

pytestmark = pytest.mark.slow

EARLY = {"enabled": True, "message_threshold": 3, "min_messages": 3}
QUARTER = 16 * 60.0
RULE = "Never call Ann before 10:00."
HOME = "Ann lives in Rome since May 2026."
WAS = "Ann lives in Lyon."
MOVED = "Ann lived in Lyon until May 2026, and lives in Rome since May 2026."
PAGE = f"# SOUL\n\n# TOOLS\n\n# RULE\n- {RULE}\n\n# USER\n"


def answers(seen: Seen) -> Step | None:
    """What a careful model would make of each question."""
    if is_harvest(seen):
        told = "I moved to Rome" in transcript(seen)
        return Text(json.dumps({"contents": [HOME, RULE] if told else []}))
    if is_for_reconstruction(seen.body):
        new, known = seen.block("new_contents"), seen.block("related_memories")
        both = HOME in new and WAS in known
        memories = [MOVED, RULE] if both else [line[2:] for line in new.splitlines()]
        return Text(json.dumps({"memories": memories, "coverage": "complete"}))
    if is_for_core(seen.body):
        wanted = RULE in seen.block("candidate_new_memories")
        page = PAGE if wanted else None
        return Text(json.dumps({"should_update": wanted, "core_markdown": page}))
    return None


async def over(daemon: Bot, kind: str, n: int = 1) -> None:
    """Wait until so many jobs of this kind have ended."""
    done = "SELECT 1 FROM jobs WHERE name = ? AND state = 'done'"
    await daemon.until(lambda: len(daemon.rows(done, kind)) >= n)


async def test_what_is_said_in_passing_is_one_clear_memory_by_the_next_conversation(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-025, M-035, M-039, M-040, M-051, M-053: without a question, a command or a restart."""
    ann = await person("ann")
    daemon = await bot(ann, memory_harvest=EARLY, memory={"backend": "fts5"}, start=False)
    daemon.set_clocks()
    await daemon.start()
    model.reconstructs = model.updates_core = True
    model.keyed(answers)
    model.allow("edited core", perhaps=True)
    for words in (("add", WAS), ("reconstruct",)):
        code, said = await daemon.command("memory", *words)
        assert code == 0, said
    await over(daemon, "core", 1)
    chat = await room(ann, daemon)
    await talk_at_the_door(
        ann, chat, "hello", "by the way, I moved to Rome in May", "never call before ten"
    )
    await over(daemon, "harvest")
    daemon.set_clocks(wall=QUARTER, steady=QUARTER)
    await over(daemon, "core", 2)
    asked = [seen for seen in model.requests if is_for_json(seen.body)]
    reconstructions = [seen for seen in asked if is_for_reconstruction(seen.body)]
    assert WAS in reconstructions[-1].block("related_memories")
    # one call each: what was added was brought together before
    assert [len(reconstructions), sum(map(is_harvest, asked)), len(asked)] == [2, 1, 5]
    await ann.send(chat, "/new")
    await ann.wait_for(chat, lambda said: "new conversation" in said.body)
    await talk_at_the_door(ann, chat, "where do I live?")
    prompt = next(s for s in model.requests if s.last_user == "where do I live?").prompt
    assert f"# RULE\n- {RULE}" in prompt
    assert MOVED in prompt
    assert not re.search(rf"^- {re.escape(WAS)}", prompt, re.MULTILINE)
    assert (daemon.data / "core.md").read_text() == PAGE


async def test_no_question_of_any_stage_holds_words_of_two_people_or_rooms(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-010, M-012: the server refuses a request with two of these words, whoever asks."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(
        ann,
        memory_harvest=EARLY,
        memory={"backend": "fts5"},
        matrix={"allowed_users": [ben.user_id]},
        start=False,
    )
    daemon.set_clocks()
    await daemon.start()
    model.reconstructs = model.updates_core = True
    model.allow("edited core", perhaps=True)
    words = {name: canary(name) for name in ("ann", "ben", "club")}

    def keeps(seen: Seen) -> Step | None:
        text = seen.system
        word = next((each for each in words.values() if each in text), "nothing")
        if is_harvest(seen):
            return Text(json.dumps({"contents": [f"The boat is called {word}."]}))
        if is_for_reconstruction(seen.body):
            lines = [line[2:] for line in seen.block("new_contents").splitlines()]
            return Text(json.dumps({"memories": lines, "coverage": "complete"}))
        if is_for_core(seen.body):
            page = f"# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n- The boat is called {word}.\n"
            return Text(json.dumps({"should_update": True, "core_markdown": page}))
        return None

    model.keyed(keeps)
    chats = {
        "ann": (ann, await room(ann, daemon)),
        "ben": (ben, await room(ben, daemon)),
        "club": (ann, await room(ann, daemon, ben)),
    }
    for name, (who, chat) in chats.items():
        texts = ("hello", f"our boat is called {words[name]}", "bye")
        mention = f"{daemon.user_id} " if name == "club" else ""
        for text in texts:
            await who.send(chat, mention + text)
            await who.wait_for(chat, _answers(text))
    await over(daemon, "harvest", 3)
    daemon.set_clocks(wall=QUARTER, steady=QUARTER)
    await over(daemon, "core", 3)
    for name, (who, chat) in chats.items():
        mention = f"{daemon.user_id} " if name == "club" else ""
        await who.send(chat, f"{mention}what is it called?")
        await who.wait_for(chat, _answers("what is it called?"))
        prompt = next(s for s in reversed(model.requests) if not is_for_json(s.body)).prompt
        assert f"# USER\n- The boat is called {words[name]}." in prompt
    asked = [str(s.messages) for s in model.requests if is_for_json(s.body)]
    assert sorted(sum(word in text for text in asked) for word in words.values()) == [3, 3, 3]


def _answers(text: str) -> Callable[[Message], bool]:
    return lambda said: said.body.startswith("echo: ") and said.body.endswith(text)


async def test_what_a_group_always_knows_goes_on_in_the_room_that_follows(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """F-013, M-013: its core.md too, by the name of either room."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann, matrix={"allowed_users": [ben.user_id]})
    model.allow("edited core")
    club = await room(ann, daemon, ben)
    await ask_bot(ann, club, daemon, "hello")
    folder = daemon.data / "scopes" / quote(f"room:{club}", safe=":@!")
    folder.mkdir(parents=True)
    (folder / "core.md").write_text(PAGE)
    new = await upgrade(ann, club, invite=[daemon.user_id, ben.user_id])
    await ann.wait_joined(new, daemon.user_id)
    await ben.join(new)
    await ask_bot(ben, new, daemon, "hello again")
    assert f"# RULE\n- {RULE}" in model.requests[-1].prompt
    for name in (club, new):
        code, said = await daemon.command("core", "show", "--scope", f"room:{name}")
        assert (code, RULE in said) == (0, True), said


async def test_what_somebody_else_was_told_is_as_unknown_to_forget_as_what_nobody_was(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-010, M-030: by its id, which nobody can guess, and by its words."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann, matrix={"allowed_users": [ben.user_id]})
    model.keyed(acting(remember=REMEMBER))
    chat, others = await room(ann, daemon), await room(ben, daemon)
    await ask_bot(ann, chat, daemon, "remember it")
    [fact] = daemon.rows("SELECT id, text FROM facts")
    unknown = fact["id"][:-4] + "0000"
    for known, nobodys in ((fact["id"], unknown), (fact["text"], "the yacht Belle")):
        said = await ask_bot(ben, others, daemon, f"/forget {known}")
        assert said.replace(known, "") == (
            await ask_bot(ben, others, daemon, f"/forget {nobodys}")
        ).replace(nobodys, "")
    await ask_bot(ben, others, daemon, "/forget yes")
    assert fact["text"] in await ask_bot(ann, chat, daemon, "/memory")
