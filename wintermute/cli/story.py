"""The story of a branch, cast by cast, for a person at a terminal. Pure."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from wintermute.loom.reading import sums
from wintermute.messages import Json
from wintermute.text import counted, harmless, one_line, shortened

MOST_SAID = 4000
MOST_RESULT = 300


def branch_line(branch: Json) -> str:
    """One branch in a list."""
    where = branch["room_id"] or f"below {branch['parent_turn'] or branch['parent_cast'] or '-'}"
    counts = (counted(branch[what], what[:-1]) for what in ("casts", "turns", "tokens"))
    state = "running" if branch["running"] else "-"
    parts = (branch["id"], branch["kind"], where, branch["reason"], *counts)
    return "  ".join(map(one_line, (*parts, _time(branch["last"]), state)))


def story_lines(story: Json) -> list[str]:
    """A branch with what was said and done in it; what came before its fork is only named."""
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
    line = f"{call['name']} {_short(args)} -> "
    if seen is None:
        return one_line(line) + " not run"
    if seen["result"] is None:
        return one_line(line) + " no result"
    result = seen["result"] if isinstance(seen["result"], str) else _json(seen["result"])
    return one_line(f"{line}{'error: ' if seen['is_error'] else ''}{_short(result)}")


def _short(text: str) -> str:
    return shortened(text, MOST_RESULT)


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
    """Text of several lines, none of which can pass for a line of ours."""
    first, *others = [harmless(line) for line in shortened(text, MOST_SAID).splitlines()] or [""]
    yield begin + first
    margin = " " * len(begin)
    yield from (f"{margin}| {line}" for line in others)
