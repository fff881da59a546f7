"""Whether each request begins with the one before it in its branch, so that a server's cache serves.

    model.allow("fold")     # this test folds: that request may begin anew

The wire names no branch. It is found by what is there: a request continues the newest earlier one
that it begins with, and each request is continued once. A request that shows an answer of this server
and continues nothing said something earlier differently: a break, and a test that does not name its
cause fails. What shows no answer of this server begins a branch, or continues one of another server.

Why not by the branch ids of the database: they are not on the wire, and `llm.record` would be another
program than the one under test. By its answers a request tells more than its number would. What this
alone cannot see is a branch that lost all its past, or whose first message was said in two ways: both
look like one more branch. So `count` compares how many began with how many branches the database has.
What it still lets pass: a break that happens to continue an older, unfinished request of its branch,
and in a test that names a cause other breaks of the kinds that look alike.
"""

import json
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tests.world.request_rules import is_for_summary
from wintermute.conversation.toolbox import DONE
from wintermute.db import driver
from wintermute.llm.models import PROBE, QUESTION
from wintermute.messages import Json

Cause = Literal[
    "fold",
    "edit",
    "fork",
    "redaction",
    "forgetting",
    "edited prompt",
    "edited core",
    "edited wiki",
    "decay",
    "cutting",
    "retry line",
    "interrupted",
    "failover",
    "tools",
    "layout system",
    "restored copy",
]
"""The closed list. Of a restored copy the requests before are others than those that were made."""
CAUSES: tuple[Cause, ...] = get_args(Cause)
SEEN_ON_THE_WIRE = frozenset({"fold", "tools"})
"""A break of these shows what it is, and needs its own name."""
FOLDED = "[Folded: turns 1-"
SHOWN = 70
BRANCHES = "SELECT count(DISTINCT branch_id) FROM casts"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A request as one text, the tools first. `said`: what of it models said."""

    tools: str
    messages: tuple[str, ...]
    said: frozenset[str]

    @property
    def text(self) -> str:
        """Without anything between the messages: what is added to the last one continues it."""
        return self.tools + "".join(self.messages)

    @property
    def before(self) -> str:
        """The same without its newest message."""
        return self.tools + "".join(self.messages[:-1])


@dataclass(frozen=True, slots=True)
class Kept:
    """How much of a request was in the one that it follows, in words; `cause` why not all of that.

    `first` of a branch: nothing could be kept.
    """

    kept: int
    whole: int
    cause: str | None
    first: bool = False

    @property
    def is_counted(self) -> bool:
        """Whether it could have kept all of the one before it."""
        return self.cause != "fold" and not self.first


@dataclass(slots=True)
class _Leaf:
    """A request that nothing continued yet."""

    text: str
    tools: str
    before: str
    """All but the newest message."""
    answered: bool = False
    begins: bool = False
    """It continues nothing, and shows nothing that was said before."""


def rendered(body: Json) -> Rendered:
    """A request as a model may read it: of each message role, text, calls and whose result it is."""
    messages: list[str] = []
    said: set[str] = set()
    for message in body.get("messages") or ():
        calls = message.get("tool_calls") or ()
        content = message.get("content") or ""
        head = f"<{message.get('role')}{message.get('tool_call_id') or ''}>"
        parts = [head, content if isinstance(content, str) else _json(content)]
        for call in calls:
            parts += [str(call["function"][key]) for key in ("name", "arguments")]
        messages.append("".join(parts))
        if message.get("role") == "assistant":
            said |= _said(message)
    tools = _json(body["tools"]) if body.get("tools") else ""
    return Rendered(tools, tuple(messages), frozenset(said))


def _said(message: Json) -> set[str]:
    """What tells an answer from others: its text, and its calls. An answer by `done` is shown as a text."""
    found = {str(message.get("content") or "").strip()}
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        found.add(" ".join((call["id"], name, arguments)))
        if name == DONE:
            with suppress(ValueError, AttributeError):
                found.add(str(json.loads(arguments).get("answer") or "").strip())
    return found - {""}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def common(one: str, other: str) -> int:
    """How many characters two texts begin with that are the same."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if other.startswith(one[least:middle], least):
            least = middle
        else:
            most = middle - 1
    return least


def words(text: str) -> int:
    """How much a text is, where a tokenizer would be too slow."""
    return len(text.split())


class Prefixes:
    """The requests of one server. `counting`: `steps` tells of each what it kept."""

    def __init__(self, causes: Iterable[Cause] = (), *, counting: bool = False) -> None:
        self.counting = counting
        self.steps: list[Kept] = []
        self.breaks: list[tuple[str | None, str]] = []
        """The cause of each, if it shows one, and where it parted from what was before."""
        self.began = 0
        """How many branches began, as far as their first requests differ."""
        self._leaves: list[_Leaf] = []
        self._said: set[str] = set()
        self._allowed: set[str] = set()
        self._perhaps: set[str] = set()
        self.allow(*causes)

    def allow(self, *causes: Cause, perhaps: bool = False) -> None:
        """Name why this test may break off. One that then does not occur is a mistake, unless `perhaps`."""
        unknown = set(causes) - set(CAUSES)
        assert not unknown, f"not on the list of tests/world/prefixes.py: {sorted(unknown)}"
        (self._perhaps if perhaps else self._allowed).update(causes)

    def saw(self, body: Json) -> None:
        """A request arrived."""
        if _is_apart(body):
            return
        now = rendered(body)
        text = now.text
        before = self._followed(now, text)
        if before is None and self._said & now.said:
            before = self._broke(now, text)
        begins = before is None and not now.said and FOLDED not in text
        if self.counting:
            self.steps.append(self._kept(text, before))
        self._leaves.append(_Leaf(text, now.tools, now.before, begins=begins))

    def answered(self, message: Json) -> None:
        """What the newest request was answered with."""
        self._said |= _said(message)
        if self._leaves:
            leaf = self._leaves[-1]
            self.began += leaf.begins and not leaf.answered
            leaf.answered = True

    def problems(self) -> list[str]:
        """The breaks that no named cause explains, and the causes that did not occur."""
        named = self._allowed | self._perhaps
        found = [where for cause, where in self.breaks if not _is_named(cause, named)]
        occurred = {cause for cause, _ in self.breaks}
        found += [
            f"{cause!r} is named as a cause and nothing broke off for it"
            for cause in sorted(self._allowed)
            if (cause if cause in SEEN_ON_THE_WIRE else None) not in occurred
        ]
        return found

    def count(self, folder: Path) -> None:
        """Look whether more branches began than the databases of a folder have: one lost its past."""
        held = [_branches(path) for path in folder.rglob("wintermute.db")]
        if held and self.began > sum(held):
            told = f"branches that began on the wire: {self.began}; in the database: {sum(held)}"
            self.breaks.append((None, told))

    def share(self) -> float:
        """How much was kept of all that could be, between the folds."""
        counted = [step for step in self.steps if step.is_counted]
        whole = sum(step.whole for step in counted)
        return sum(step.kept for step in counted) / whole if whole else 1.0

    def _followed(self, now: Rendered, text: str) -> _Leaf | None:
        """The request that this one continues, which then nothing else does.

        A request without an answer in view, and one that was answered and comes again, may as well be
        of another branch in the same words: they take nothing away.
        """
        found = [leaf for leaf in self._leaves if text.startswith(leaf.text)]
        if not found:
            return None
        nearest = max(found, key=lambda leaf: (len(leaf.text), not leaf.answered))
        if now.said and not (nearest.answered and len(nearest.text) == len(text)):
            self._leaves.remove(nearest)
        return nearest

    def _broke(self, now: Rendered, text: str) -> _Leaf | None:
        """A request that says something differently; the one it has most in common with."""
        nearest = max(self._leaves, key=lambda leaf: common(leaf.text, text), default=None)
        if nearest is None:
            return None
        if not nearest.answered and text.startswith(nearest.before):
            # Nobody answered it: the message that it ended with may be asked in other words, as in
            # how long ago it was written (F-029).
            self._leaves.remove(nearest)
            return nearest
        at = common(nearest.text, text)
        cause = _cause(now, nearest, at)
        was, now_is = (_cut(whole, at) for whole in (nearest.text, text))
        self.breaks.append((cause, f"after {at} of {len(text)} characters: {was} became {now_is}"))
        return nearest

    def _kept(self, text: str, before: _Leaf | None) -> Kept:
        if before is None:
            return Kept(0, words(text), None, first=True)
        at = common(before.text, text)
        whole = at == len(before.text)
        cause = None if whole else self.breaks[-1][0] or "unknown"
        return Kept(words(text[:at]), words(text), cause)


def _is_apart(body: Json) -> bool:
    """What no cast asks: a summary, the questions of `check`."""
    last = (body.get("messages") or [{}])[-1]
    return is_for_summary(body) or last in (*QUESTION.messages, *PROBE.messages)


def _cause(now: Rendered, before: _Leaf, at: int) -> str | None:
    if now.tools != before.tools:
        return "tools"
    first = next((n for n, each in enumerate(now.messages) if each.startswith("<user>")), 0)
    head = "".join(now.messages[: first + 1])
    return "fold" if FOLDED in head and at < len(now.tools) + len(head) else None


def _is_named(cause: str | None, named: set[str]) -> bool:
    return cause in named if cause else bool(named - SEEN_ON_THE_WIRE)


def _cut(text: str, at: int) -> str:
    return repr(text[max(at - SHOWN // 2, 0) : at + SHOWN])


def _branches(path: Path) -> int:
    with closing(driver.connect(path, read_only=True)) as connection:
        return int(connection.execute(BRANCHES).fetchone()[0])
