"""`wintermute loom`: the record of conversations, also beside a running daemon.

A branch is shown request by request. An export that may be given away replaces secrets, people and texts.
"""

import json
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from wintermute import __version__
from wintermute.cli.opening import with_stores
from wintermute.cli.options import config_option, redacted, reporting, say
from wintermute.config.schema import Config
from wintermute.errors import WintermuteError
from wintermute.files import write_new
from wintermute.llm.calls import attempts
from wintermute.loom.reader import ForkPoint, LoomReader, lines, sums
from wintermute.mailbox.rooms import senders
from wintermute.messages import Json
from wintermute.stores import Stores
from wintermute.text import counted, harmless, one_line, shortened

_SERVER = r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*)(?::\d+)?"
PERSON = re.compile(rf'@[^\s:@"\\]{{1,255}}:{_SERVER}')
ROOM = re.compile(rf'[!#][^\s:@"\\]{{1,255}}:{_SERVER}')
TEXTS = frozenset(
    {"intent", "utterance", "result", "args", "arguments", "summary", "text", "content"}
    | {"block", "intent_block"}
)
"""The keys under which people's and models' words are stored."""
MOST_SAID = 4000
MOST_RESULT = 300


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """Change every text in a JSON value, keys as well."""
    match value:
        case str():
            return change(value)
        case list() | tuple():
            return [changed(item, change) for item in value]
        case dict():
            return {change(key): changed(item, change) for key, item in value.items()}
        case _:
            return value


def mask_texts(value: Any) -> Any:
    """Replace each text of a person or model by one of the same length (L-088)."""
    match value:
        case list() | tuple():
            return [mask_texts(item) for item in value]
        case dict():
            return {key: _without_texts(key, item) for key, item in value.items()}
        case _:
            return value


def _without_texts(key: str, value: Any) -> Any:
    if key in TEXTS:
        return changed(_listed(value), lambda text: f"[{len(text)} characters]")
    return value if key == "tools" else mask_texts(value)  # these texts are ours


def _listed(value: Any) -> Any:
    """Change the names of arguments too: a model may write anything there."""
    if isinstance(value, dict):
        return [_listed(item) for item in value.values()]
    return [_listed(item) for item in value] if isinstance(value, list) else value


def mask_people(
    value: Any, people: Iterable[tuple[str, str]], rooms: Iterable[str], known: Mapping[str, str]
) -> Any:
    """Replace each person and room by the same word everywhere (L-088).

    `people` are ids and display names, `rooms` ids; other ids are found by their form. `known` has
    the words for ids with a meaning of their own.
    """
    text = json.dumps(value, ensure_ascii=False)
    named = dict(known)
    listed = list(people)
    for one in (*(person for person, _ in listed), *PERSON.findall(text)):
        named.setdefault(one, _next("person", named))
    for one in (*rooms, *ROOM.findall(text)):
        named.setdefault(one, _next("room", named))
    looks = {**{quote(one, safe=""): word for one, word in named.items()}, **named}
    names = {
        look: named[person] for person, name in listed for look in _looks(name) if len(look) > 1
    }
    return changed(value, _replacing(looks, names))


def _next(noun: str, named: Mapping[str, str]) -> str:
    return f"{noun}{sum(word.startswith(noun) for word in named.values()) + 1}"


def _looks(name: str) -> tuple[str, str]:
    """Return the forms of a display name: as it is, and as an intent quotes it (`conversation.dispatcher.intent`)."""
    return name.strip(), " ".join(name.translate(str.maketrans("", "", "@:()<>")).split())


def _replacing(ids: Mapping[str, str], names: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces ids, and names that stand alone, longest first."""
    words = {**{name.casefold(): word for name, word in names.items()}, **ids}
    longest = sorted(map(re.escape, ids), key=len, reverse=True)
    alone = sorted(map(re.escape, names), key=len, reverse=True)
    parts = [*longest, *(rf"(?<!\w)(?i:{name})(?!\w)" for name in alone)]
    pattern = re.compile("|".join(parts) or r"(?!)")
    return partial(pattern.sub, lambda match: words.get(match[0]) or words[match[0].casefold()])


def branch_line(branch: Json) -> str:
    """Return one line for a branch."""
    where = branch["room_id"] or f"below {branch['parent_turn'] or branch['parent_cast'] or '-'}"
    counts = (counted(branch[what], what[:-1]) for what in ("casts", "turns", "tokens"))
    state = "running" if branch["running"] else "-"
    parts = (branch["id"], branch["kind"], where, branch["reason"], *counts)
    return "  ".join(map(one_line, (*parts, _time(branch["last"]), state)))


def story_lines(story: Json) -> list[str]:
    """Return the casts of a branch as lines; of the time before its fork only the id of that branch."""
    branch = story["branch"]
    casts = [cast for cast in story["casts"] if cast["branch_id"] == branch["id"]]
    folds: dict[str, list[Json]] = {}
    for fold in story["folds"]:
        folds.setdefault(fold["to_turn"], []).append(fold)
    said = list(_head(branch))
    for cast in casts:
        edits = (edit for edit in story["edits"] if edit["edited"] == cast["event_id"])
        said += ["", *_cast(cast, edits, folds)]
    every = [turn for cast in casts for turn in cast["turns"]]
    return [*said, "", f"in all: {counted(len(casts), 'cast')}, {_sums(every)}"]


def _head(branch: Json) -> Iterator[str]:
    where = branch["room_id"] or branch["kind"]
    parts = (branch["id"], where, branch["scope"], branch["reason"], _time(branch["created_at"]))
    yield "  ".join(map(one_line, parts))
    if branch["forked_from"]:
        yield f"goes on from {branch['forked_from']}"
    if branch["parent_turn"]:
        yield f"asked for by {branch['parent_turn']}"


def _cast(cast: Json, edits: Iterable[Json], folds: dict[str, list[Json]]) -> Iterator[str]:
    yield f"{cast['id']}  {_time(cast['started_at'])}  {cast['origin']}"
    yield from _block(cast["intent"], "  > ")
    for edit in edits:
        yield from _block(edit["text"], "  > edited, not answered: ")
    for turn in cast["turns"]:
        yield from _turn(turn)
        for fold in folds.get(turn["id"], ()):
            yield (
                f"  -- folded up to here: {counted(fold['turns'], 'turn')},"
                f" {fold['tokens_before']} to {fold['tokens_after']} tokens"
            )
    reason = f" ({one_line(cast['reason'])})" if cast["reason"] else ""
    yield f"  {cast['state']}{reason}: {_sums(cast['turns'])}"


def _turn(turn: Json) -> Iterator[str]:
    model = one_line("/".join(filter(None, (turn["backend"], turn["model"]))))
    yield f"  {turn['id']}  {model or '-'}  {_counts(turn)}"
    if turn["error"] is not None:
        yield from _block(turn["error"], "    no answer: ")
    if turn["utterance"]:
        yield from _block(turn["utterance"], "    ")
    observations = turn["observations"]
    for n, call in enumerate(turn["calls"]):
        yield "    " + _called(call, observations[n] if n < len(observations) else None)
    for reward in turn["rewards"]:
        yield f"    reward {reward['value']:+d}"
    for child in turn["children"]:
        yield f"    began {child['branch']} ({child['state'] or 'waiting'})"


def _called(call: Json, seen: Json | None) -> str:
    args = call["arguments"] if seen is None or seen["args"] is None else _json(seen["args"])
    line = f"{call['name']} {shortened(args, MOST_RESULT)} -> "
    if seen is None:
        return one_line(line) + " not run"
    if seen["result"] is None:
        return one_line(line) + " no result"
    result = seen["result"] if isinstance(seen["result"], str) else _json(seen["result"])
    return one_line(
        f"{line}{'error: ' if seen['is_error'] else ''}{shortened(result, MOST_RESULT)}"
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _sums(turns: list[Json]) -> str:
    return f"{counted(len(turns), 'turn')}, {_counts(sums(turns))}"


def _counts(counted: Json) -> str:
    cached = f" ({counted['tokens_cached']} cached)" if counted["tokens_cached"] else ""
    return f"{counted['tokens_in']} in{cached}, {counted['tokens_out']} out, {counted['ms']} ms"


def _time(stamp: str) -> str:
    return stamp[:19].replace("T", " ")


def _block(text: str, begin: str) -> Iterator[str]:
    """Yield a text of several lines so that none looks like a line of ours."""
    first, *others = [harmless(line) for line in shortened(text, MOST_SAID).splitlines()] or [""]
    yield begin + first
    margin = " " * len(begin)
    yield from (f"{margin}| {line}" for line in others)


@click.group("loom")
def command() -> None:
    """Read, export and fork the record of all conversations.

    A branch is one version of a conversation. BRANCH is its id, or the id of a room for its newest
    branch.

    Example: wintermute loom list
    """


@command.command("list")
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many branches."
)
@reporting
def list_(ctx: click.Context, limit: int, as_json: bool) -> None:
    """Show the branches, newest first.

    A new conversation, `/new`, an edit, a fork, and somebody who joins or leaves start a branch.

    Example: wintermute loom list --limit 5
    """

    async def work(stores: Stores, _: Config) -> list[Json]:
        return await LoomReader(stores.database).branches(limit)

    branches = changed(with_stores(ctx, work), partial(redacted, ctx))
    _tell(
        ctx, branches, *(list(map(branch_line, branches)) or ["Nothing was said."]), as_json=as_json
    )


@command.command("show")
@click.argument("branch", metavar="BRANCH")
@reporting
def show(ctx: click.Context, branch: str, as_json: bool) -> None:
    """Show a branch, request by request, with tokens and times.

    Example: wintermute loom show branch_0123456789abcdef
    """
    story = _story(ctx, branch)
    _tell(ctx, story, *story_lines(story), as_json=as_json)


@command.command("export")
@click.argument("branch", metavar="BRANCH")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to this file instead of standard output.",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Everything that helps to understand a problem, as one JSON file.",
)
@click.option("--without-people", is_flag=True, help="Write person1, room1 for ids and names.")
@click.option("--without-texts", is_flag=True, help="Write lengths of texts, not the texts.")
@config_option
@click.pass_context
def export(
    ctx: click.Context,
    branch: str,
    output: Path | None,
    bundle: Path | None,
    without_people: bool,
    without_texts: bool,
) -> None:
    """Export a branch as JSON lines, one for each turn.

    Turns before a fork come first. Secrets of the configuration are always left out. An existing
    file is not overwritten.

    Example: wintermute loom export branch_0123456789abcdef --output turns.jsonl
    """
    if output and bundle:
        raise click.UsageError("either --output or --bundle: each writes one file")
    whole = with_stores(ctx, partial(_bundled, branch))
    known = whole.pop("known")
    whole = changed(whole, partial(redacted, ctx))
    if without_people:
        rooms = filter(None, [whole["branch"]["room_id"]])
        whole = mask_people(whole, known["people"], rooms, {known["bot"]: "bot"})
    if without_texts:
        whole = mask_texts(whole)
    if bundle:
        _write(ctx, bundle, [json.dumps(whole, indent=1)])
        return
    written = [json.dumps(line) for line in lines(whole)]
    if output:
        _write(ctx, output, written)
    else:
        say(ctx, *written)


@command.command("fork")
@click.argument("turn", metavar="TURN")
@reporting
def fork(ctx: click.Context, turn: str, as_json: bool) -> None:
    """Start a new branch after a turn, without anything later.

    Example: wintermute loom fork turn_0123456789abcdef
    """

    async def work(stores: Stores, _: Config) -> tuple[ForkPoint, str]:
        async with stores.database.transaction() as tx:  # nobody can join in between
            spot = _forkable(await LoomReader(stores.database).spot(turn))
            branch = await stores.conversations.branch(
                tx, spot.conversation_id, "fork", forked_from=turn
            )
        return spot, branch

    spot, branch = with_stores(ctx, work)
    values = {"branch": branch, "forked_from": turn, "room": spot.room_id, "left": spot.branch_id}
    where = spot.room_id or spot.conversation_id
    _tell(
        ctx,
        values,
        f"{branch} goes on from {turn}; {spot.branch_id} stays as it is.",
        f"The next message in {where} goes on there, with everything up to this turn.",
        as_json=as_json,
    )


def _forkable(spot: ForkPoint) -> ForkPoint:
    if spot.parent_turn is not None or spot.room_id is None:
        asked = f": fork {spot.parent_turn}, which asked for it" if spot.parent_turn else ""
        raise WintermuteError(
            f"{spot.turn_id} belongs to background work, which has no chat{asked}"
        )
    if spot.scope != spot.scope_now:
        raise WintermuteError(
            f"{spot.turn_id} belongs to {spot.scope}, and now {spot.scope_now} is in"
            f" {spot.room_id}, who must not see it: fork a turn since then"
        )
    return spot


def _story(ctx: click.Context, branch: str) -> Json:
    async def work(stores: Stores, _: Config) -> Json:
        reading = LoomReader(stores.database)
        return await reading.story(await reading.find(branch))

    story: Json = changed(with_stores(ctx, work), partial(redacted, ctx))
    return story


async def _bundled(branch: str, stores: Stores, config: Config) -> Json:
    """Return a branch with everything it refers to; under `known` the people in it."""
    reading = LoomReader(stores.database)
    story = await reading.story(await reading.find(branch))
    turns = [turn for cast in story["casts"] for turn in cast["turns"]]
    hashes = {turn["prompt_hash"] for turn in turns if turn["prompt_hash"]}
    return {
        "wintermute": __version__,
        "python": platform.python_version(),
        **story,
        "prompts": await reading.prompts(hashes),
        "model_calls": await attempts(stores.database, [cast["id"] for cast in story["casts"]]),
        "known": {
            "people": [
                (config.owner.user_id, ""),
                *await senders(stores.database, [story["branch"]["conversation_id"]]),
            ],
            "bot": config.matrix.user_id,
        },
    }


def _write(ctx: click.Context, path: Path, texts: list[str]) -> None:
    try:
        write_new(path, "".join(f"{redacted(ctx, text)}\n" for text in texts).encode())
    except FileExistsError as error:
        raise WintermuteError(f"{path} exists: name another file, or remove it") from error
    except OSError as error:
        raise WintermuteError(f"{path} cannot be written: {error.strerror}") from error


def _tell(ctx: click.Context, values: Any, *lines: str, as_json: bool) -> None:
    """Print JSON, in which nothing can steer a terminal, or lines."""
    say(ctx, *([json.dumps(values, indent=2)] if as_json else lines))
