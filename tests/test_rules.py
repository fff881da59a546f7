"""The rules of the loop as data: each case of `rules/*.yaml` is run against the real loop.

A case has the id of an acceptance line, its `rule` as a sentence, what is `given`, what happens
`when`, and what holds `then`. In `then`, text that begins with `~` must only be contained, and a
mapping needs no more than the keys it names. `rules/README.md` lists the words.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.world.clock import FakeClock
from tests.world.house import SYSTEM, WARDS, Gate, House, open_house
from tests.world.model import (
    Calls,
    ContextTooLarge,
    Empty,
    Fail,
    Hang,
    ModelServer,
    Seen,
    Step,
    Text,
    Use,
    is_for_summary,
)
from wintermute.config.schema import Backend, Context, Llm, Roles
from wintermute.conversation.toolbox import Caller
from wintermute.errors import ConfigurationError, ToolFailed
from wintermute.loom.reading import Reading, lines
from wintermute.messages import Json, Usage

FILES = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
CASES = [case for file in FILES for case in yaml.safe_load(file.read_text("utf-8"))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']} {case['rule']}"[:90])
async def test_a_rule_of_the_loop(case: Json, tmp_path: Path, model: ModelServer) -> None:
    """The ids stand in the cases."""
    ran: list[Json] = []
    given = case.get("given", {})
    async with open_house(tmp_path, model.url, **_options(given, model, ran)) as house:
        async with house.working():
            for step in _listed(case["when"]):
                await _happens(house, model, step)
        seen = await _found(house, model, ran)
    for name, expected in case["then"].items():
        assert fits(expected, _part(seen, name)), f"{name}: {_part(seen, name)}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _options(given: Json, model: ModelServer, ran: list[Json]) -> dict[str, Any]:
    """What the house is opened with."""
    options = {key: given[key] for key in ("done", "ephemeral", "retries") if key in given}
    tools = given.get("tools", {"echo": {}})
    names = given.get("models", ["scripted"])
    backends = {
        name: Backend(base_url=model.url, model=name, **given.get("model", {})) for name in names
    }

    def prompt() -> str:
        if given.get("instructions") == "missing":
            raise ConfigurationError("BASE_PROMPT.txt is missing")
        return SYSTEM

    return options | {
        "gates": [_gate(name, tool or {}, ran) for name, tool in tools.items()],
        "wards": replace(WARDS, **given.get("wards", {})),
        "context": Context(**given.get("context", {})),
        "clock": FakeClock(),
        "prompt": prompt,
        "llm": Llm(
            backends=backends, roles=Roles(base=tuple(names)), max_retries=given.get("retries", 0)
        ),
    }


def _gate(name: str, tool: Json, ran: list[Json]) -> Gate:
    async def act(_caller: Caller, args: Json) -> object:
        ran.append({name: args})
        if "fails" in tool:
            raise ToolFailed(tool["fails"])
        return (
            "x" * tool["gives_characters"]
            if "gives_characters" in tool
            else tool.get("gives", args.get("say", ""))
        )

    takes = tool.get("takes", {"say": {"type": "string"}})
    schema = {"type": "object", "properties": takes, "required": tool.get("needs", [])}
    return Gate(name, act, parameters=schema | {"additionalProperties": False})


async def _happens(house: House, model: ModelServer, step: Json) -> None:
    model.script(*map(_answer, step.get("model", ())))
    said = len(model.requests)
    await house.incoming(step["say"])
    if step.get("until") == "asked":
        await model.request_arrived(said + 1)
    else:
        await house.settled()


def _answer(said: Json | str) -> Step:
    """What the model does, from `text`, a mapping with `calls`, or the name of a failure."""
    named = {"empty": Empty(), "too_large": ContextTooLarge(), "hang": Hang()}
    if isinstance(said, str):
        return named.get(said, Text(said))
    if "fail" in said:
        return Fail(said["fail"])
    how: Json = {key: said[key] for key in ("text", "finish") if key in said}
    if "usage" in said:
        how["usage"] = Usage(*said["usage"], 0)
    return Calls(tuple(map(_use, said["calls"])), **how) if "calls" in said else Text(**how)


def _use(call: Json) -> Use:
    ((name, arguments),) = ((key, value) for key, value in call.items() if key != "id")
    return Use(name, arguments, call.get("id"))


async def _found(house: House, model: ModelServer, ran: list[Json]) -> Json:
    """All that a rule may speak of."""
    (branch,) = await house.rows("SELECT id FROM branches")
    story = await Reading(house.database).story(branch["id"])
    turns = lines(story)
    chats = [seen for seen in model.requests if not is_for_summary(seen.body)]
    return {
        "said": await house.spoken(),
        "casts": story["casts"],
        "turns": turns,
        "observations": [seen for turn in turns for seen in turn["observations"]],
        "ran": ran,
        "requests": len(chats),
        "summaries": len(model.requests) - len(chats),
        "folds": story["folds"],
        "asked": [seen.body["model"] for seen in chats],
        "systems": [seen.messages[0]["content"] for seen in chats],
        "tools": [[tool["function"]["name"] for tool in seen.body["tools"]] for seen in chats],
        "shrinks": list(_sizes(chats)) == sorted(set(_sizes(chats)), reverse=True),
        "saw": [[{m["role"]: m["content"] or ""} for m in seen.messages[1:]] for seen in chats],
        "record": str(turns),
    }


def _sizes(requests: Iterable[Seen]) -> Iterator[int]:
    return (len(str(seen.messages)) for seen in requests)


def _part(seen: Json, name: str) -> Any:
    """`saw 2` is the second of those, `saw last` the last one; a plural of numbers is a count."""
    key, _, which = name.partition(" ")
    if which == "count":
        return len(seen[key])
    return seen[key][-1 if which == "last" else int(which) - 1] if which else seen[key]


def fits(expected: Any, found: Any) -> bool:
    """Whether what was found is as a rule says."""
    if isinstance(expected, str) and expected.startswith(("~", "!~")):
        return (expected.split("~", 1)[1] in str(found)) != expected.startswith("!")
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(key in found and fits(expected[key], found[key]) for key in expected)
    if isinstance(expected, list) and isinstance(found, list):
        same = len(expected) == len(found)
        return same and all(map(fits, expected, found))
    return type(expected) is type(found) and bool(expected == found)


@pytest.mark.parametrize(
    ("expected", "found", "fit"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("~a", "bab", True),
        ("!~a", "bab", False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"b": 2}, False),
        ([1], [1, 2], False),
        ([], {}, False),
        (False, 0, False),
    ],
)
def test_a_rule_is_not_met_by_chance(expected: object, found: object, fit: bool) -> None:
    """What is compared is compared."""
    assert fits(expected, found) == fit
