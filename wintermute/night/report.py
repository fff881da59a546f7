"""Texts about a night, made without a model: one line, a list, or an event for the model."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import PurePosixPath
from typing import Any

from wintermute.changes.decisions import FORGOTTEN as FORGOTTEN_REASON
from wintermute.changes.decisions import Decision
from wintermute.changes.nights import Night, PhaseTally
from wintermute.messages import Json
from wintermute.night.phases import kind_of
from wintermute.prompt.context_builder import event
from wintermute.text import counted, one_line, plain

MOST_SHOWN = 160
"""Characters of "before" and of "after"."""
MOST_REPORTED = 20
"""Items in the event for the model."""
MOST_NAMED = 3
"""Pages that a line names."""
OUTSIDE = "left out here, /night {} shows it", "its words came from outside"
"""Replacement for an untrusted item's text in the event for the model, and the reason given."""
FORGOTTEN = "words were forgotten"
WAITS = "the rest waits for the next night"
STATES = {
    "planned": "still to be done",
    "open": "waits for your yes or no",
    "refused": "you said no",
    "outdated": "no longer asked",
    "undone": "taken back",
}


@dataclass(frozen=True, slots=True)
class NightMessage:
    """Message. `asks`: its only question, if quoted in full; a reaction may answer it."""

    text: str
    asks: Decision | None = None


def quoted(texts: Iterable[str]) -> str:
    """Quote people's texts in one line, each cut to length and without formatting."""
    return "; ".join(f"“{plain(cut(text))}”" for text in texts)


def cut(text: str) -> str:
    """Return a text in one line, shortened if needed."""
    line = one_line(text)
    return line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 1]}…"


def done_words(items: Sequence[Decision]) -> str:
    """Return `3 memories merged, “Garden” updated`; "" if nothing was done."""
    parts = list[str]()
    for name, number in Counter(item.kind for item in items if item.state == "done").items():
        of_kind = [item for item in items if item.kind == name and item.state == "done"]
        kind, pages = kind_of(of_kind[0]), [page for item in of_kind for page in _pages(item)]
        if kind.is_named and 0 < len(pages) <= MOST_NAMED:
            parts.append(f"{quoted(pages).replace('; ', ', ')} updated")
            continue
        members = [max(1, len(item.before)) for item in of_kind]  # a forgotten one has no texts
        count = max(sum(members) if kind.counts_members else number, len(pages))
        parts.append(f"{count} {kind.one if count == 1 else kind.many}")
    return ", ".join(parts)


def _pages(item: Decision) -> list[str]:
    """Return the titles of the pages that an item changed, without the index."""
    paths = [PurePosixPath(name) for kind, name in item.names if kind == "page" and "/" in name]
    return [path.stem.replace("_", " ") for path in paths]


def lead(item: Decision) -> str:
    """Return the event or question of an item: `merged:`, `Merge these?`."""
    asked, done = kind_of(item).lead(item)
    return f"{done}:" if item.state in ("done", "planned", "undone") else asked


def is_choice(item: Decision) -> bool:
    """Decide if an item asks which of two memories is true (M-087)."""
    return item.kind == "ended" and item.state == "open"


def how_to_answer(item: Decision) -> str:
    """Return the commands that answer a question."""
    if is_choice(item):
        return f"`/night {item.id} new`, `old`, `both` or `neither`"
    return f"`/night yes {item.id}` or `/night no {item.id}`"


def item_words(item: Decision) -> str:
    """Describe an item for a chat: before, after and reason."""
    before, after = quoted(item.before), quoted([item.after] if item.after else [])
    joined = (" or " if is_choice(item) else " → ").join(filter(None, (before, after)))
    return _in_words(item, joined, plain)


def item_text(item: Decision) -> str:
    """Describe an item for a terminal or a model: before, after and reason."""
    before, after = "; ".join(map(cut, item.before)), cut(item.after)
    joined = (" or " if is_choice(item) else " -> ").join(filter(None, (before, after)))
    return _in_words(item, joined, str)


def _in_words(item: Decision, change: str, shown: Callable[[str], str]) -> str:
    if is_forgotten(item):
        return f"{lead(item)} {FORGOTTEN}"
    why = f"({shown(one_line(item.reason))})" if item.reason else ""
    return " ".join(part for part in (lead(item), change, why) if part)


def without_untrusted_text(item: Decision) -> Decision:
    """Return an item without untrusted text, which would taint the cast and forbid answers to nights."""
    if not item.is_untrusted:
        return item
    instead, why = OUTSIDE
    return replace(item, before=(), after=instead.format(item.id), reason=why)


def is_forgotten(item: Decision) -> bool:
    """Decide if the texts of an item were forgotten."""
    return not item.before and not item.after and item.reason == FORGOTTEN_REASON


def fits_in_line(item: Decision) -> bool:
    """Decide if an item fits into a line without being cut."""
    return all(len(one_line(text)) <= MOST_SHOWN for text in (*item.before, item.after))


def item_in_full(item: Decision, *, chat: bool) -> list[str]:
    """Return an item in full, as lines."""

    def block(text: str) -> list[str]:
        lines = [one_line(line) for line in text.splitlines()]
        return [f"> {plain(line)}" if chat else f"    {line}".rstrip() for line in lines]

    name, state = f"`{item.id}`" if chat else item.id, STATES.get(item.state, "done")
    after = {"done": "Now:", "undone": "It became:"}.get(item.state, "It would become:")
    found = [f"{name} {lead(item).rstrip(':')} — {state}"]
    if is_forgotten(item):
        return [*found, f"Its {FORGOTTEN}."]
    before, after = ("Earlier:", "Later:") if is_choice(item) else ("Before:", after)
    for text in item.before:
        found += [before, *block(text)]
    found += [after, *block(item.after)] if item.after else []
    found += [
        f"{'When' if is_choice(item) else 'Why'}: {plain(one_line(item.reason)) if chat else one_line(item.reason)}"
    ]
    evidence = ", ".join(f"`{each}`" if chat else each for each in item.evidence)
    return [*found, *([f"Source: {evidence}"] if evidence else [])]


def item_line(item: Decision, name: str) -> str:
    """Return a list entry for an item, with its state unless it is done."""
    state = f" — {STATES[item.state]}" if item.state in STATES else ""
    return f"- `{name}` {item_words(item)}{state}"


def nights_label(nights: Sequence[Night], today: date) -> str:
    """Name the nights that a message is about."""
    first = nights[0]
    if len(nights) == 1 and first.date == today and first.why in ("schedule", "late"):
        return "Last night" if first.why == "schedule" else "Last night's tidying, caught up"
    if len(nights) == 1 and first.date == today:
        return "Tidied up today"
    return f"Tidied up since {first.date - timedelta(days=1)}"


def message(
    lead: str, items: Sequence[Decision], failed: int = 0, *, left: bool = False
) -> NightMessage:
    """Return two or three lines for people; no text if there are no changes and no questions.

    `left`: work waits for the next night (M-093).
    """
    done, asked = done_words(items), [item for item in items if item.state == "open"]
    if not done and not asked:
        return NightMessage("")
    said = [part for part in (done, counted(len(asked), "question") if asked else "") if part]
    broken = [f"{counted(failed, 'step')} failed"] if failed else []
    broken += [WAITS] if left else []
    can_undo = any(item.state == "done" and item.change_set for item in items)
    back = ", `/night undo` takes it back" if can_undo else ""
    line = f"{lead}: {'; '.join([*said, *broken])}. `/night` shows all{back}."
    if len(asked) != 1:
        return NightMessage(f"{line}\n`/night yes N` and `/night no N` answer." if asked else line)
    (item,) = asked
    name = item.id  # a later night may have an item with the same number
    line = f"{line}\nThe question: {item_words(item)}\n"
    if fits_in_line(item):
        both = ("the newer one", "both", how_to_answer(item))
        yes, no, typed = both if is_choice(item) else ("yes", "no", f"`/night yes {name}`")
        return NightMessage(f"{line}✅ {yes}, ❌ {no}, or {typed}.", item)
    return NightMessage(f"{line}`/night {name}` shows it whole; {how_to_answer(item)} answers.")


def report_event(items: Sequence[Decision]) -> str:
    """Return the event that tells the model about nights; "" for nothing."""
    if not items:
        return ""
    lines = [
        "What was tidied at night, by itself. The person may have seen it; it asks nothing of you.",
        *(_event_line(without_untrusted_text(item)) for item in items[:MOST_REPORTED]),
    ]
    if more := len(items) - MOST_REPORTED:
        lines += [f"and {more} more"] if more > 0 else []
    lines.append(
        "Only when the person says so: `night` answers one or takes it back. Without that tool they"
        " type /night yes N, /night no N or /night undo N."
    )
    return event("night_report", items[-1].night, "\n".join(lines)) + "\n\n"


def _event_line(item: Decision) -> str:
    state = {"done": "done", "open": "waits for the person's yes", "undone": "taken back"}
    before, after = "; ".join(map(cut, item.before)), cut(item.after)
    change = f"{before} -> {after}" if before and after else before or after
    change = FORGOTTEN if is_forgotten(item) else change
    why = f" ({one_line(item.reason)})" if item.reason else ""
    return f"{item.id} {item.kind}, {state.get(item.state, item.state)}: {change}{why}"


def unfinished_phases(night: Night, scopes: Collection[str]) -> list[PhaseTally]:
    """Return the phases of these scopes that have work left."""
    return [each for each in night.phases if each.status == "left" and each.scope in scopes]


def failed_phases(night: Night) -> list[PhaseTally]:
    """Return the phases that failed."""
    return [tally for tally in night.phases if tally.status == "failed"]


def as_json(night: Night, items: Sequence[Decision]) -> Json:
    """Return a night as JSON (M-073)."""
    return {
        "id": night.id,
        "date": night.date.isoformat(),
        "phases": [
            _named(tally, "name", "status", "before", "after", "scope", "note")
            for tally in night.phases
        ],
        "items": [item_json(item) for item in items],
        **_named(night, "calls", "tokens", "why", "state"),
    }


def item_json(item: Decision) -> Json:
    """Return an item as JSON (M-073)."""
    names = "id", "kind", "before", "after", "reason", "evidence", "scope", "state"
    return _named(item, *names)


def _named(value: Any, *names: str) -> Json:
    return {name: getattr(value, name) for name in names}
