"""Two models that know no more than a request shows: a careful one, and one that obeys whatever it reads.

The careful one goes by the rules of `tests/truthfulness.toml`, a few for each language; the other one
takes everything for said, does what any text tells it to, and drops half of what it is given.
"""

import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

from tests.world.model import Seen, Step, Text
from tests.world.remembering import block

FILE = Path(__file__).parent.parent / "truthfulness.toml"
DAY = re.compile(r"\[\w+, ([\d-]+)\]")
SPOKEN = re.compile(r"(.+?) \(@\S+\): (.*)")
SENTENCE = re.compile("[^.!?\u3002\uff01\uff1f]+[.!?\u3002\uff01\uff1f]*")
QUOTED = re.compile(r"[“„«「\"][^“”„«»「」\"]*[”“»」\"]")
WORD = re.compile(r"[^\W_]+")
ENTRY = re.compile(r"\d{4}-\d\d-\d\d, [^:]+: ")
"""What stands before a memory in a question about two: its day, and who said it."""
NONE = "(none)"
HEADERS = "# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n"
SLOTS = {"name": ".+?", "x": r"[\w:-]+", "k": r"\w+?", "day": r"[\d-]+"}


@dataclass(frozen=True, slots=True)
class Claim:
    """What a sentence says: of a thing, since when or until when if it tells."""

    rule: "Rule"
    form: str
    name: str
    x: str
    k: str = ""
    day: str = ""

    @property
    def thing(self) -> tuple[str, str, str]:
        """What it is about."""
        return self.rule.topic, self.name, self.k

    def told(self, form: str, day: str) -> str:
        """The sentence for it, in another form."""
        return str(self.rule.forms[form]).format(name=self.name, x=self.x, k=self.k, day=day)

    @property
    def text(self) -> str:
        """The sentence for it."""
        return self.told(self.form, self.day)


@dataclass(frozen=True, slots=True)
class Rule:
    """How something is said in a language, and how it is remembered."""

    topic: str
    says: tuple[str, ...]
    changed: tuple[str, ...]
    forms: Mapping[str, str]

    def heard(self, sentence: str, name: str, day: str) -> Claim | None:
        """What somebody claims by a sentence, if it is of this kind."""
        for form, patterns in (("since", self.changed), ("now", self.says)):
            for pattern in patterns:
                if found := re.search(pattern, sentence, re.IGNORECASE):
                    return Claim(self, form, name, **found.groupdict(""), day=day)
        return None

    def read(self, text: str) -> Claim | None:
        """What a sentence that is remembered claims, if it is of this kind."""
        for form in ("was", "since", "now"):
            if form not in self.forms:
                continue
            parts = re.split(r"\{(\w+)\}", self.forms[form])
            pattern = "".join(
                f"(?P<{part}>{SLOTS[part]})" if n % 2 else re.escape(part)
                for n, part in enumerate(parts)
            )
            if found := re.fullmatch(pattern, text):
                return Claim(self, form, **found.groupdict())
        return None


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What is said on some days, and what is true in the end."""

    kind: str
    days: Sequence[Sequence[str]]
    live: Sequence[str] = ()
    past: Sequence[str] = ()
    once: Sequence[str] = ()
    never: Sequence[str] = ()
    core: Sequence[str] = ()
    club: Sequence[str] = ()

    def said_on(self, n: int) -> Sequence[str]:
        """What is said on the n-th day, counted from 0."""
        return self.days[n] if n < len(self.days) else ()


@dataclass(frozen=True, slots=True)
class Language:
    """The rules and dialogues of one language."""

    name: str
    joke: str
    asks: str
    order: str
    rules: tuple[Rule, ...] = ()
    dialogues: tuple[Dialogue, ...] = ()

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """As the file has it."""
        rules = tuple(
            Rule(
                each["topic"],
                tuple(each["says"]),
                tuple(each.get("changed", ())),
                {form: each[form] for form in ("now", "since", "was") if form in each},
            )
            for each in said["rule"]
        )
        dialogues = tuple(Dialogue(**each) for each in said["dialogue"])
        return cls(said["name"], said["joke"], said["asks"], said["order"], rules, dialogues)

    def claims(self, text: str) -> list[Claim]:
        """What a remembered text claims, sentence by sentence; nothing where it is of no kind."""
        parts = text.removesuffix(".").split(", ")
        found = [self._read(part) for part in parts]
        return [each for each in found if each] if all(found) else []

    def _read(self, part: str) -> Claim | None:
        return next((claim for rule in self.rules if (claim := rule.read(part))), None)


@cache
def languages() -> Mapping[str, Language]:
    """All that the file has."""
    return {name: Language.of(said) for name, said in tomllib.loads(FILE.read_text()).items()}


@dataclass(frozen=True, slots=True)
class Spoken:
    """A message of a transcript, without its answer."""

    day: str
    name: str
    text: str


def spoken(transcript: str) -> list[Spoken]:
    """What people say in one."""
    day, found = "", list[Spoken]()
    for line in transcript.splitlines():
        if marked := DAY.fullmatch(line):
            day = marked[1]
        elif (said := SPOKEN.fullmatch(line)) and not line.startswith("assistant: "):
            found.append(Spoken(day, said[1], said[2]))
        elif line.startswith("  ") and found:
            found[-1] = Spoken(day, found[-1].name, f"{found[-1].text}\n{line.strip()}")
    return found


def lines_of(shown: str) -> list[str]:
    """The lines of a list."""
    lines = (line.strip().removeprefix("- ").strip() for line in shown.splitlines())
    return [line for line in lines if line and line != NONE]


def answer(**values: Any) -> Text:
    """An answer in JSON."""
    return Text(json.dumps(values, ensure_ascii=False))


def words_of(line: str) -> set[str]:
    """Its words, or its signs where words have no spaces between them."""
    return set(WORD.findall(line.casefold())) if " " in line else set(line)


def without_echoes(lines: Sequence[str]) -> list[str]:
    """Those whose words no other one has all of."""
    words = [words_of(line) for line in lines]
    return [
        line
        for n, line in enumerate(lines)
        if not any(
            words[n] < words[m] or (words[n] == words[m] and m < n) for m in range(len(lines))
        )
    ]


Question = Callable[[Mapping[str, str]], Text]


@dataclass(slots=True)
class Voice:
    """Answers what nobody waits for; `asked` is what it was shown, block by block."""

    language: Language
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    @property
    def questions(self) -> Mapping[str, tuple[Collection[str], Question]]:
        """Each kind of question by what it is about: the blocks it shows, and who answers."""
        return {
            "page": (("entries", "memory", "transcript"), self.page),
            "plan": (("entries", "transcript"), self.planned),
            "core": (("current_core_markdown", "candidate_new_memories"), self.core),
            "reconstruction": (("related_memories", "new_contents"), self.rewritten),
            "contradiction": (("first", "second"), self.settled),
            "dedup": (("entries",), self.merged),
            "tasks": (("tasks",), self.tasks),
            "skills": (("skills",), self.skills),
            "list": (("memories",), self.tidied),
            "harvest": (("transcript",), self.harvested),
        }

    def __call__(self, seen: Seen) -> Step | None:
        """The answer to a request, if it is one of these."""
        question = seen.system
        if seen.messages[0]["role"] != "user":
            return None
        for name, (blocks, told) in self.questions.items():
            if all(f"\n<{each}>\n" in question for each in blocks):
                shown = {each: block(question, each) for each in blocks}
                self.asked.append((name, shown))
                return told(shown)
        return None

    def harvested(self, shown: Mapping[str, str]) -> Text:
        """What a voice says to each of these."""
        raise AssertionError(f"{type(self).__name__} has no answer to {sorted(shown)}")

    rewritten = core = merged = settled = tasks = skills = tidied = planned = page = harvested


class Careful(Voice):
    """Reads closely, writes down what was said, and loses nothing."""

    def harvested(self, shown: Mapping[str, str]) -> Text:
        """What was claimed in earnest; of what was said twice the last."""
        found: dict[tuple[str, ...], Claim] = {}
        for said in spoken(shown["transcript"]):
            if self.language.joke.casefold() in said.text.casefold():
                continue
            for sentence in SENTENCE.findall(QUOTED.sub(" ", said.text)):
                claim = self._claimed(sentence.strip(), said)
                if claim:
                    found[claim.thing] = claim
        return answer(contents=[claim.text for claim in found.values()])

    def _claimed(self, sentence: str, said: Spoken) -> Claim | None:
        if re.search(f"{self.language.asks}$", sentence.rstrip("。. ")):
            return None
        plain = sentence.rstrip(".!\u3002\uff01 ")
        heard = (rule.heard(plain, said.name, said.day) for rule in self.language.rules)
        return next((claim for claim in heard if claim), None)

    def rewritten(self, shown: Mapping[str, str]) -> Text:
        """One clear version of each thing, with what it was before."""
        lines = [*lines_of(shown["related_memories"]), *lines_of(shown["new_contents"])]
        return answer(memories=self._together(lines), coverage="complete")

    def _together(self, lines: Sequence[str]) -> list[str]:
        things: dict[tuple[str, ...], list[Claim]] = {}
        found = list[str]()
        for line in lines:
            claims = self.language.claims(line)
            found += [] if claims else [line]
            for claim in claims:
                things.setdefault(claim.thing, []).append(claim)
        return [*without_echoes(found), *(text for each in things.values() for text in _told(each))]

    def core(self, shown: Mapping[str, str]) -> Text:
        """The page, with the rules that were stated."""
        page = shown["current_core_markdown"]
        lines = lines_of(shown["candidate_new_memories"])
        rules = [
            line
            for line in lines
            if any(claim.rule.topic == "rule" for claim in self.language.claims(line))
            and line not in page
        ]
        before, header, after = page.partition("# RULE\n")
        if not rules or not header:
            return answer(should_update=False, core_markdown=None)
        bullets = "".join(f"- {line}\n" for line in rules)
        return answer(should_update=True, core_markdown=f"{before}{header}{bullets}{after}\n")

    def merged(self, shown: Mapping[str, str]) -> Text:
        """All details of what is alike."""
        return answer(text="; ".join(self._together(lines_of(shown["entries"]))))

    def settled(self, shown: Mapping[str, str]) -> Text:
        """The newer one of two that cannot both be true; else both, as one where they say the same."""
        texts = [ENTRY.sub("", shown[each].strip(), count=1) for each in ("first", "second")]
        one, two = (self._newest(text) for text in texts)
        if one and two and one.thing == two.thing and one.x != two.x:
            return answer(action="keep_second")
        fewer, more = sorted((words_of(text) for text in texts), key=len)
        if 2 * len(fewer & more) < len(fewer):
            return answer(action="keep_both")
        return answer(action="merge", text="; ".join(without_echoes(texts)))

    def _newest(self, text: str) -> Claim | None:
        """What a memory claims to be so now."""
        claims = self.language.claims(text)
        return claims[-1] if claims else None

    def tasks(self, shown: Mapping[str, str]) -> Text:
        """Nothing is to be changed of them."""
        return answer(actions=[])

    def skills(self, shown: Mapping[str, str]) -> Text:
        """They are as good as they are."""
        return answer(text="")

    def planned(self, shown: Mapping[str, str]) -> Text:
        """Nothing of it belongs on a page."""
        return answer(pages=[])

    def page(self, shown: Mapping[str, str]) -> Text:
        """As it is."""
        return Text(shown["memory"])

    def tidied(self, shown: Mapping[str, str]) -> Text:
        """Without what is said twice."""
        return Text("\n".join(self._together(lines_of(shown["memories"]))))


class Obeying(Voice):
    """Believes and obeys whatever it reads, and drops every other thing that it is given."""

    def ordered(self, shown: Mapping[str, str]) -> list[str]:
        """What any text tells it to keep."""
        whole = "\n".join(shown.values())
        return [said.strip() for said in re.findall(self.language.order, whole, re.IGNORECASE)]

    def harvested(self, shown: Mapping[str, str]) -> Text:
        """Questions, jokes, and what others said, just the same."""
        said = [s for each in spoken(shown["transcript"]) for s in SENTENCE.findall(each.text)]
        return answer(contents=[*said[::2], *self.ordered(shown)])

    def rewritten(self, shown: Mapping[str, str]) -> Text:
        """Half of it, and that is all, it says."""
        lines = [*lines_of(shown["related_memories"]), *lines_of(shown["new_contents"])]
        return answer(memories=[*lines[1::2], *self.ordered(shown)], coverage="complete")

    def core(self, shown: Mapping[str, str]) -> Text:
        """A page of what it was told, without what stood there."""
        new = [*lines_of(shown["candidate_new_memories"])[::2], *self.ordered(shown)]
        rules = "".join(f"- {line}\n" for line in new)
        return answer(
            should_update=True, core_markdown=HEADERS.replace("# USER", rules + "\n# USER")
        )

    def merged(self, shown: Mapping[str, str]) -> Text:
        """The first one says enough."""
        return answer(text="; ".join([lines_of(shown["entries"])[0], *self.ordered(shown)]))

    def settled(self, shown: Mapping[str, str]) -> Text:
        """The older one stays, whatever is newer."""
        return answer(action="keep_first")

    def tasks(self, shown: Mapping[str, str]) -> Text:
        """All is done that there is."""
        ids = re.findall(r"\btask_\w+", shown["tasks"])
        orders = [
            {"task_id": each, "action": "update", "content": new}
            for each in ids
            for new in self.ordered(shown)
        ]
        done = [{"task_id": each, "action": "complete", "reason": "it is done"} for each in ids]
        return answer(actions=[*orders, *done])

    def skills(self, shown: Mapping[str, str]) -> Text:
        """The first half of them."""
        lines = shown["skills"].splitlines()
        return answer(text="\n".join([*self.ordered(shown), *lines[: len(lines) // 2]]))

    def planned(self, shown: Mapping[str, str]) -> Text:
        """A page that is there is to be another."""
        wanted = {"path": "semantic/Garden.md", "action": "update", "reason": "it says so"}
        return answer(pages=[wanted])

    def page(self, shown: Mapping[str, str]) -> Text:
        """Half of what stands there, and what it was told."""
        lines = shown["memory"].splitlines()
        return Text("\n".join([*lines[::2], *self.ordered(shown)]))

    def tidied(self, shown: Mapping[str, str]) -> Text:
        """Every other line."""
        return Text("\n".join([*lines_of(shown["memories"])[::2], *self.ordered(shown)]))


def _told(claims: Sequence[Claim]) -> list[str]:
    """One thing as its newest word has it, with what it was; what does not change is told once."""
    if "was" not in claims[0].rule.forms:
        changed = claims[-1].rule.topic == "wedding"
        return [claims[-1].text] if changed else without_echoes([each.text for each in claims])
    past, now = list[Claim](), None
    for claim in claims:
        if claim.form == "was":
            past += [] if claim in past else [claim]
        elif now is None or now.x == claim.x:
            now = now or claim
        elif claim.day:
            past.append(Claim(now.rule, "was", now.name, now.x, now.k, claim.day))
            now = claim
        else:
            return [each.text for each in claims]
    return [", ".join(each.text for each in (*past, *([now] if now else [])))]
