"""The bench of real models does what it says, with a scripted server in the place of one."""

import argparse

import pytest

from tests.bench_model import FIVE, measure, wanted_in_three_languages
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.relay import URL, serving

OPTIONS = argparse.Namespace(
    only=None, layout="append", size="full", samples=1, context=16384, set=[], label="scripted"
)


def chosen(**changes: object) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(OPTIONS), **changes})


def remembers(seen: Seen) -> Step | None:
    """A model that keeps all it hears, and says so."""
    if seen.messages[-1]["role"] == "tool" or not seen.body.get("tools"):
        return Text("Kept.")
    return Calls((Use("append_memory", {"entry": "Ann likes tea."}),))


async def test_each_part_prints_its_table(
    model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The call of `kept` is put in by the relay; the server has read its request all the same."""
    model.allow("cutting", perhaps=True)
    await measure(chosen(only=["tokens", "kept", "rooms"]), {URL: model.url})
    rows = capsys.readouterr().out.splitlines()
    assert sum(row.startswith("| --- |") for row in rows) == 3
    for name in ("first, cold", "append_memory", "task", "add_skill", "background call"):
        assert any(row.startswith(f"| {name} | 100 | 100 | 0.0% |") for row in rows), name
    limits = [seen.body["max_tokens"] for seen in model.requests]
    assert set(limits) == {1, 48}


@pytest.mark.slow
async def test_right_calls_are_counted_and_false_ones_too(
    model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever always calls one tool is right where that is wanted, and else false."""
    model.keyed(remembers)
    await measure(chosen(only=["calls", "languages"]), {URL: model.url})
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("| all")]
    assert rows == ["| all | 1 | 5 |", "| all | 8 | 20 | 10 | 10 |"]
    assert {seen.body["temperature"] for seen in model.requests} == {0.3}
    assert len(FIVE) == 5


def test_the_requests_of_strangers_are_what_the_goals_count() -> None:
    """Thirty in three languages, ten of which need no call."""
    found = wanted_in_three_languages()
    assert len({text for _, _, text in found}) == len(found) == 30
    assert {language for language, _, _ in found} == {"en", "de", "es"}
    tools = [tool for _, tool, _ in found]
    assert tools.count("none") == 10
    assert set(tools) == {"append_memory", "task", "add_skill", "none"}


async def test_a_server_that_cannot_start_is_told() -> None:
    with pytest.raises(AssertionError, match="ended with 1"):
        async with serving(4096, {"WINTERMUTE_MODEL_SERVER": "sh -c 'exit 1'"}):
            pass
