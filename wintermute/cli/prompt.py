"""`wintermute prompt`: the prompt of the next message, part by part."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import click

from wintermute.cli.opening import with_stores
from wintermute.cli.options import reporting, tell
from wintermute.clock import SystemClock
from wintermute.config.schema import Config
from wintermute.conversation.toolbox import AnyTool, Caller, Toolbox
from wintermute.conversation.view import (
    ViewSettings,
    blocks,
    known_changes,
    left_out,
    messages,
    smaller,
    summary_text,
)
from wintermute.ids import new_id
from wintermute.llm.models import Models
from wintermute.llm.provider_fields import PROVIDER_FIELDS, without_fields
from wintermute.llm.tokens import estimate
from wintermute.loom.reader import LoomReader
from wintermute.loom.records import BranchView
from wintermute.messages import Json, Request, Size
from wintermute.prompt.assemble import DIVIDER, SUMMARY, pieces
from wintermute.prompt.context_block import Layout, lines_in, merged_block, next_block, parts_of
from wintermute.prompt.context_builder import ContextBuilder, read_texts
from wintermute.prompt.tool_names import DELEGATING
from wintermute.register import plain_tools
from wintermute.stores import Stores
from wintermute.text import counted, harmless
from wintermute.tools.definition import OwnTool
from wintermute.tools.night_tool import NIGHT

NEWEST = 200  # branches searched for the owner's


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A part of the prompt: its place `where`, its heading `name`, and its estimated tokens."""

    where: str
    name: str
    tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class WholePrompt:
    """All parts of a request. `window`: the tokens that it may have.

    `cut`: the parts that would be left out to fit, in a line each.
    """

    branch: str | None
    scope: str
    layout: Layout
    size: Size
    parts: tuple[PromptPart, ...]
    window: int
    cut: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """The tokens of all parts."""
        return sum(part.tokens for part in self.parts)


@click.command("prompt")
@click.option("--room", metavar="R", help="A room or conversation; default: the owner's newest.")
@reporting
def command(ctx: click.Context, room: str | None, as_json: bool) -> None:
    """Show the prompt that the model would get now, part by part.

    First come the system message and the tools, then the conversation, then the block of the next
    message. Messages are only counted; `wintermute loom show` prints them. Tokens are estimates: a
    third of the bytes. The last lines say what would be cut to fit the window.

    Example: wintermute prompt --room '!abc:example.org'
    """

    async def work(stores: Stores, config: Config) -> WholePrompt:
        return await _whole(stores, config, room)

    found = with_stores(ctx, work)
    values = {**asdict(found), "tokens": found.tokens}
    tell(ctx, values, *map(harmless, _lines(found)), as_json=as_json)


async def _whole(stores: Stores, config: Config, room: str | None) -> WholePrompt:
    reader = LoomReader(stores.database)
    branch, scope = await _branch(reader, config, room)
    past = BranchView(None, ())
    if branch is not None:
        past = await stores.casts.past(branch, await stores.folds.newest(branch))
    models = Models(config.llm, stores.database, SystemClock(), new_id, config.timezone)
    await models.load_counts()
    size = models.sizes("base")[0]
    layout = config.context.layout
    texts = read_texts(stores.prompts, config.opening, wiki=config.wiki)
    gather = ContextBuilder(stores, texts.instructions, SystemClock(), layout, small=texts.small)
    tools = (*described(config, stores), *await _of_nights(stores, scope))
    toolbox = await Toolbox(tools).within(scope)
    offered = toolbox.definitions(size, done=config.loop.require_done_tool)
    summary = summary_text(past.fold)
    system = await gather.system(scope, toolbox.offered(size), None, summary, size)
    before = [*blocks(past)]
    changing_parts = await gather.changing_parts(scope, None, size, anew=not any(before))
    looks = ViewSettings(layout, frozenset(config.tools.ephemeral))
    shown = lines_in(known_changes(past, looks.hidden))
    news = next_block(changing_parts, lines_in(before), shown=shown) if changing_parts else ""
    parts = [
        *_parts("system", pieces(system)),
        *_tools(offered),
        *_messages(past, looks),
        *_parts("told before", parts_of(merged_block(before)) if layout == "append" else ()),
        *_parts("next message", parts_of(news)),
    ]
    view = (*messages(system, past, looks), {"role": "user", "content": f"…\n\n{news}"})
    cut = tuple(_cut(models, Request(view, offered)))
    return WholePrompt(branch, scope, layout, size, tuple(parts), models.window("base"), cut)


def described(config: Config, stores: Stores) -> tuple[AnyTool, ...]:
    """List all tools that a model is told of."""
    handing = sorted(DELEGATING) if config.levels else ()
    asked_for = config.sub_sessions.max_depth is not None
    others = (Described(name, for_small=asked_for) for name in handing)
    return (*plain_tools(config, stores), *others)


class Described(OwnTool):
    """A tool to be looked at, not used."""

    durable = False

    def __init__(self, name: str, *, for_small: bool = True) -> None:
        self.name, self.for_small = name, for_small

    async def run(self, caller: Caller, args: Json) -> object:
        raise TypeError(f"{self.name} is only looked at")


async def _of_nights(stores: Stores, scope: str) -> tuple[Described, ...]:
    if not await stores.nights.has_news(scope):
        return ()
    return (Described(NIGHT),)


def _cut(models: Models, whole: Request) -> Iterator[str]:
    """Yield the parts that would be left out of a request, if old messages are not summed up before."""
    most, asked = models.window("base"), whole
    while models.tokens("base", asked) > most and (less := smaller(asked.messages, kept=1)):
        asked = replace(asked, messages=less)
    known = [*left_out(whole.messages)]
    yield from (line for line in left_out(asked.messages) if line not in known)
    if models.tokens("base", asked) > most:
        yield "even then it is too much"


async def _branch(reader: LoomReader, config: Config, room: str | None) -> tuple[str | None, str]:
    """Return the branch that is asked for and its scope; None: there are no messages yet."""
    if room is not None:
        found = await reader.branch(await reader.find(room))
        return found["id"], found["scope"]
    mine = config.owner.scope
    newest = (each for each in await reader.branches(NEWEST) if each["scope"] == mine)
    branch = next((each["id"] for each in newest if not each["parent_cast"]), None)
    return branch, mine


def _tools(tools: tuple[Json, ...]) -> Iterator[PromptPart]:
    for tool in tools:
        text = json.dumps(tool["function"], ensure_ascii=False)
        yield PromptPart("tools", tool["function"]["name"], estimate(tool), text)


def _parts(where: str, named: tuple[tuple[str, str], ...]) -> Iterator[PromptPart]:
    for name, part in named:
        text = part.removeprefix(DIVIDER)
        yield PromptPart(where, name or "-", estimate(text), text)


def _messages(past: BranchView, looks: ViewSettings) -> Iterator[PromptPart]:
    """Yield the messages without their words; `wintermute loom show` prints them."""
    said = messages("" if looks.layout == "system" else None, past, looks)
    if past.fold is not None and looks.layout == "append":
        text = f"# {SUMMARY}\n{summary_text(past.fold)}"
        yield PromptPart("conversation", SUMMARY, estimate(text), text)
    if past.casts:
        told = sum(estimate(text) for text in blocks(past)) if looks.layout == "append" else 0
        kept = sum(estimate(each[PROVIDER_FIELDS][-1]) for each in said if PROVIDER_FIELDS in each)
        tokens = max(0, estimate(without_fields(said)) + kept - told)
        yield PromptPart("conversation", counted(len(said), "message"), tokens, "")


def _lines(found: WholePrompt) -> Iterator[str]:
    where = found.branch or "a new conversation"
    yield f"{where}, {found.scope}, layout {found.layout}, texts for {found.size} models"
    before = ""
    for part in found.parts:
        if part.where != before:
            before = part.where
            tokens = sum(each.tokens for each in found.parts if each.where == part.where)
            yield f"\n== {part.where}: {tokens:,} tokens"
        yield f"-- {part.name}: {part.tokens:,}"
        if part.text:
            yield f"{part.text}\n"
    yield f"\nin all about {found.tokens:,} tokens; {found.window:,} fit beside an answer"
    yield from (f"cut to fit: {line}" for line in found.cut)
