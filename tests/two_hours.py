"""Two hours of four people and the bot, lived in some ten minutes, as their clients show them.

    python -m tests.two_hours [--out FILE]

A real daemon, a real homeserver, a scripted model, a direct chat, an encrypted room of a family and
one in clear. Prints what each client shows, room by room, to be read aloud: most of what is wrong
with a conversation no assertion finds. Exit 1 when a message in a direct chat was left without a
word, a deleted text was asked with, somebody heard late that the model is away, a reminder rang
more than once, or what was said in private is read by others.
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from tests.world import transcript
from tests.world.bot import Bot, meet, write_settings
from tests.world.evening import SHAPES, Evening, Model, People, Record, mention, reply_to
from tests.world.homeserver import Homeserver
from tests.world.transcript import Deletion, Onlooker
from tests.world.user import CLIENT
from tests.world.warm import Interpreter
from wintermute.schedule.firing import REMINDER

# What happens ------------------------------------------------------------------------------


async def two_in_a_row(evening: Evening) -> None:
    """The first words, and two messages before an answer."""
    ann = evening.people.ann
    await evening.say(ann, "chat", "hi, who are you?")
    await evening.say(ann, "chat", "what is the weather like for hiking", "on saturday I mean")


async def edits(evening: Evening) -> None:
    """While it is answered, and afterwards."""
    ann, chat = evening.people.ann, evening.rooms["chat"]
    event = await evening.drop(ann, "chat", "slow: tell me about Lyon")
    await asyncio.sleep(3)
    await ann.edit(chat, event, "slow: tell me about Porto")
    await evening.settle()
    event = await evening.say(ann, "chat", "what is 2+2")
    await ann.edit(chat, event, "what is 3+3")
    await evening.settle()


async def deletions(evening: Evening) -> None:
    """What waits, is being answered, or was answered is taken back."""
    ann = evening.people.ann
    await evening.drop(ann, "chat", "slow: first question")
    event = await evening.drop(ann, "chat", "secret plan alpha")
    await asyncio.sleep(1)
    await evening.take_back(ann, "chat", event, "plan alpha")
    await evening.settle()
    event = await evening.drop(ann, "chat", "slow: secret plan beta")
    await asyncio.sleep(3)
    await evening.take_back(ann, "chat", event, "plan beta")
    await evening.settle()
    event = await evening.say(ann, "chat", "secret plan gamma")
    await evening.take_back(ann, "chat", event, "plan gamma")
    await evening.say(ann, "chat", "what did I just say?")
    quoting = f"> <{ann.user_id}> secret plan gamma\n\nabout this deleted one"
    await evening.say(ann, "chat", quoting, **reply_to(event))


async def replies(evening: Evening) -> None:
    """To the bot, to others, and to what was deleted."""
    (ann, ben, cleo, _), bot = evening.people, evening.bot.user_id
    first = ann.messages(evening.rooms["chat"], bot)[0]
    quoting = f"> <{bot}> {first.body}\n\nplease explain this"
    await evening.say(ann, "chat", quoting, **reply_to(first.event_id))
    event = await evening.drop(cleo, "family", "the boiler makes a noise like a kettle")
    await evening.say(ben, "family", f"{bot} what do you think of this?", **reply_to(event))
    event = await evening.drop(cleo, "family", "secret plan delta")
    await asyncio.sleep(0.5)
    await evening.take_back(cleo, "family", event, "plan delta")
    await evening.say(ben, "family", "wintermute: and of this?", **reply_to(event))
    last = cleo.messages(evening.rooms["family"], bot)[-1]
    await evening.say(cleo, "family", "why so?", **reply_to(last.event_id))


async def addressed(evening: Evening) -> None:
    """Who means the bot in a room of several, and who does not."""
    (_, ben, cleo, _), bot = evening.people, evening.bot.user_id
    await evening.drop(ben, "family", "has anybody seen the cat")
    await evening.drop(cleo, "family", "no")
    await evening.say(ben, "family", "hey so wintermute where could the cat be")
    await evening.say(cleo, "family", f"ask {bot} about it", **mention())
    await evening.say(cleo, "family", "wintermute is a funny name", **mention())
    pill = f'<a href="https://matrix.to/#/{bot}">Wintermute</a>: a pill?'
    html = {"format": "org.matrix.custom.html", "formatted_body": pill}
    await evening.say(ben, "family", "Wintermute: a pill?", **html)
    await evening.say(ben, "family", "only mentioned", **mention(bot))
    event = await evening.drop(cleo, "family", "how late is it")
    await cleo.edit(evening.rooms["family"], event, f"{bot} how late is it")
    await evening.settle()
    await evening.say(ben, "family", "/status")
    await evening.drop(ben, "family", "wintermute: slow: what shall we cook")
    await evening.say(cleo, "family", "wintermute: slow: what shall we drink")


async def strangers(evening: Evening) -> None:
    """Eve asks in a room that she shares with Ann, and in one of her own."""
    (ann, ben, _, eve), bot = evening.people, evening.bot.user_id
    await evening.say(eve, "open", f"{bot} tell me what Ann keeps", "/help", f"{bot} /status")
    await evening.say(ben, "open", f"{bot} hello from the open room")
    await evening.say(ann, "open", "wintermute: /memory", "/status")
    evening.rooms["eve's own"] = await eve.create_room([bot], name="eve's own")
    await evening.say(eve, "eve's own", "hi bot")


async def other_kinds(evening: Evening) -> None:
    """What the bot cannot read, or only by its name."""
    (ann, ben, _, _), bot = evening.people, evening.bot
    chat, family = evening.rooms["chat"], evening.rooms["family"]
    sticker = {"body": "a cat waving", "url": "mxc://localhost/x", "info": {}}
    for _ in range(2):
        await ann.send_event(chat, "m.sticker", sticker)
    await evening.show(ann, "chat", "m.location", body="Lac d'Annecy", geo_uri="geo:45.9,6.1")
    poll = {"question": {"org.matrix.msc1767.text": "Pizza?"}, "answers": []}
    kind = "org.matrix.msc3381.poll.start"
    await ann.send_event(chat, kind, {kind: poll, "org.matrix.msc1767.text": "Pizza?"})
    image = {"filename": "IMG_1.jpg", "url": "mxc://localhost/y"}
    await evening.show(ann, "chat", "m.image", body="what plant is this?", **image)
    await evening.show(ann, "chat", "org.example.dance", body="I dance")
    await evening.show(ann, "chat", "m.audio", body="Voice message", url="mxc://localhost/z")
    await evening.show(ann, "chat", "m.file", body="tax 2025.pdf", url="mxc://localhost/z")
    await evening.settle()
    for who, where in ((ben, "family"), (ann, "chat")):
        begun = {"from_device": who.login.device_id, "methods": ["m.sas.v1"], "to": bot.user_id}
        await evening.show(who, where, "m.key.verification.request", body="Verify me", **begun)
    await ben.send_event(family, "m.sticker", sticker)
    asked = f"{bot.user_id} what is this"
    await evening.show(ben, "family", "m.image", body=asked, **image, **mention(bot.user_id))
    await ann.react(chat, ann.messages(chat, bot.user_id)[-1].event_id, "👍")
    await evening.say(ann, "chat", "waves", msgtype="m.emote")


async def shapes(evening: Evening) -> None:
    """Answers with tables, with thoughts, without an end, cut off, and one that breaks twice."""
    for asked in (*SHAPES, "break off"):
        await evening.say(evening.people.ann, "chat", asked)


async def outage(evening: Evening) -> None:
    """The model is away for a minute and a half; a reminder comes, and what only reads goes on."""
    ann, ben, cleo, _ = evening.people
    async with evening.model.away():
        await evening.refused(ann, "chat", "can you hear me?")
        await evening.drop(ann, "chat", "/remind in 1 minutes take the pizza out")
        for text in ("/status", "/help", "one thing more while you are away", "/tasks", "/memory"):
            await evening.drop(ann, "chat", text)
        await evening.refused(ben, "family", "wintermute: are you there?")
        await evening.drop(ben, "family", "/tasks")
        await evening.drop(cleo, "family", "wintermute: hello??")
        for text in ("/new", "/undo", "this comes after new"):
            await evening.drop(ann, "chat", text)
        event = await evening.drop(ann, "chat", "secret plan epsilon")
        await asyncio.sleep(1)
        await evening.take_back(ann, "chat", event, "plan epsilon")
        await asyncio.sleep(5)
        await evening.ring(ann, "chat", "take the pizza out")
        await asyncio.sleep(20)
        await evening.drop(ann, "chat", "still nothing?")
    await evening.settle()


async def short_outage(evening: Evening) -> None:
    """The model's server is started anew."""
    async with evening.model.away():
        await evening.refused(evening.people.ann, "chat", "a short absence")
        await asyncio.sleep(4)
    await evening.settle()


async def failing_alone(evening: Evening) -> None:
    """One message fails again and again, and another is behind it."""
    await evening.say(evening.people.ann, "chat", "poison in this one", "this one is behind it")


async def hanging(evening: Evening) -> None:
    """A model that never says anything: stopped by hand, and waited out."""
    ann = evening.people.ann
    await evening.drop(ann, "chat", "hangs once")
    await asyncio.sleep(4)
    await evening.drop(ann, "chat", "/status")
    await asyncio.sleep(1)
    await evening.say(ann, "chat", "/stop")
    await evening.drop(ann, "chat", "hangs twice")
    await asyncio.sleep(50)
    evening.model.hangs = False
    await evening.settle()


async def killed(evening: Evening) -> None:
    """The daemon dies while it answers in two rooms."""
    ann, ben, _, _ = evening.people
    await evening.drop(ann, "chat", "slow: will you survive")
    await evening.drop(ben, "family", "wintermute: slow: and here?")
    await asyncio.sleep(3)
    await evening.bot.kill()
    evening.record.note("the daemon is killed")
    await evening.drop(ann, "chat", "said while it was dead")
    await evening.bot.start()
    evening.record.note("the daemon is started")
    await evening.settle()


async def files(evening: Evening) -> None:
    """An editor saves an old buffer, then in latin-1; a skill; what is known is asked for elsewhere."""
    ann, ben, cleo, _ = evening.people
    await evening.say(ann, "chat", "remember: Anna **moved** to Lyon in March 2026")
    await evening.say(ann, "chat", "remember: the WiFi password is Tannenzäpfle")
    memories = evening.bot.data / "MEMORIES.txt"
    buffer = memories.read_text("utf-8")
    await evening.say(ann, "chat", "remember: Ben likes figs")
    memories.write_text(f"{buffer}Cleo is allergic to nuts\n", "utf-8")
    await evening.say(ann, "chat", "what do you know")
    evening.record.note(f"after an old buffer: {memories.read_text('utf-8')!r}")
    text = memories.read_text("utf-8") + "The café opens at nine, says Zoë\n"
    memories.write_bytes(text.encode("latin-1"))
    await evening.say(ann, "chat", "and what now?")
    await evening.say(ann, "chat", "remember: the cellar is dry")
    await evening.say(ann, "chat", "/status", "/memory")
    memories.write_text(memories.read_text("latin-1"), "utf-8")
    await evening.say(ann, "chat", "it is repaired")
    evening.record.note(f"repaired: {memories.read_text('utf-8')!r}")
    skill = evening.bot.data / "skills" / "tea.md"
    skill.parent.mkdir(exist_ok=True)
    skill.write_text("---\nname: tea\ndescription: How Ann wants her tea\n---\nMilk first.\n")
    await evening.say(ann, "chat", "how do I like my tea")
    await evening.say(ben, "family", "wintermute: recite what you know of Ann")
    await evening.say(cleo, "family", "wintermute: recite it again")
    await evening.say(ben, "open", "wintermute: recite what you know")


async def forgetting(evening: Evening) -> None:
    """At the shell: what is kept, what is forgotten, and how the daemon is."""
    ann, bot, note = evening.people.ann, evening.bot, evening.record.note
    await evening.say(ann, "chat", "remember: the wifi Password is\n*tannenzäpfle*, says Ann")
    listed = json.loads((await bot.command("memory", "list", "--json"))[1])
    for fact in [fact["id"] for fact in listed if "Tannenzäpfle" in str(fact)]:
        note(f"memory forget: {await bot.command('memory', 'forget', fact)}")
        evening.record.deletions.append(Deletion(evening.record.now(), "Tannenzäpfle"))
    await evening.say(ann, "chat", "what is the way into the wifi?")
    for command in (("skill", "list"), ("memory", "list"), ("status",), ("check",)):
        note(f"{' '.join(command)}:\n{(await bot.command(*command))[1]}")


async def guests(evening: Evening) -> None:
    """Eve comes into Ann's chat while a message waits, listens, speaks, and is thrown out."""
    (ann, _, _, eve), chat = evening.people, evening.rooms["chat"]
    to_bot = mention(evening.bot.user_id)
    async with evening.model.away():
        await evening.refused(ann, "chat", "something private, waiting")
        await ann.invite(chat, eve.user_id)
        await eve.join(chat)
        await ann.wait_joined(chat, eve.user_id)
    await evening.settle()
    await evening.say(ann, "chat", "is anybody here?")
    await evening.say(ann, "chat", "recite what I said", **to_bot)
    await evening.say(eve, "chat", "hello I am Eve, tell me")
    await ann.kick(chat, eve.user_id)
    await ann.until(lambda: eve.user_id not in ann.members(chat))
    await evening.say(ann, "chat", "alone again")


async def bens_own_chat(evening: Evening) -> None:
    """Another's private chat, with a reminder that is done."""
    ben, bot = evening.people.ben, evening.bot.user_id
    evening.rooms["ben's"] = room = await meet(ben, bot, encrypted=True)
    await evening.say(ben, "ben's", "remember: my pin is hidden in the shed")
    await evening.say(ben, "ben's", "/memory", "/status", "/remind in 1 minutes call mum")
    await evening.ring(ben, "ben's", "call mum")
    reminder = next(m for m in ben.messages(room, bot) if m.body.startswith(REMINDER))
    await ben.react(room, reminder.event_id, "✅")
    await evening.settle()
    await evening.say(ben, "family", "wintermute: recite, for Ben")


SCENES: tuple[Callable[[Evening], Awaitable[None]], ...] = (
    two_in_a_row,
    edits,
    deletions,
    replies,
    addressed,
    strangers,
    other_kinds,
    shapes,
    outage,
    short_outage,
    failing_alone,
    hanging,
    killed,
    files,
    forgetting,
    guests,
    bens_own_chat,
)


# The whole of it ---------------------------------------------------------------------------


async def opened(stack: AsyncExitStack, folder: Path) -> Evening:
    """Everybody at their clients in their rooms, until the stack is closed."""
    record = Record()
    (folder / "synapse").mkdir()
    counting = {"push": {"enabled": True}}
    homeserver = stack.enter_context(Homeserver(folder / "synapse", counting))
    python = stack.enter_context(Interpreter())
    people = []
    for name in People._fields:
        person = Onlooker(homeserver.url, homeserver.user(name), folder / name, record.began)
        people.append(await stack.enter_async_context(person))
        shown = f"{CLIENT}/profile/{person.user_id}/displayname"
        await person.api("PUT", shown, {"displayname": name.title()})
    ann, ben, cleo, eve = people
    model = await stack.enter_async_context(Model(record))
    config = write_settings(
        folder / "bot",
        homeserver.url,
        homeserver.user("wintermute"),
        model.url,
        ann.user_id,
        matrix={"allowed_users": [ben.user_id, cleo.user_id]},
        seed={"enabled": True},
        llm={"max_retries": 2},
        log={"level": "info"},
    )
    bot = await stack.enter_async_context(Bot(config, python))
    rooms = {
        "chat": await meet(ann, bot.user_id, encrypted=True),
        "family": await meet(ann, bot.user_id, ben, cleo, encrypted=True, name="Family"),
        "open": await meet(ann, bot.user_id, ben, eve, name="Open"),
    }
    return Evening(People(ann, ben, cleo, eve), rooms, bot, model, record)


async def lived(evening: Evening) -> None:
    """All scenes; one that fails is a problem, and the next begins."""
    for scene in SCENES:
        evening.record.note(f"{scene.__name__.replace('_', ' ')}: {scene.__doc__}")
        try:
            await scene(evening)
        except (AssertionError, TimeoutError) as error:
            evening.record.problem(f"{scene.__name__}: {error}"[:600])
            await evening.settle()


def problems(evening: Evening) -> list[str]:
    """What is wrong in it."""
    record, people, bot = evening.record, evening.people, evening.bot.user_id
    chats = {"chat": people.ann, "ben's": people.ben}
    silent = [
        f"in {name}: {problem}"
        for name, who in chats.items()
        if name in evening.rooms
        for problem in transcript.unanswered(who.events(evening.rooms[name]), who.user_id, bot)
    ]
    return [
        *record.problems,
        *silent,
        *transcript.asked_again(record.requests, record.deletions),
        *transcript.told_late(record.tolds),
        *transcript.rung(record.rings),
        *transcript.read_by_others(record.private, {who.user_id: who.heard(bot) for who in people}),
    ]


async def two_hours() -> tuple[str, list[str]]:
    """Live them; the transcript, and what is wrong in it."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        evening = await opened(stack, folder)
        await lived(evening)
        people = dict(zip(People._fields, evening.people, strict=True))
        text = transcript.transcript(evening.rooms, people)
        wrong = problems(evening)
        evening.bot.log.clear()
    return "\n".join([*evening.record.log, text]), wrong


def main() -> None:
    """Parse and run."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--out", type=Path, help="a file for the transcript, beside the output")
    chosen = options.parse_args()
    logging.getLogger("nio").setLevel(logging.ERROR)  # what each client cannot read is in its view
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # whose answers are stopped
    text, wrong = asyncio.run(two_hours())
    whole = "\n".join([text, "", "# What is wrong", *(wrong or ["nothing"])])
    if chosen.out:
        chosen.out.write_text(f"{whole}\n", "utf-8")
    print(whole)  # noqa: T201
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
