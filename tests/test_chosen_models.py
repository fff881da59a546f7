"""`/model` and `/usage`: which model a conversation asks, and what all of them used."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.world.asking import gone
from tests.world.clock import HeldClock
from tests.world.delegating import behave, call
from tests.world.house import PROMPTS, house_at_work, open_house
from tests.world.model import ContextTooLarge, Empty, Fail, ModelServer, Step, Text
from tests.world.trouble import seconds_pass
from tests.world.web import CHAT, chat_texts, post_message, web_served
from wintermute.config.schema import Backend, Llm, Price, Roles, SubSessionSettings
from wintermute.conversation.replies import BACK
from wintermute.messages import Usage

GROUP = "!group:test"
RESET = "This conversation uses only `cloud`; `/model reset` goes back to the usual models."


def models(**known: Backend | str) -> Llm:
    """These backends, or those at these addresses; the first is the usual one, none is tried twice."""
    made = {
        name: each if isinstance(each, Backend) else Backend(base_url=each, model=f"{name}_one")
        for name, each in known.items()
    }
    return Llm(backends=made, roles=Roles(base=("usual",)), max_retries=0)


async def test_a_chosen_model_answers_alone_in_its_conversation_until_it_is_reset(
    tmp_path: Path, model: ModelServer
) -> None:
    """X-048: also after a restart and `/new`, with the texts and window of its size; others may look.

    L-090: none is chosen that the prompt does not fit into. One that is gone is told of, once.
    """
    async with ModelServer(default=lambda _: Text("clever")) as cloud:
        small = Backend(base_url=cloud.url, model="clever_one", size="small", context_tokens=16_000)
        tiny = Backend(base_url=model.url, model="tiny_one", context_tokens=1024)
        llm = models(usual=model.url, cloud=small, tiny=tiny)
        opened: dict[str, Any] = {"llm": llm, "prompts": PROMPTS}
        group: dict[str, Any] = {"room": GROUP, "scope": f"room:{GROUP}", "direct": False}
        async with house_at_work(tmp_path, None, **opened) as house:
            assert await house.ask("hello") == "echo: hello"
            assert (await house.ask("/model")).splitlines() == [
                *("This conversation asks the usual models: `usual`.", ""),
                *("- `usual`: usual_one", "- `cloud`: clever_one", "- `tiny`: tiny_one", ""),
                "The owner can choose one of these for this conversation: `/model NAME`.",
            ]
            assert "There is no model `nowhere`." in await house.ask("/model nowhere")
            said = await house.ask("/model tiny")
            assert said.startswith("I did not choose `tiny`: instructions and tools take about ")
            assert "llm.backends.tiny.context_tokens" in said
            assert await house.ask("again") == "echo: again"
            assert "asks `cloud` alone" in await house.ask("/model `cloud`")
            assert await house.ask("who?") == "clever"
            assert "I could read only" in await house.ask("word " * 20_000)
            assert await house.ask("who?", room="!beside:test") == "echo: who?"
            for line in ("/model cloud", "/model reset"):  # of what may not be, nothing is told
                assert "Only the owner can choose a model" in await house.ask(
                    line, origin="other", **group
                )
            assert "usual models: `usual`." in await house.ask("/model", origin="other", **group)
            assert "asks `cloud` alone" in await house.ask("/model cloud", **group)
        async with house_at_work(tmp_path, None, **opened) as house:
            listed = await house.ask("/model")
            assert listed.startswith("This conversation asks `cloud` alone. `/model reset` goes")
            assert await house.ask("and now?") == "clever"
            assert await house.ask("we?", origin="other", sender="@bob:test", **group) == "clever"
            await house.ask("/new")
            assert await house.ask("still?") == "clever"
            assert "the usual models again: `usual`." in await house.ask("/model reset")
            assert await house.ask("now?") == "echo: now?"
        async with house_at_work(tmp_path, model.url, prompts=PROMPTS) as house:
            assert "`cloud` (no longer configured) alone" in await house.ask("/model", **group)
            for line in ("hello", "again"):
                await house.say(line, **group)
            told, *answers = (await house.spoken(GROUP))[-3:]
    assert told.startswith("The model `cloud`, which was chosen")
    assert [each.rpartition(": ")[2] for each in answers] == ["hello", "again"]
    full, *smaller = (len(seen.system) for seen in (*model.requests[:1], *cloud.requests))
    assert max(smaller) < full / 2


FAILURES: Mapping[str, Step] = {
    "a key that is none": Fail(401),
    "a model that is gone": Fail(404),
    "nothing said": Empty(),
    "a question that is refused": Fail(400, {"error": {"code": "content_filter"}}),
    "a question that is too large": ContextTooLarge(),
}


@pytest.mark.parametrize("step", FAILURES.values(), ids=FAILURES)
async def test_nobody_answers_for_a_chosen_model_and_its_failure_names_the_way_back(
    tmp_path: Path, model: ModelServer, step: Step
) -> None:
    """X-048: at once where waiting is of no use; the state of the usual models stays theirs."""
    async with ModelServer(default=lambda _: step, rules=False) as cloud:
        llm = models(usual=model.url, cloud=cloud.url)
        async with house_at_work(tmp_path, None, llm=llm) as house:
            await house.ask("/model cloud")
            assert (await house.ask("hello")).endswith(RESET)
            assert (await house.health.part("model")) is None
            await house.ask("/model reset")
            assert await house.ask("hello again") == "echo: hello again"
    assert len(model.requests) == 1


async def test_neither_kind_of_model_is_said_to_be_back_for_the_other(tmp_path: Path) -> None:
    """X-048, F-021, F-036: one is away, then both, and then the usual ones come, for others."""
    (port, url), clock, beside = await gone(), HeldClock(), "!beside:test"
    async with ModelServer(default=lambda _: Text("clever")) as cloud:
        llm = models(usual=url, cloud=cloud.url)
        opened = open_house(tmp_path, None, llm=llm, clock=clock)
        async with opened as house, house.working():
            await house.ask("/model cloud", room=beside)
            await house.incoming("hello")
            await clock.asleep()
            await clock.move(3)
            assert "cannot be reached" in (await house.said(1))[0]
            await seconds_pass(house, clock, 70)
            assert await house.ask("you?", room=beside) == "clever"
            assert len(await house.spoken()) == 1
            cloud.keyed(lambda _: Fail(500))
            await house.incoming("and now?", room=beside)
            await seconds_pass(house, clock, 75)
            told = (await house.said(3, beside))[2]
            assert told.startswith("The model does not answer: cloud answered 500")
            assert told.endswith(RESET)
            async with ModelServer(port=port):
                await seconds_pass(house, clock, 15)
                assert (await house.said(3))[1] == BACK
                assert len(await house.spoken(beside)) == 3
                await house.ask("/model reset", room=beside)
                await clock.move(60)
                assert (await house.said(5, beside))[4].endswith("and now?")
            part = await house.health.part("model")
    assert part is not None
    assert part.state == "ok"


PRICED = Price(input=3.0, cached=0.3, output=15.0)
USED = (Usage(1000, 100), Usage(2000, 7, 1500), Usage(11, 3))


def bill(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each backend of these calls."""
    for name in sorted({row["backend"] for row in rows}):
        of = [row for row in rows if row["backend"] == name]
        read, cached, out, usd = (
            sum(row[key] for row in of)
            for key in ("tokens_in", "tokens_cached", "tokens_out", "usd")
        )
        told = f"{len(of)} call{'s' if len(of) > 1 else ''}, {read:,} tokens in ({cached:,} from a cache), {out:,} out"
        yield f"- `{name}`: {told}" + (f", {usd:.{4 if usd >= 0.01 else 6}f} USD" if usd else "")


async def test_usage_agrees_with_the_calls_of_conversation_day_and_month(
    tmp_path: Path, model: ModelServer
) -> None:
    """X-048: with sub-sessions, by backend; a month begins at midnight where the owner lives."""
    clock = HeldClock(datetime(2026, 10, 31, 22, 30, tzinfo=UTC))  # 23:30 in Berlin
    free = Backend(base_url=model.url, model="own")
    paid = Backend(base_url=model.url, model="clever_one", price=PRICED)
    llm = models(usual=free, cloud=paid)
    opened = open_house(tmp_path, None, llm=llm, clock=clock, sub_sessions=SubSessionSettings())
    async with opened as house, house.working():
        assert (await house.ask("/usage")).count("- no model calls") == 3
        await house.ask("/model cloud")
        model.script(*(Text("so", usage=usage) for usage in USED))
        await house.ask("last month")
        await clock.move(3600)
        await house.ask("yesterday")
        await clock.move(24 * 3600)
        await house.ask("today")
        behave(model, [call("count")])
        await house.ask("go")
        await house.ask("and you?", room="!beside:test")
        here = await house.ask("/usage")
        theirs = await house.ask("/usage", origin="other")
        group = await house.ask("/usage", room=GROUP, scope=f"room:{GROUP}", direct=False)
        rows = await house.rows(
            "SELECT m.*, b.conversation_id, v.parent_cast FROM model_calls m JOIN casts c"
            " ON c.id = m.cast_id JOIN branches b ON b.id = c.branch_id"
            " JOIN conversations v ON v.id = b.conversation_id ORDER BY m.created_at, m.rowid"
        )
    mine = [row for row in rows if row["backend"] == "cloud"]
    assert len(mine) == 3 + 3  # the call, its child's answer, and what came of it
    assert sum(row["parent_cast"] is not None for row in mine) == 1
    days = [row for row in rows if row["created_at"] >= "2026-11-01T23:00"]
    month = rows[1:]
    told = [line for line in here.splitlines() if line.startswith("- ")]
    assert told == [*bill(mine), *bill(days), *bill(month)]
    assert theirs.splitlines() == ["**This conversation**", *bill(mine)]
    assert group.startswith(
        "**This conversation**\n- no model calls\n\nI show the use of all chats only"
    )


async def test_both_commands_are_there_in_the_browser(tmp_path: Path, model: ModelServer) -> None:
    """X-048, V-005: for whoever holds its token, who is the owner."""
    async with ModelServer(default=lambda _: Text("clever")) as cloud:
        opened = open_house(tmp_path, None, llm=models(usual=model.url, cloud=cloud.url))
        async with opened as house, house.working(), web_served(house) as web:
            for n, line in enumerate(("/model cloud", "hello", "/usage")):
                await post_message(web, line, f"k{n}")
                await house.settled()
            shown = await chat_texts(web, CHAT)
    assert shown[3] == "clever"
    assert "cloud: 1 call, 100 tokens in" in shown[5]
