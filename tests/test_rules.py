"""Runs the rules of `rules/*.yaml` against the real loop; `rules/README.md` lists their words."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.world import model as world
from tests.world.clock import FakeClock
from tests.world.house import SYSTEM, WARDS, Gate, House, open_house
from tests.world.model import ModelServer
from wintermute.config.schema import Backend, Context, Llm, Roles
from wintermute.conversation.toolbox import Caller
from wintermute.errors import ConfigurationError, ToolFailed
from wintermute.loom.reader import LoomReader, lines
from wintermute.messages import Json, Usage

FILES = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
CASES = [case for file in FILES for case in yaml.safe_load(file.read_text("utf-8"))]
FAILURES: dict[str, world.Step] = {
    "empty": world.Empty(),
    "too_large": world.ContextTooLarge(),
    "hang": world.Hang(),
    "drip": world.Drip("and so on " * 1000),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']} {case['rule']}"[:90])
@pytest.mark.breaks("fold", "decay", "cutting", perhaps=True)
async def test_a_rule_of_the_loop(case: Json, tmp_path: Path, model: ModelServer) -> None:
    """The ids stand in the cases."""
    ran: list[Json] = []
    options = _options(case.get("given", {}), model.url, ran)
    async with open_house(tmp_path, model.url, **options) as house:
        async with house.working():
            for step in case["when"] if isinstance(case["when"], list) else [case["when"]]:
                await _happens(house, model, step)
        found = {"ran": ran, **await _found(house, model)}
    for name, expected in case["then"].items():
        assert fits(expected, _part(found, name)), f"{name}: {_part(found, name)}"


def _options(given: Json, url: str, ran: list[Json]) -> dict[str, Any]:
    """What the house is opened with."""

    def prompt() -> str:
        if given.get("instructions") == "missing":
            raise ConfigurationError("BASE_PROMPT.txt is missing")
        return SYSTEM

    names = given.get("models", ["scripted"])
    backends = {name: Backend(base_url=url, model=name, **given.get("model", {})) for name in names}
    roles, retries = Roles(base=tuple(names)), given.get("retries", 0)
    tools = given.get("tools", {"echo": {}})
    return {
        "gates": [_gate(name, tool or {}, ran) for name, tool in tools.items()],
        "done": given.get("done", True),
        "ephemeral": given.get("ephemeral", ()),
        "wards": replace(WARDS, **given.get("wards", {})),
        "context": Context(**given.get("context", {})),
        "clock": FakeClock(),
        "prompt": prompt,
        "llm": Llm(backends=backends, roles=roles, max_retries=retries),
    }


def _gate(name: str, tool: Json, ran: list[Json]) -> Gate:
    async def act(_caller: Caller, args: Json) -> object:
        ran.append({name: args})
        if "fails" in tool:
            raise ToolFailed(tool["fails"])
        said = tool.get("gives", args.get("say", ""))
        return said * tool.get("times", 1)

    takes = tool.get("takes", {"say": {"type": "string"}})
    rest = {"required": tool.get("needs", []), "additionalProperties": False}
    return Gate(name, act, parameters={"type": "object", "properties": takes, **rest})


async def _happens(house: House, model: ModelServer, step: Json) -> None:
    model.script(*map(_answer, step.get("model", ())))
    asked = len(model.requests)
    await house.incoming(step["say"])
    if step.get("until") == "asked":
        await model.request_arrived(asked + 1)
    else:
        await house.settled()


def _answer(said: Json | str) -> world.Step:
    """What the model does: a text, a mapping, or the name of a failure."""
    if isinstance(said, str):
        return FAILURES.get(said, world.Text(said))
    if "fail" in said:
        return world.Fail(said["fail"])
    how: Json = {key: said[key] for key in ("text", "finish") if key in said}
    if "usage" in said:
        how["usage"] = Usage(said["usage"][0], said["usage"][1], 0)
    return (
        world.Calls(tuple(map(_use, said["calls"])), **how)
        if "calls" in said
        else world.Text(**how)
    )


def _use(call: Json) -> world.Use:
    ((name, arguments),) = ((key, value) for key, value in call.items() if key != "id")
    return world.Use(name, arguments, call.get("id"))


async def _found(house: House, model: ModelServer) -> Json:
    """All that a rule may speak of."""
    (branch,) = await house.rows("SELECT id FROM branches")
    story = await LoomReader(house.database).story(branch["id"])
    turns = lines(story)
    chats = [seen for seen in model.requests if not world.is_for_summary(seen.body)]
    return {
        "said": await house.spoken(),
        "casts": story["casts"],
        "turns": turns,
        "folds": story["folds"],
        "record": str(turns),
        "observations": [seen for turn in turns for seen in turn["observations"]],
        "requests": len(chats),
        "summaries": len(model.requests) - len(chats),
        "asked": [seen.body["model"] for seen in chats],
        "systems": [seen.system for seen in chats],
        "tools": [[tool["function"]["name"] for tool in seen.body["tools"]] for seen in chats],
        "saw": [[{m["role"]: m["content"] or ""} for m in seen.messages[1:]] for seen in chats],
    }


def _part(found: Json, name: str) -> Any:
    key, _, which = name.partition(" ")
    if which == "count":
        return len(found[key])
    return found[key][-1 if which == "last" else int(which) - 1] if which else found[key]


def fits(expected: Any, found: Any) -> bool:
    """Whether what was found is as a rule says."""
    if isinstance(expected, str) and expected.startswith(("~", "!~")):
        return (expected.split("~", 1)[1] in str(found)) != expected.startswith("!")
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(key in found and fits(expected[key], found[key]) for key in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(fits, expected, found))
    return type(expected) is type(found) and bool(expected == found)
