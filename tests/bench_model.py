"""What a real model server has to read, and what a real model makes of our prompt.

    WINTERMUTE_MODEL_URL=http://127.0.0.1:8080/v1 python -m tests.bench_model
    python -m tests.bench_model --only tokens kept --layout system --size small

Prints the tables of docs/benchmarks.md that need a model: `make bench-model`. Each request is one of
the daemon's own parts; the server's count of cached tokens stands beside our count of bytes. It takes
hours on a slow machine: parts can be run alone. `--set calls_as_text=true` is a key of the backend,
JSON after the sign; `--label` says in the tables which server it was.
"""

import argparse
import asyncio
import json
import os
import tempfile
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench_runner import options, show, table_row
from tests.world.house import PROMPTS
from tests.world.model import Use
from tests.world.promised import promise
from tests.world.relay import Passed, Relay, serving
from tests.world.talking import Asked, Heard, Manner, Talk, talking
from wintermute.messages import Json, Request
from wintermute.tasks.schedules import PlanRequest
from wintermute.templates import fill, read_template

REQUESTS = Path(__file__).parent / "requests.toml"
ROOMS = ("!one:test", "!two:test")
MINUTE = 61.0
SHORT = 48
"""Tokens of an answer where only the question is measured."""
KEPT = {
    "append_memory": Use("append_memory", {"entry": "Ann is allergic to nuts."}),
    "task": Use(
        "task", {"action": "add", "content": "Water", "schedule_type": "daily", "at": "18:00"}
    ),
    "add_skill": Use(
        "add_skill",
        {"skill_name": "tea", "summary": "How to make tea", "documentation": "Boil, pour, wait."},
    ),
}
Judge = Callable[[Heard], bool]


def made(kind: str) -> Judge:
    """Whether a task was made that is due like this, and no other."""

    def right(heard: Heard) -> bool:
        plans = [PlanRequest.of(made) for made in _added(heard)]
        return [plan.schedule_type or (plan.at and "once") for plan in plans] == [kind]

    return right


def _added(heard: Heard) -> list[Json]:
    return [
        call.arguments
        for call in heard.calls
        if call.name == "task" and not call.failed and call.arguments.get("action") == "add"
    ]


def used(tool: str) -> Judge:
    """Whether a tool was used without a mistake."""
    return lambda heard: tool in heard.done


def looked(heard: Heard) -> bool:
    """Whether a list was given in words, or asked for by a call; nothing was changed."""
    said = any(answer and '"action"' not in answer for answer in heard.answers)
    return all(_looks(call) for call in heard.calls) and said


def _looks(call: Asked) -> bool:
    return call.name == "task" and call.arguments.get("action") == "list"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request and how its answer is judged."""

    text: str
    right: Judge


FIVE = (
    Wanted("Remember that I am allergic to penicillin.", used("append_memory")),
    Wanted("Remind me tomorrow at 9 to call Dr. Weber.", made("once")),
    Wanted("Every day at 18:00 remind me to water the plants.", made("daily")),
    Wanted("Which tasks do I have?", looked),
    Wanted(
        "Learn this: to make my tea, boil water, wait two minutes, pour, steep four minutes.",
        used("add_skill"),
    ),
)


def wanted_in_three_languages() -> list[tuple[str, str, str]]:
    """Language, right tool and text of each request."""
    found = tomllib.loads(REQUESTS.read_text("utf-8"))["requests"]
    return [(each["language"], each["tool"], each["text"]) for each in found]


class ModelBench:
    """A relay before the model, and how it is asked."""

    def __init__(self, relay: Relay, manner: Manner, samples: int, label: str) -> None:
        self._relay = relay
        self._manner = manner
        self._samples = samples
        self._label = label or f"{manner.layout}, {manner.size}"

    async def tokens(self) -> None:
        """The first request of an empty installation, and the next one in a new minute."""
        self._head("request", "tokens", "new", "kept (server)", "kept (bytes)", "first token")
        self._relay.sampling = {"max_tokens": SHORT}
        async with AsyncExitStack() as stack:
            talk = await self._talk(stack)
            [first, *_] = (await talk.say("hi")).requests
            talk.clock.advance(MINUTE)
            [later, *_] = (await talk.say("and how are you today?")).requests
        state = "first" if first.cached else "first, cold"
        self._row(state, *_figures(first, None))
        self._row("next message, new minute", *_figures(later, first))

    async def kept(self) -> None:
        """What the second request of an answer keeps after a call that changes what is in view."""
        self._head(
            "second request after", "tokens", "new", "kept (server)", "kept (bytes)", "first token"
        )
        self._relay.sampling = {"max_tokens": SHORT}
        for name, use in KEPT.items():
            async with AsyncExitStack() as stack:
                talk = await self._talk(stack)
                self._relay.instead = use
                first, second, *_ = (await talk.say("please keep that")).requests
            self._row(name, *_figures(second, first))

    async def calls(self) -> None:
        """Five requests, each in an installation of its own, as often as there are samples."""
        self._head("request", "right", "of")
        total = 0
        for wanted in FIVE:
            right = 0
            for n in range(self._samples):
                heard = await self._alone(wanted.text, n, task=wanted.right is looked)
                right += wanted.right(heard)
                self._tell(wanted.text, wanted.right(heard), heard)
            total += right
            self._row(wanted.text, right, self._samples)
        self._row("all", total, len(FIVE) * self._samples)

    async def languages(self) -> None:
        """Thirty requests of people who do not know the prompt; a call that none asked for is false."""
        self._head("language", "right calls", "of", "false calls", "of")
        found: dict[str, list[int]] = {}
        for language, tool, text in wanted_in_three_languages():
            counts = found.setdefault(language, [0, 0, 0, 0])
            for n in range(self._samples):
                heard = await self._alone(text, n)
                at, hit = (2, bool(heard.calls)) if tool == "none" else (0, tool in heard.done)
                counts[at] += hit
                counts[at + 1] += 1
                self._tell(text, hit, heard)
        for language, counts in found.items():
            self._row(language, *counts)
        self._row("all", *(sum(column) for column in zip(*found.values(), strict=True)))

    async def rooms(self) -> None:
        """Two rooms in turn and a summary in the background between them."""
        self._head("request", "tokens", "new", "kept (server)", "kept (bytes)", "first token")
        self._relay.sampling = {"max_tokens": SHORT}
        before: dict[str, Passed] = {}
        async with AsyncExitStack() as stack:
            talk = await self._talk(stack)
            for turn in range(3):
                for room in ROOMS:
                    talk.clock.advance(MINUTE)
                    text = f"message {turn + 1}, in a few words please"
                    [passed, *_] = (await talk.say(text, room)).requests
                    self._row(
                        f"{room[1:4]}, message {turn + 1}", *_figures(passed, before.get(room))
                    )
                    before[room] = passed
                question = f"Sum this up.\n<history>\nTalk {turn}: of the weather.\n</history>"
                await talk.house.models.ask("compaction", _asking(question))
                self._row("background call", *_figures(self._relay.passed[-1], None))

    async def unasked(self) -> None:
        """What one question of the harvest costs the next answer, were it asked by day."""
        self._head("request", "tokens", "new", "kept (server)", "kept (bytes)", "first token")
        self._relay.sampling = {"max_tokens": SHORT}
        lines = (f"Ann (@ann:test): I have lived at number {n} for {n} years" for n in range(20))
        shown = {"transcript": "\n".join(["[Monday, 2026-05-04]", *lines])}
        question = fill(read_template(PROMPTS, "MEMORY_HARVEST_PROMPT.txt"), shown)
        before: Passed | None = None
        async with AsyncExitStack() as stack:
            talk = await self._talk(stack)
            for text in ("hi", "and how are you?", "and the weather?", "and the news?"):
                [passed, *_] = (await talk.say(text)).requests
                self._row(text, *_figures(passed, before))
                before = passed
                talk.clock.advance(MINUTE)
                if text == "and how are you?":
                    await talk.house.models.ask_in_background("harvest", _asking(question))
                    self._row("harvest of 20", *_figures(self._relay.passed[-1], None))

    async def _alone(self, text: str, seed: int, *, task: bool = False) -> Heard:
        """One message to an empty installation, or to one that has a task."""
        self._relay.sampling = {"temperature": 0.3, "seed": seed}
        async with AsyncExitStack() as stack:
            talk = await self._talk(stack)
            if task:
                plan = PlanRequest(schedule_type="daily", at="18:00")
                await promise(talk.house, "Water the plants", plan)
            return await talk.say(text)

    async def _talk(self, stack: AsyncExitStack) -> Talk:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return await stack.enter_async_context(talking(folder, self._relay, self._manner))

    def _head(self, *names: str) -> None:
        print(f"\n{self._label}\n")  # noqa: T201
        self._row(*names)
        self._row(*("---" for _ in names))

    def _row(self, *cells: object) -> None:
        show([table_row(*cells)])

    def _tell(self, text: str, hit: bool, heard: Heard) -> None:
        """What is behind a figure, for whoever looks into it."""
        calls = ", ".join(f"{call.name} {json.dumps(call.arguments)}" for call in heard.calls)
        said = " / ".join(heard.answers)[:100].replace("\n", " ")
        print(f"    {'+' if hit else '-'} {text[:40]!r}: {calls or 'no call'}: {said}", flush=True)  # noqa: T201


def _asking(question: str) -> Request:
    return Request(({"role": "user", "content": question},))


def _figures(passed: Passed, before: Passed | None) -> Sequence[object]:
    share = f"{passed.cached / passed.tokens:.1%}" if passed.tokens else "not told"
    ours = f"{passed.kept(before):.1%}" if before else "-"
    return (
        f"{passed.tokens:,}",
        f"{passed.tokens - passed.cached:,}",
        share,
        ours,
        f"{passed.first:.1f} s",
    )


async def measure(chosen: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """The chosen parts, one after another: they share the server's cache as rooms do."""
    more: Json = dict(_pair(each) for each in chosen.set)
    manner = Manner(chosen.layout, chosen.size, more)
    async with serving(chosen.context, environment) as url, Relay(url) as relay:
        bench = ModelBench(relay, manner, chosen.samples, chosen.label)
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "tokens": bench.tokens,
            "kept": bench.kept,
            "calls": bench.calls,
            "languages": bench.languages,
            "rooms": bench.rooms,
            "unasked": bench.unasked,
        }
        for name in chosen.only or parts:
            await parts[name]()


def _pair(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main() -> None:
    """Parse and run."""
    parser = options(__doc__)
    parts = ("tokens", "kept", "calls", "languages", "rooms", "unasked")
    parser.add_argument("--only", nargs="+", choices=parts)
    parser.add_argument("--layout", choices=("append", "system"), default="append")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--context", type=int, default=16384, help="of a server that is started")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON")
    parser.add_argument("--label", default="")
    asyncio.run(measure(parser.parse_args(), os.environ))  # noqa: TID251


if __name__ == "__main__":
    main()
