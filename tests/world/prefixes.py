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
A cause that a test names excuses a break only where such a cause can break (`could_be`): an edited
prompt the system message, an edit a message of a person, what decays a result. What it still lets
pass: a break that happens to continue an older, unfinished request of its branch, and in a test that
names a cause other breaks in the same place.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tests.world.request_rules import is_for_json, is_for_summary
from wintermute.conversation.toolbox import DONE
from wintermute.conversation.view import INTERRUPTED, UNANSWERED
from wintermute.db import driver
from wintermute.llm.models import PROBE
from wintermute.llm.probes import QUESTION
from wintermute.llm.provider_fields import OF_CALL, OF_MESSAGE
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
ANYWHERE: frozenset[Cause] = frozenset({"restored copy"})
SYSTEM: frozenset[Cause] = frozenset(
    {"edited prompt", "edited core", "edited wiki", "failover", "forgetting", "layout system"}
)
TAKEN_BACK: frozenset[Cause] = frozenset({"redaction", "forgetting"})
"""May change whatever was said, and leave out messages."""
ANOTHER_WAY: frozenset[Cause] = frozenset({"edit", "fork"})
"""From a message of a person on something else was said."""
LOST: frozenset[Cause] = TAKEN_BACK | ANOTHER_WAY | ANYWHERE | frozenset({"cutting"})
"""May leave nothing of what was said before."""
CUT = "left out to fit the model's window"
ASKED_AGAIN = re.compile(r"\[Your (?:last \d+ )?answers? w(?:as|ere) empty\.")
FOLDED = "[Folded: turns 1-"
FOLD = re.compile(r"\[Folded: turns 1-\d+\]")
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


@dataclass(frozen=True, slots=True)
class Break:
    """Where a request parted from what was before, and the causes that break there."""

    where: str
    could_be: frozenset[Cause]


@dataclass(slots=True)
class _Leaf:
    """A request that nothing continued yet."""

    request: Rendered
    text: str
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
        parts += [_json(value) for each in (message, *calls) for value in _beside(each)]
        messages.append("".join(parts))
        if message.get("role") == "assistant":
            said |= _said(message)
    tools = _json(body["tools"]) if body.get("tools") else ""
    return Rendered(tools, tuple(messages), frozenset(said))


def _beside(message: Json) -> list[object]:
    """Return the fields that a provider wants back with an answer or a call."""
    return [message[key] for key in sorted(message.keys() - OF_MESSAGE - OF_CALL)]


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
        self.breaks: list[Break] = []
        self.began = 0
        """How many branches began, as far as their first requests differ."""
        self._leaves: list[_Leaf] = []
        self._said: set[str] = set()
        self._apart = False
        self._allowed: set[Cause] = set()
        self._perhaps: set[Cause] = set()
        self.allow(*causes)

    def allow(self, *causes: Cause, perhaps: bool = False) -> None:
        """Name why this test may break off. One that then does not occur is a mistake, unless `perhaps`."""
        unknown = set(causes) - set(CAUSES)
        assert not unknown, f"not on the list of tests/world/prefixes.py: {sorted(unknown)}"
        (self._perhaps if perhaps else self._allowed).update(causes)

    def saw(self, body: Json) -> None:
        """A request arrived."""
        self._apart = _is_apart(body)
        if self._apart:
            return
        now = rendered(body)
        text = now.text
        before = self._followed(now, text)
        if before is None and self._said & now.said:
            before = self._broke(now, text)
        begins = before is None and not now.said and FOLDED not in text
        if self.counting:
            self.steps.append(self._kept(text, before))
        self._leaves.append(_Leaf(now, text, begins=begins))

    def answered(self, message: Json) -> None:
        """What the newest request was answered with."""
        self._said |= _said(message)
        if self._leaves and not self._apart:
            leaf = self._leaves[-1]
            self.began += leaf.begins and not leaf.answered
            leaf.answered = True

    def problems(self) -> list[str]:
        """The breaks that no named cause explains, and the causes that did not occur."""
        named = self._allowed | self._perhaps
        found = [each.where for each in self.breaks if not named & each.could_be]
        occurred = {cause for each in self.breaks for cause in each.could_be}
        found += [
            f"{cause!r} is named as a cause and nothing broke off for it"
            for cause in sorted(self._allowed - occurred)
            if self._leaves  # else it was skipped
        ]
        return found

    def count(self, folder: Path) -> None:
        """Look whether more branches began than the databases of a folder have: one lost its past."""
        held = [_branches(path) for path in folder.rglob("wintermute.db")]
        if held and self.began > sum(held):
            told = f"branches that began on the wire: {self.began}; in the database: {sum(held)}"
            self.breaks.append(Break(told, LOST))

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
        if not nearest.answered and text.startswith(nearest.request.before):
            # Nobody answered it: the message that it ended with may be asked in other words, as in
            # how long ago it was written (F-029).
            self._leaves.remove(nearest)
            return nearest
        at = common(nearest.text, text)
        was, now_is = (_cut(whole, at) for whole in (nearest.text, text))
        where = f"after {at} of {len(text)} characters: {was} became {now_is}"
        self.breaks.append(Break(where, could_be(now, nearest.request)))
        return nearest

    def _kept(self, text: str, before: _Leaf | None) -> Kept:
        if before is None:
            return Kept(0, words(text), None, first=True)
        at = common(before.text, text)
        whole = at == len(before.text)
        shown = [] if whole else sorted(self.breaks[-1].could_be)
        cause = (shown[0] if len(shown) == 1 else "unknown") if shown else None
        return Kept(words(text[:at]), words(text), cause)


def _is_apart(body: Json) -> bool:
    """What no cast asks: a summary, the questions of `check`."""
    messages = body.get("messages") or [{}]
    is_checks = messages[:1] == [*QUESTION.messages] or messages[-1:] == [*PROBE.messages]
    return is_checks or is_for_summary(body) or is_for_json(body)


def could_be(now: Rendered, before: Rendered) -> frozenset[Cause]:
    """What may have made a request say something else than the one before it, by where it parts."""
    if now.tools != before.tools:
        return frozenset({"tools"})
    pairs = enumerate(zip(now.messages, before.messages, strict=False))
    shorter = min(len(now.messages), len(before.messages))
    n = next((n for n, (one, other) in pairs if one != other), shorter)
    first = next((n for n, each in enumerate(now.messages) if each.startswith("<user>")), 0)
    fold = FOLD.search("".join(now.messages[: first + 1]))
    if n <= first and fold and fold[0] not in before.text:  # else it was folded before
        return frozenset({"fold"})
    # Where one is shorter, it ends with what the other goes on from.
    said, was = ("".join(each.messages[n : n + 1]) for each in (now, before))
    rest = "".join(before.messages[n : n + 2])
    return frozenset({*_by_place(n, said, was), *_by_marks(said, was, rest)})


def _by_place(n: int, said: str, was: str) -> Iterator[Cause]:
    yield from ANYWHERE
    yield from SYSTEM if n == 0 and was.startswith("<system>") else TAKEN_BACK
    if was.startswith("<user>") or said.startswith("<user>") or said.endswith(UNANSWERED):
        yield from ANOTHER_WAY
    if was.startswith("<tool") and said.startswith("<tool"):
        yield "decay"


def _by_marks(said: str, was: str, rest: str) -> Iterator[Cause]:
    """`rest`: what was said with `was`, and the message behind it."""
    if CUT in said or CUT in was:
        yield "cutting"
    if "[ephemeral:" in said and said.startswith("<user>"):
        yield "decay"
    if INTERRUPTED in was or UNANSWERED in rest:
        yield "interrupted"
    if ASKED_AGAIN.search(was):
        yield "retry line"


def _cut(text: str, at: int) -> str:
    return repr(text[max(at - SHOWN // 2, 0) : at + SHOWN])


def _branches(path: Path) -> int:
    with closing(driver.connect(path, read_only=True)) as connection:
        return int(connection.execute(BRANCHES).fetchone()[0])
