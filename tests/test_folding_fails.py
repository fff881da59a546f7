"""Whatever goes wrong with a summary, an answer comes, and nothing is lost."""

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world.clock import FakeClock, promptly
from tests.world.folding import (
    FEW,
    PROMPT_TOKENS,
    WINDOW,
    WORDS,
    Summariser,
    first_words,
    folds,
    tokens_of,
)
from tests.world.house import WARDS, Gate, house_at_work
from tests.world.model import (
    Calls,
    ContextTooLarge,
    Empty,
    Events,
    Fail,
    Hang,
    Seen,
    Slow,
    Step,
    Text,
    Use,
    is_for_summary,
)
from tests.world.schema import traces_of
from tests.world.story import Story
from wintermute.config.schema import Backend, BudgetSettings, Context, Llm, Price, Roles
from wintermute.conversation.toolbox import Caller
from wintermute.db.eraser import erase
from wintermute.loom.casts import LOOM
from wintermute.loom.records import Wards
from wintermute.messages import Json

BAD: list[tuple[str, Step]] = [
    ("empty", Empty()),
    ("blank", Text(" \n ", usage=None)),
    ("a letter", Text("x", usage=None)),
    ("cut", Text("They told of this and that and of", "length", usage=None)),
    ("endless", Events(({"choices": [{"delta": {"content": "They told of this and that and"}}]},))),
    ("refused", Fail(400)),
    ("away", Fail(500)),
    ("longer", Text("long " * 4000, usage=None)),
]


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("answer", [case[1] for case in BAD], ids=[case[0] for case in BAD])
@pytest.mark.breaks("cutting")
async def test_a_useless_summary_changes_nothing_else(story: Story, answer: Step) -> None:
    """L-042, L-036: nothing is stored, nothing said; each cast tries once and is then cut."""
    talk = Summariser(story.model, lambda _: answer)
    async with story.at_work(**WINDOW) as house:
        await house.say_at_once(*(f"m{n} {WORDS}" for n in range(14)))
        assert await house.spoken() == [f"noted m{n}" for n in range(14)]
        assert await folds(house) == []
    assert talk.marked == [None] * 14
    assert all(tokens_of(seen) <= PROMPT_TOKENS for seen in talk.chats)
    assert all(first_words(seen)[-1] == f"m{n}" for n, seen in enumerate(talk.chats))
    assert 1 <= len(talk.summaries) <= 6
    assert len(talk.chats) == 14


@pytest.mark.slow
@pytest.mark.breaks("cutting")
async def test_a_failing_summary_is_asked_for_once_in_a_cast(story: Story) -> None:
    """L-042: not again at each of its turns."""

    async def big(_caller: Caller, _args: Json) -> object:
        return "x" * 900

    def choose(seen: Seen) -> Step:
        if is_for_summary(seen.body):
            asked.append(seen)
            return Fail(400)
        return Calls((Use("echo"),), usage=None)

    asked: list[Seen] = []
    story.model.keyed(choose)
    gates = [Gate(act=big)]
    async with story.at_work(gates=gates, **WINDOW) as house:
        assert "max_turns" in await house.ask("go on")
    assert len(story.model.requests) == 31
    assert len(asked) == 1


@pytest.mark.breaks("cutting", perhaps=True)
async def test_a_refused_summary_is_asked_for_again_once_as_much_is_new(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    """L-038, L-042: not for the same messages at each one that comes, over restarts neither."""
    context = Context(keep_recent=2, trigger_after_turns=4)
    asked_at: list[int] = []
    for day in range(4):
        talk = Summariser(story.model, lambda _: Text("-", usage=None))
        async with story.at_work(context=context) as house:
            for n in range(5):
                before = len(talk.summaries)
                await house.say_at_once(f"m{day * 5 + n} {WORDS}")
                asked_at += [day * 5 + n] * (len(talk.summaries) - before)
            assert await folds(house) == []
    assert asked_at == [4, 7, 13]
    refused = [r for r in caplog.records if r.getMessage().startswith("fold refused")]
    assert len(refused) == 3
    talk = Summariser(story.model)
    story.model.allow("fold")
    async with story.at_work(context=context) as house:
        await house.say_at_once("/compact", "after it", *(f"n{n} {WORDS}" for n in range(4)))
        assert len(await folds(house)) == 2


def two_windows(url: str, small: Json, **more: object) -> Llm:
    """A large model to talk with and another one for summaries."""
    backends = {
        "big": Backend(base_url=url, model="big", context_tokens=40_000, max_output_tokens=1000),
        "small": Backend(base_url=url, model="small", **small),
    }
    roles = Roles(base=("big",), compaction=("small",))
    return Llm(backends=backends, roles=roles, max_retries=0, **more)  # type: ignore[arg-type]


@pytest.mark.breaks("fold")
async def test_what_is_too_long_for_the_summariser_is_folded_in_chunks(story: Story) -> None:
    """L-043: each question fits its own window, and each turn is read once, in order."""
    talk = Summariser(story.model)
    llm = two_windows(story.model.url, WINDOW)
    async with house_at_work(story.folder, None, llm=llm, context=FEW) as house:
        await house.say_at_once(*(f"m{n} {WORDS}" for n in range(30)), "/compact", "last")
        stored = await folds(house)
        said = await house.spoken()
    assert len(stored) == len(talk.summaries) > 2
    read = [name for asked in talk.summaries for name in re.findall(r"\[message\]\n(m\d+)", asked)]
    assert read == [f"m{n}" for n in range(29)]
    assert all(len(asked) / 3 <= PROMPT_TOKENS for asked in talk.summaries)
    assert talk.marked[-1] == (29, f"summary {len(stored)}")
    assert "in 60 messages before" in said[-2]


async def test_chunks_may_end_in_the_middle_of_a_cast(story: Story) -> None:
    """L-041, L-043: each turn is read once, in order."""
    looks = 20

    def choose(seen: Seen) -> Step:
        if is_for_summary(seen.body):
            summaries.append(seen.system.split("<history>")[-1])
            return Text(f"summary {len(summaries)} of it all", usage=None)
        looked = sum(message["role"] == "tool" for message in seen.messages)
        if seen.last_user != "look" or looked == looks:
            return Text("fine", usage=None)
        return Calls((Use("echo", {"say": f"look{looked} {WORDS}"}),), usage=None)

    summaries: list[str] = []
    story.model.keyed(choose)
    llm = two_windows(story.model.url, WINDOW)
    async with house_at_work(story.folder, None, llm=llm, gates=[Gate()], context=FEW) as house:
        await house.say_at_once("look", "next", "/compact")
        assert [row["turns"] for row in await folds(house)][-1] == looks + 1
    read = [name for asked in summaries for name in re.findall(r"\[result\]\n(look\d+)", asked)]
    assert read == [f"look{n}" for n in range(looks)]
    assert len(summaries) > 2


@pytest.mark.breaks("fold")
@pytest.mark.breaks("cutting", perhaps=True)
async def test_one_message_larger_than_the_window_still_gets_an_answer(story: Story) -> None:
    """L-043: it is shown shortened, and later folded shortened."""
    talk = Summariser(story.model)
    async with story.at_work(context=FEW, **WINDOW) as house:
        await house.say_at_once("huge " * 20_000, "next", "and", "/compact", "last")
        first, *others = (await house.spoken())[:3]
        assert first.startswith("noted huge\n\n*I could read only")
        assert others == ["noted next", "noted and"]
        assert len(await folds(house)) >= 1
    assert len(talk.summaries) >= 1
    assert all(tokens_of(seen) <= PROMPT_TOKENS for seen in talk.chats)
    assert "characters left out" in talk.chats[0].messages[1]["content"]
    assert "characters shown" in talk.summaries[0]


@pytest.mark.breaks("fold")
async def test_a_window_that_is_smaller_than_configured_is_found_out(story: Story) -> None:
    """L-036, L-043: no request, for a summary neither, is sent twice or grows after a refusal."""
    sent: list[tuple[bool, int, bool]] = []

    def choose(seen: Seen) -> Step:
        size = len(json.dumps(seen.messages))
        summary, refused = is_for_summary(seen.body), size > 9_000
        sent.append((summary, size, refused))
        if refused:
            return ContextTooLarge()
        return Text("summary 1 of it all" if summary else "noted", usage=None)

    story.model.keyed(choose)
    async with story.at_work(context=FEW) as house:
        await house.say_at_once(*(f"m{n} {WORDS}" for n in range(25)))
        assert await house.spoken() == ["noted"] * 25
        assert await folds(house)
        assert await house.rows("SELECT 1 FROM turns WHERE error IS NOT NULL") == []
    for kind in (True, False):
        kinds = [each for each in sent if each[0] == kind]
        for (_, size, refused), (_, then, _) in itertools.pairwise(kinds):
            assert not refused or then < size
    bodies = [json.dumps(seen.body) for seen in story.model.requests]
    assert all(one != other for one, other in itertools.pairwise(bodies))
    assert sum(refused for *_, refused in sent) < 25


@pytest.mark.slow
async def test_a_history_is_folded_though_the_window_is_not_as_told(story: Story) -> None:
    """L-036, L-043: it was all one question, and is halved until it is taken."""
    sizes: list[int] = []

    def choose(seen: Seen) -> Step | None:
        if not is_for_summary(seen.body):
            return None
        sizes.append(len(seen.system))
        return ContextTooLarge() if sizes[-1] > 8_000 else Text("summary 1 of it all", usage=None)

    story.model.keyed(choose)
    async with story.at_work(context=FEW) as house:
        await house.say_at_once(*(f"m{n} {WORDS}" for n in range(25)), "/compact")
        assert (await house.spoken())[-1].startswith("Summed up:")
        assert (await folds(house))[-1]["turns"] == 24
    assert [size > 8_000 for size in sizes[:3]] == [True, True, False]
    assert all(then < size for size, then in itertools.pairwise(sizes[:3]))


async def test_a_summariser_that_takes_nothing_is_not_asked_for_ever(story: Story) -> None:
    """L-036: nor with the same question twice."""
    story.model.keyed(lambda seen: ContextTooLarge() if is_for_summary(seen.body) else None)
    async with story.at_work(context=FEW) as house:
        await house.say_at_once(*(f"m{n} {WORDS}" for n in range(25)), "/compact")
        assert "I changed nothing" in (await house.spoken())[-1]
    asked = [
        json.dumps(seen.messages) for seen in story.model.requests if is_for_summary(seen.body)
    ]
    assert 3 < len(asked) == len(set(asked)) < 12


@pytest.mark.slow
@pytest.mark.parametrize("how", ["away", "hangs", "costs too much"])
async def test_a_summariser_that_is_away_is_nobodys_business(story: Story, how: str) -> None:
    """L-044, L-086: the answers come, in time, and no other word; the message does not wait."""
    talk = Summariser(story.model, lambda _: Hang() if how == "hangs" else Fail(503))
    price = Price(input=1e6, cached=1e6, output=1e6) if how == "costs too much" else None
    llm = two_windows(
        story.model.url, WINDOW | {"price": price}, budget=BudgetSettings(usd_per_day=1.0)
    )
    wards = Wards(**{**WARDS.record(), "max_seconds": 2 if how == "hangs" else 60})
    context = Context(fold_at=0.1, keep_recent=2)
    async with house_at_work(story.folder, None, llm=llm, wards=wards, context=context) as house:
        await house.say_at_once(*(f"m{n} {WORDS}{WORDS}" for n in range(9)))
        assert await house.spoken() == [f"noted m{n}" for n in range(9)]
        assert await folds(house) == []
        assert {row["reason"] for row in await house.rows("SELECT reason FROM casts")} == {"text"}
    assert bool(talk.summaries) == (how != "costs too much")


@pytest.mark.parametrize("what", ["a message", "the summary before"])
@pytest.mark.breaks("fold")
@pytest.mark.breaks("redaction", perhaps=True)
async def test_what_is_forgotten_meanwhile_is_in_no_summary(story: Story, what: str) -> None:
    """L-048: the summary came from words that are no longer there."""
    go_on = asyncio.Event()
    late = Slow(go_on, Text("summary 2 of it all", usage=None))
    talk = Summariser(
        story.model, lambda n: late if n == 2 else Text("summary 1 of it all", usage=None)
    )
    async with story.at_work(context=FEW) as house:
        await house.say_at_once("a long story", "b long story", "/compact")
        event = await house.incoming("c long story")
        await house.say_at_once("d long story")
        await house.incoming("/compact")
        await story.model.request_arrived(6)
        events, texts = ([event], []) if what == "a message" else ([], ["summary 1 of it all"])
        said = await traces_of(house.database, texts)
        async with house.database.transaction() as tx:
            await erase(tx, LOOM, said, await house.casts.came_of(tx, events))
        go_on.set()
        await house.say_at_once("e")
        stored = [row["summary"] for row in await folds(house)]
        assert "I changed nothing" in (await house.spoken())[5]
    assert stored == ["summary 1 of it all" if what == "a message" else ""]
    assert talk.marked[-1] == ((1, "summary 1") if what == "a message" else None)


async def test_instructions_larger_than_the_window_cost_no_summaries(story: Story) -> None:
    """L-042: folding cannot make room there, and is not tried for every message."""
    story.model.allow("cutting")
    talk = Summariser(story.model)
    async with story.at_work(prompt=lambda: "Be kind. " * 2000, **WINDOW) as house:
        await house.say_at_once(*(f"m{n}" for n in range(16)))
        assert await house.spoken() == [f"noted m{n}" for n in range(16)]
    assert talk.summaries == []


@pytest.mark.parametrize("window", [8192, 4096])
async def test_a_window_no_fold_can_empty_is_cut_with_a_mark(story: Story, window: int) -> None:
    """L-038, L-042: else a summary of one message would stand before each message."""
    story.model.allow("cutting")
    talk = Summariser(story.model)
    room = window - window // 4
    prompt = "Be kind. " * (room * 85 // 300)  # more than the share that triggers
    backend: Json = {"context_tokens": window, "max_output_tokens": window // 4}
    async with story.at_work(prompt=lambda: prompt, **backend) as house:
        await house.say_at_once(*(f"m{n} {'word ' * 60}" for n in range(16)))
        assert await house.spoken() == [f"noted m{n}" for n in range(16)]
    assert talk.summaries == []
    assert (
        "earlier messages left out to fit the model's window"
        in talk.chats[-1].messages[1]["content"]
    )
    firsts = [seen.messages[1]["content"] for seen in talk.chats]
    assert len(set(firsts)) < 12  # several requests begin alike


@pytest.mark.breaks("fold")
async def test_long_results_are_folded_where_that_is_enough_and_not_cut(story: Story) -> None:
    """L-036, L-042: a fold gains what it takes out of view, not what the summariser reads of it."""
    looking = Calls((Use("echo", {"say": "look"}),), usage=None)
    steps: Iterator[Step] = iter([looking, looking, looking, Text("It is blue.", usage=None)])
    summary = Text("They looked at the sea, again and again.", usage=None)
    story.model.keyed(lambda seen: summary if is_for_summary(seen.body) else next(steps))

    async def look(_caller: Caller, _args: Json) -> object:
        return "sea " * 3000

    backend: Json = {"context_tokens": 12_000, "max_output_tokens": 1_000}
    gates = [Gate(act=look)]
    async with story.at_work(gates=gates, **backend) as house:
        await house.say_at_once("How is the sea?")
        assert await house.spoken() == ["It is blue."]
        assert len(await house.rows("SELECT 1 FROM folds")) == 1
    assert "left out" not in json.dumps([seen.body for seen in story.model.requests])


async def test_compact_with_no_model_is_told_what_is_missing(tmp_path: Path) -> None:
    """L-005, L-044."""
    async with house_at_work(tmp_path, None) as house:
        await house.say_at_once("/compact")
        assert "llm.roles.base" in (await house.spoken())[0]


async def test_stop_ends_a_running_compact(story: Story) -> None:
    """L-023, L-044: one word, nothing stored, and the room goes on."""
    Summariser(story.model, lambda _: Hang())
    async with story.at_work(context=FEW) as house:
        await house.say_at_once("a long story", "b long story")
        await house.incoming("/compact")
        await story.model.request_arrived(3)
        async with promptly(1):
            await house.say_at_once("/stop")
        await house.say_at_once("c")
        assert (await house.spoken())[2:] == ["Stopped.", "noted c"]
        assert await folds(house) == []


@pytest.mark.breaks("fold")
async def test_an_outage_pushes_nothing_out_of_view(story: Story) -> None:
    """L-034, L-041: the attempts at a message show nothing, so they do not count as messages."""
    story.model.script(Text("one"), Text("two"), *[Fail(500)] * 12, Text("three"))
    context = Context(keep_recent=4)
    async with story.at_work(clock=FakeClock(), context=context) as house:
        await house.say_at_once("a long story", "b long story", "c long story")
        story.model.script(Text("summary 1 of it all"), Text("four"))
        await house.say_at_once("/compact", "d")
        (fold,) = await folds(house)
    assert fold["turns"] == 1
    shown = [m["content"].splitlines()[-1] for m in story.model.requests[-1].messages[1:]]
    assert shown == ["b long story", "two", "c long story", "three", "d"]


@pytest.mark.breaks("cutting", perhaps=True)
async def test_a_full_window_is_cut_at_most_once_after_a_summary_of_no_use(story: Story) -> None:
    """L-042: the request alone; the next one that does not fit asks for a summary again."""
    story.model.allow("fold")
    summaries = iter(["-"])
    talk = Summariser(
        story.model, lambda _: Text(next(summaries, "They spoke of the garden."), usage=None)
    )
    context = Context(keep_recent=4, fold_at=0.95)
    async with story.at_work(context=context, context_tokens=5000, max_output_tokens=500) as house:
        await house.say_at_once(*(f"m{n} {WORDS * 3}" for n in range(10)))
    cut = [seen for seen in talk.chats if "left out to fit" in str(seen.body["messages"])]
    assert len(cut) <= 1
    assert len(talk.summaries) >= 2


async def test_a_message_read_in_part_is_answered_with_how_much(story: Story) -> None:
    """L-043: the answer sounds as if all of it had been read."""
    story.model.allow("fold", "cutting", perhaps=True)
    story.model.script(Text("Here is a summary."))
    async with story.at_work(context_tokens=2_000) as house:
        said = await house.ask("Sum this up: " + "many ships on the sea. " * 800)
        shown = re.fullmatch(
            r"Here is a summary\.\n\n\*I could read only ([\d,]+) of the 18,413 characters of your"
            r" message: the rest is too long for the model\.\*",
            said,
        )
        assert shown, said
        assert 1_000 < int(shown[1].replace(",", "")) < 12_000
        await house.incoming("[truncated: 3 of 9 characters shown] is what it said")
        assert (await house.said(2))[1].startswith("echo: [truncated: 3 of 9 characters")
    assert "I could read" not in str(story.model.requests[-1].messages)
