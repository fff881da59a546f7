"""The messages of a request, built from the loom, and smaller versions of them. Pure.

The same record gives the same bytes. Each smaller request is strictly smaller than the one before,
so retrying always ends (L-036).
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from wintermute.llm.provider_fields import PROVIDER_FIELDS
from wintermute.loom.records import BranchView, Cast, Fold, Observation, Turn
from wintermute.memory.ranking import Query
from wintermute.messages import BROKEN_OFF, CLOSED, OPENED, REFUSED, Call, Json, json_in, mapping
from wintermute.prompt.assemble import (
    CORE,
    DIVIDER,
    INSTRUCTIONS,
    MEMORIES,
    RANKED,
    SKILLS,
    SUMMARY,
    TASKS,
    WIKI,
    inert,
    pieces,
)
from wintermute.prompt.context_block import (
    LEFT_OUT_BEFORE,
    Layout,
    fewer_memories,
    merged_block,
    of_result,
    parts_of,
    without_blocks,
)
from wintermute.text import plain, shortened, untagged
from wintermute.wiki.recall import BEGINNINGS, RECALL, as_model_text, is_last_word, notice

MOST_RESULT_CHARACTERS = 50_000  # L-026
MOST_REPLY_CHARACTERS = 500  # of the last reply, in the memory query (P-012)
ERASED = "[this message was erased]"  # a redaction or `forget`; many servers refuse empty messages
UNANSWERED = "[no answer was given]"
CUT_OFF = (
    "this answer was cut off, so none of its calls is carried out: call again, with less at once"
)
CALL_DONE = "Call `done` with your complete answer."
DECAYING = ("recall", "read_file", "fetch_url")  # L-056
AGE = re.compile(r"\[written .* ago\]")
INTERRUPTED = "interrupted: outcome unknown"
BETWEEN = re.compile(r"(?s)<event kind=.*?\n</event>\n\n|<room_context>\n.*?</room_context>\n")
"""The parts of an intent that come before its message."""
UNSEEN = {*REFUSED, "model_unavailable"}
"""End reasons of casts whose message no later request shows, unless it is tried again."""
SEEN = ("stopped", "internal_error")
"""End reasons of casts whose result may be a partial answer that people saw, with a notice below it."""
NOT_SHOWN = "[what it gave is not shown any more]"
PAGE = re.compile(r'<memory name="([^"]*)"')
RECALLED = (*BEGINNINGS, f"[ephemeral:{RECALL}]")
"""Prefixes of a message with the results of recall tags."""
KEPT_CHARACTERS = 400
MARK = "\n[… {count} characters left out to fit the model's window …]\n"
EARLIER = "[… {count} earlier messages left out to fit the model's window …]"
TOO_LARGE = "Too large for the model's window: the {part} alone. {help}"
OPENING = re.compile(
    rf"(# {SUMMARY}\n\[Folded: turns 1-.*?{DIVIDER})?"
    rf"(?:{re.escape(EARLIER).replace(re.escape('{count}'), '([0-9]{1,9})')}\n\n)?"
    rf"(?:({OPENED}.*?{CLOSED})\n\n)?",
    re.DOTALL,
)
HELP: Mapping[str, str] = {
    INSTRUCTIONS: "Shorten `BASE_PROMPT.txt` in the folder `prompts`.",
    CORE: "Shorten `core.md` in the data folder.",
    MEMORIES: "`/memory` shows them; shorten `MEMORIES.txt` in the data folder.",
    WIKI: "Shorten `meta/Index.md` of the wiki.",
    TASKS: "`/tasks` lists them, and `/tasks cancel ID` takes one away.",
    SKILLS: "`wintermute skill list` shows them, and `wintermute skill remove` takes one away.",
}
"""The way a person can shorten a part of the prompt, by its heading (F-023)."""
LEFT = re.compile(r"\[… [0-9]+ [a-z ]+ left out to fit the model's window …\]")
FEWEST_CUT = 4
"""The fewest messages of people to drop at once, so that the next requests have the same beginning."""


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """Settings of the view. Results of the gates in `hidden` are never shown (L-055)."""

    layout: Layout = "append"
    hidden: frozenset[str] = frozenset()


APPENDED = ViewSettings()


def messages(
    system: str | None, past: BranchView, looks: ViewSettings = APPENDED
) -> tuple[Json, ...]:
    """Return the system prompt, then every cast's intent, utterances and observations, in order.

    The summary of folded turns opens the first message; in the layout `system` only if there is no
    system message. Several casts for one event (the model was away, L-034) show their intent once.
    Turns that record a failed call are not shown (L-033), nor those that a redaction emptied.
    """
    result: list[Json] = [] if system is None else [{"role": "system", "content": system}]
    summary = opening(past.fold)
    if looks.layout == "system" and summary:
        heading = f"# {SUMMARY}\n{untagged(summary_text(past.fold))}\n\n"
        summary = heading if system is None else ""
    casts = shown_casts(past.casts)
    untold = _before_blocks(casts)
    for n, cast in enumerate(casts):
        goes_on = n + 1 < len(casts) and _is_again(casts[n + 1], cast)
        if n and _is_again(cast, casts[n - 1]):
            _append_text(result, _additions(cast, casts[n - 1]) if looks.layout == "append" else "")
        else:
            # Many chat templates want turns to alternate, and an answer after a tool's result.
            if result and result[-1]["role"] in ("user", "tool"):
                result.append({"role": "assistant", "content": UNANSWERED})
            result.append({"role": "user", "content": summary + _intent(n, casts, looks)})
            summary = ""
        result += _cast_messages(cast, past.fold, looks, untold, goes_on=goes_on)
    return tuple(result)


def summary_text(fold: Fold | None) -> str:
    """Return the summary in the form that the model sees (L-039)."""
    return f"[Folded: turns 1-{fold.turns}]\n{fold.summary}" if fold else ""


def opening(fold: Fold | None) -> str:
    """Return the summary under its heading, to put before the first message in view."""
    return f"# {SUMMARY}\n{inert(summary_text(fold))}{DIVIDER}" if fold else ""


def unseen(casts: Sequence[Cast]) -> frozenset[str]:
    """Return the failed casts of failing or refused messages: only their own requests show them (F-038, F-060)."""
    ends = {cast.key: cast.reason for cast in casts}
    vain = (cast for cast in casts if not any(map(is_shown, cast.turns)))
    return frozenset(cast.id for cast in vain if ends[cast.key] in UNSEEN)


def shown_casts(casts: Sequence[Cast]) -> tuple[Cast, ...]:
    """Return the casts in view, without those that gave nothing and were tried again.

    All casts of a message are at the place of its last: others may have passed it (F-060).
    """
    gone, last = unseen(casts), {cast.key: n for n, cast in enumerate(casts)}
    return tuple(
        cast
        for cast in sorted(without_refused_results(casts), key=lambda cast: last[cast.key])
        if cast.id not in gone
        and (casts[last[cast.key]].id == cast.id or any(map(is_shown, cast.turns)))
    )


def without_refused_results(casts: Sequence[Cast]) -> Iterator[Cast]:
    """Yield the casts in order; failing or refused ones without results of their newest turn."""
    ends = {cast.key: cast.reason for cast in casts}
    newest = {cast.key: turn.id for cast in casts for turn in filter(is_shown, cast.turns)}
    for cast in map(without_extras, casts):
        last = newest.get(cast.key) if ends[cast.key] in UNSEEN else None
        turns = tuple(_without_results(turn) if turn.id == last else turn for turn in cast.turns)
        yield replace(cast, turns=turns) if last else cast


def _without_results(turn: Turn) -> Turn:
    seen = (replace(each, result=NOT_SHOWN) for each in turn.observations)
    return replace(turn, observations=tuple(seen), context_block="")


def without_extras(cast: Cast) -> Cast:
    """Return a cast as it is shown: a bare one with its message alone."""
    return (
        replace(cast, intent=BETWEEN.sub("", cast.intent), context_block="") if cast.bare else cast
    )


def named_parts(messages: Sequence[Json]) -> str:
    """Name the parts of the prompt and the pages in a request for a person (F-038)."""
    texts = [str(message["content"] or "") for message in messages]
    parts = chain(pieces(prompt_of(tuple(messages)) or ""), *map(parts_of, texts[1:]))
    names = [MEMORIES if name == RANKED else name for name, text in parts if text.strip()]
    labels = [name.lower() for name in names if name in HELP and name != INSTRUCTIONS]
    labels += [f"the page *{plain(title)}*" for text in texts[1:] for title in PAGE.findall(text)]
    return ", ".join(dict.fromkeys(["what was said before", *labels]))


def blocks(past: BranchView) -> Iterator[str]:
    """Yield the context blocks in view since the newest fold, or of a cast that was running then."""
    made_at = past.fold.made_at if past.fold else 0
    for cast in shown_casts(past.casts):
        counts = is_since(cast, made_at)
        if cast.context_block and counts:
            yield cast.context_block
        for turn in cast.turns:
            if turn.context_block and (counts or turn.seq >= made_at) and is_shown(turn):
                yield turn.context_block


def is_since(cast: Cast, made_at: int) -> bool:
    """Return True if a cast was running when a fold was made, or began after it."""
    return not cast.turns or cast.turns[-1].seq > made_at or cast.state == "running"


def known_changes(past: BranchView, hidden: Collection[str]) -> Iterator[str]:
    """Yield the texts in view that tell of changes: context blocks and results of calls.

    Results of `hidden` gates are left out.
    """
    for cast in shown_casts(past.casts):
        yield cast.context_block
        for turn in filter(is_shown, cast.turns):
            for seen in turn.observations:
                if seen.completed and not seen.is_error and seen.gate not in hidden:
                    yield of_result(seen.gate, seen.args or {}, seen.result)
            yield turn.context_block


def _is_again(cast: Cast, before: Cast) -> bool:
    return cast.event_id is not None and cast.event_id == before.event_id


def _intent(n: int, casts: Sequence[Cast], looks: ViewSettings) -> str:
    """Return a message's text: in the layout `append` its first version and block, else the last."""
    if looks.layout == "append":
        text, block = casts[n].intent or ERASED, casts[n].context_block
        return f"{text}\n\n{block}" if block else text
    last = n
    while last + 1 < len(casts) and _is_again(casts[last + 1], casts[n]):
        last += 1
    return casts[last].intent or ERASED


def _additions(cast: Cast, before: Cast) -> str:
    """Return the additions when a message is tried again, such as its age by now (F-029)."""
    known = before.intent.splitlines()
    ages = [line for line in cast.intent.splitlines() if AGE.fullmatch(line) and line not in known]
    return "\n\n".join(filter(None, (*ages, cast.context_block)))


def _append_text(result: list[Json], text: str) -> None:
    """Append text to the last message."""
    if text and result[-1]["role"] == "assistant":
        result.append({"role": "user", "content": text})
    elif text:
        result[-1] = {**result[-1], "content": f"{result[-1]['content']}\n\n{text}"}


def _before_blocks(casts: Sequence[Cast]) -> frozenset[str]:
    """Return the casts before the first with a block: recorded before there were blocks."""
    first = next((n for n, cast in enumerate(casts) if cast.context_block or cast.bare), 0)
    return frozenset(cast.id for cast in casts[:first])


def _cast_messages(
    cast: Cast, fold: Fold | None, looks: ViewSettings, untold: Collection[str], *, goes_on: bool
) -> list[Json]:
    """Return the messages of a cast's turns; `goes_on`: another cast for the same event follows.

    Lookups of `untold` casts are not shown any more.
    """
    ended, hidden = cast.state != "running", looks.hidden
    if ended and (looks.layout == "system" or cast.id in untold or _is_folded_over(cast, fold)):
        hidden = hidden.union(DECAYING)  # L-056
    result: list[Json] = []
    for turn in filter(is_shown, cast.turns):
        result += turn_messages(turn, cast, hidden)
        is_over = ended and turn is cast.turns[-1] and not goes_on
        if not is_over and not turn.calls and cast.wards.get("require_done"):
            result.append({"role": "user", "content": CALL_DONE})  # L-012
        if turn.context_block and looks.layout == "append":
            _append_text(result, turn.context_block)
    if cast.reason == "text" and cast.result and any(map(recalls_in_vain, cast.turns[-1:])):
        result.append({"role": "assistant", "content": cast.result})  # W-032
    if cast.reason in SEEN and cast.result and cast.result != cast.last_words:
        result.append({"role": "assistant", "content": cast.result})  # seen while it grew
    return result


def recalls_in_vain(turn: Turn) -> bool:
    """Return True if a turn asked only for pages, and was refused more (W-032)."""
    only_recalls = bool(turn.calls) and all(call.name == RECALL for call in turn.calls)
    return only_recalls and any(is_last_word(seen.result) for seen in turn.observations)


def _is_folded_over(cast: Cast, fold: Fold | None) -> bool:
    """Return True if earlier turns were folded after the cast ended."""
    return fold is not None and bool(cast.turns) and cast.turns[-1].seq <= fold.made_at


def is_shown(turn: Turn) -> bool:
    """Return True if a turn is part of the view."""
    return turn.error is None and bool(turn.utterance or turn.calls)


def query(cast: Cast, earlier: Sequence[Cast], written: str) -> Query | None:
    """Return the query that ranks memories, in the person's words; None for other work (P-012, P-013)."""
    if cast.origin in ("timer", "system") or not written.strip():
        return None
    replies = (past.result for past in reversed(earlier) if past.state == "terminated")
    last_reply = next((reply for reply in replies if reply), "")
    return Query(written, last_reply[:MOST_REPLY_CHARACTERS])


def turn_messages(turn: Turn, cast: Cast, hidden: Collection[str] = ()) -> Iterator[Json]:
    """Yield an utterance and the result of each of its calls, as the model sees them (L-017).

    Results of `hidden` gates are left out. An answer given through `done` is shown as an utterance
    (L-011). Pages recalled by tags come after the calls: an utterance with the tags, and one
    message with their results (W-026).
    """
    if not turn.calls:
        yield {"role": "assistant", "content": turn.utterance or None}
        return
    done = next((seen for seen in turn.observations if _is_answer(seen)), None)
    calls = turn.calls[: done.n] if done else turn.calls
    tags = {n: tag for n, call in enumerate(calls) if (tag := _recall_tag(call))}
    named = {n: call for n, call in enumerate(calls) if n not in tags}
    seen = {observation.n: observation for observation in turn.observations}
    texts = [turn.utterance] if turn.utterance else []
    if named:
        by = turn.sender if all(call.via == "call" for call in named.values()) else ""
        message = {"role": "assistant", "content": turn.utterance or None}
        called = [_called(call) for call in named.values()]
        yield {
            **message,
            "tool_calls": called,
            PROVIDER_FIELDS: [by, turn.id, turn.provider_fields],
        }
        texts = []
    for n, call in named.items():
        content = _result(seen.get(n), _unrun(turn, cast, n), hidden)
        yield {"role": "tool", "tool_call_id": call.id, "content": content}
    if tags:
        yield {"role": "assistant", "content": "\n".join([*texts, *tags.values()])}
        results = (_tag_result(seen.get(n), _unrun(turn, cast, n), hidden) for n in tags)
        yield {"role": "user", "content": "\n".join(results)}
    if done is not None:
        yield {"role": "assistant", "content": as_text(done.result) or UNANSWERED}


def _unrun(turn: Turn, cast: Cast, n: int) -> str:
    """Return the reason why a call has no result: a cut answer, told once (F-071), or an ended cast."""
    if turn.finish_reason in BROKEN_OFF:
        return "see above" if n else CUT_OFF
    return "the cast had ended" if cast.state != "running" else ""


def _called(call: Call) -> Json:
    function = {"name": call.name, "arguments": _json_object(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _recall_tag(call: Call) -> str | None:
    """Return the recall tag that a call came from; None if it was another call."""
    if call.via != "tag" or call.name != RECALL:
        return None
    title = mapping(json_in(call.arguments)).get("title")  # a malformed call has no title
    return f"<{RECALL}>{title}</{RECALL}>" if isinstance(title, str) else None


def _is_answer(observation: Observation) -> bool:
    return observation.gate == "done" and observation.completed and not observation.is_error


def _json_object(arguments: str) -> str:
    """Return arguments as a JSON object: several servers parse them again and refuse anything else."""
    try:
        parsed = json.loads(arguments, parse_constant=_no_number)
    except (ValueError, RecursionError):
        parsed = None
    return arguments if isinstance(parsed, dict) else json.dumps({"unparsable": arguments[:2000]})


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is Python, not JSON")


def _result(observation: Observation | None, unrun: str, ephemeral: Collection[str]) -> str:
    if observation is None:
        return f"not run: {unrun}"
    if not observation.completed:
        return INTERRUPTED
    if observation.gate in ephemeral and not observation.is_error:
        return f"[ephemeral:{observation.gate}]"
    page = as_model_text(observation.result) if observation.gate == RECALL else None
    text = page or as_text(observation.result)
    if observation.is_error:
        text = f"error: {text}"
    return text if page else untagged(shortened(text, MOST_RESULT_CHARACTERS))


def _tag_result(observation: Observation | None, unrun: str, ephemeral: Collection[str]) -> str:
    """Return the result of a tag: a page, or the reason why there is none (W-035)."""
    text = _result(observation, unrun, ephemeral)
    return text if text.startswith(RECALLED) else notice(text.removeprefix("error: ") or ERASED)


def as_text(value: Any) -> str:
    """Return a gate's result or a `done` answer as text: strings unchanged, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def smaller(messages: tuple[Json, ...], kept: int) -> tuple[Json, ...] | None:
    """Return the next smaller form of a request; None if nothing can shrink.

    The oldest messages before the last `kept` go first. Then the largest text is halved in its
    middle: tool results before the rest. In between, the largest arguments of a call are cut down.
    Of the prompt, only memories are dropped: at first while they are more than half of the request,
    and otherwise last.
    """
    return (
        without_memories(messages, share=0.5)
        or _without_oldest(messages, kept)
        or _with_longest_halved(messages, {"tool"})
        or _without_fields(messages)
        or _without_arguments(messages)
        or _with_longest_halved(messages, {"user", "assistant"})
        or without_memories(messages)
    )


def prompt_of(messages: tuple[Json, ...]) -> str | None:
    """Return the system prompt of a request, if it has one."""
    return str(messages[0]["content"]) if messages and messages[0]["role"] == "system" else None


def too_large(messages: tuple[Json, ...]) -> str | None:
    """Return the error for a prompt part that is most of a request; None if there is none."""
    sizes: dict[str, int] = {}
    blocks = (parts_of(str(message["content"] or "")) for message in messages[1:])
    for name, text in chain(pieces(prompt_of(messages) or ""), *blocks):
        part = MEMORIES if name == RANKED else name
        sizes[part] = max(sizes.get(part, 0), len(text))
    largest = max(sizes, key=sizes.__getitem__)
    if largest not in HELP or sizes[largest] * 2 <= _size(messages):
        return None
    return TOO_LARGE.format(part=largest.lower(), help=HELP[largest])


def _size(messages: tuple[Json, ...]) -> int:
    return sum(len(str(message["content"] or "")) for message in messages)


def without_memories(messages: tuple[Json, ...], *, share: float = 0) -> tuple[Json, ...] | None:
    """Drop half of the newest memory list, if it is more than this share of the request."""
    for n, message in reversed(list(enumerate(messages))):
        before, opened, prompt, closed = "", "", str(message["content"] or ""), ""
        if message["role"] != "system":
            if not parts_of(prompt):
                continue
            before, opened, prompt = prompt.rpartition(OPENED)
            prompt, closed = prompt.removesuffix(CLOSED), CLOSED
        lengths = (len(text) for name, text in pieces(prompt) if name in (MEMORIES, RANKED))
        if next(lengths, 0) > share * _size(messages) and (less := fewer_memories(prompt)):
            lighter = {**message, "content": f"{before}{opened}{less}{closed}"}
            return (*messages[:n], lighter, *messages[n + 1 :])
    return None


def part_read(messages: tuple[Json, ...], intent: str, kept: int) -> tuple[int, int] | None:
    """Return the characters of the newest message that are shown, and its length; None for all.

    `kept`: the message is the first of this many at the end.
    """
    first = len(messages) - kept
    opens = all(message["role"] != "user" for message in messages[:first])
    begin, end = _said_range(str(messages[first]["content"]), opens=opens)
    return (end - begin, len(intent)) if end - begin < len(intent) else None


def left_out(messages: tuple[Json, ...]) -> Iterator[str]:
    """Yield the marks of left-out text in a request, each with the prompt part that has it."""
    for message in messages:
        text = str(message["content"] or "")
        named = pieces(text) if message["role"] == "system" else parts_of(text)
        for name, part in named:
            yield from (f"{name}: {mark}" for mark in LEFT.findall(part))
        text_outside = "" if message["role"] == "system" else without_blocks(text)
        yield from (f"{message['role']}: {mark}" for mark in LEFT.findall(text_outside))


def memories_left_out(messages: tuple[Json, ...]) -> int:
    """Count the memories of a list that did not fit into a request (F-023)."""
    notes = [LEFT_OUT_BEFORE.search(str(message["content"] or "")) for message in messages]
    return max((int(mark[1]) for mark in notes if mark), default=0)


def _without_oldest(messages: tuple[Json, ...], kept: int) -> tuple[Json, ...] | None:
    """Drop the oldest messages before the last `kept`, and leave a mark.

    Their blocks and the summary move to the message that is first now.
    """
    current = len(messages) - kept
    starts = [n for n, message in enumerate(messages[:current]) if _role(message) == "user"]
    if not starts:
        return None
    many = max(FEWEST_CUT, (1 << (len(starts) // 8).bit_length()) // 2)
    first = ([*starts, current])[min(many, len(starts))]
    dropped = messages[starts[0] : first]
    head, count = _opened(str(dropped[0]["content"]))
    whole = merged_block(
        str(each["content"] or "") for each in dropped if each["role"] != "assistant"
    )
    mark = EARLIER.format(count=count + len(dropped))
    first_left = messages[first]
    opened = "".join((head, mark, "\n\n", whole and f"{whole}\n\n", str(first_left["content"])))
    return (*messages[: starts[0]], {**first_left, "content": opened}, *messages[first + 1 :])


def _opened(content: str) -> tuple[str, int]:
    """Return the summary before a first message, and the number of messages left out."""
    found = OPENING.match(content)
    return (found[1] or "", int(found[2] or 0)) if found else ("", 0)


def _with_longest_halved(messages: tuple[Json, ...], roles: set[str]) -> tuple[Json, ...] | None:
    contents = [str(message["content"] or "") for message in messages]
    first = next((n for n, message in enumerate(messages) if message["role"] == "user"), -1)
    places = [
        _said_range(contents[n], opens=n == first) if _role(message) in roles else (0, 0)
        for n, message in enumerate(messages)
    ]
    longest = max(range(len(messages)), key=lambda n: places[n][1] - places[n][0])
    begin, end = places[longest]
    if end - begin <= KEPT_CHARACTERS:
        return None
    content = contents[longest]
    halved = _ends(content[begin:end], (end - begin) // 4)
    message = {**messages[longest], "content": content[:begin] + halved + content[end:]}
    return (*messages[:longest], message, *messages[longest + 1 :])


def _role(message: Json) -> str:
    """Return the role of a message; results of tags count as those of a tool."""
    is_told = message["role"] == "user" and str(message["content"]).startswith(RECALLED)
    return "tool" if is_told else str(message["role"])


def _said_range(content: str, *, opens: bool) -> tuple[int, int]:
    """Return the range of a message that its author wrote, without the parts that the prompt added.

    `opens`: it is the first message in view.
    """
    opened = OPENING.match(content) if opens else None
    begin = opened.end() if opened else 0
    block = content.find(f"\n\n{OPENED}", begin)
    return begin, block if block >= 0 else len(content)


def _without_arguments(messages: tuple[Json, ...]) -> tuple[Json, ...] | None:
    """Shorten the largest arguments, which stay a JSON object."""
    places = [
        (len(call["function"]["arguments"]), n, k)
        for n, message in enumerate(messages)
        for k, call in enumerate(message.get("tool_calls", ()))
    ]
    longest, n, k = max(places, default=(0, 0, 0))
    if longest <= 2 * KEPT_CHARACTERS:
        return None
    calls = list(messages[n]["tool_calls"])
    function = calls[k]["function"]
    short = json.dumps({"shortened": _ends(function["arguments"], 100)}, ensure_ascii=False)
    calls[k] = {**calls[k], "function": {**function, "arguments": short}}
    return (*messages[:n], {**messages[n], "tool_calls": calls}, *messages[n + 1 :])


def _without_fields(messages: tuple[Json, ...]) -> tuple[Json, ...] | None:
    """Drop the provider's own fields from the oldest calls."""
    for n, message in enumerate(messages):
        if PROVIDER_FIELDS in message and message[PROVIDER_FIELDS][-1]:
            bare = {**message, PROVIDER_FIELDS: [*message[PROVIDER_FIELDS][:-1], ""]}
            return (*messages[:n], bare, *messages[n + 1 :])
    return None


def _ends(content: str, keep: int) -> str:
    left_out = MARK.format(count=len(content) - 2 * keep)
    return content[:keep] + left_out + content[-keep:]
