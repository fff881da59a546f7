"""Answers of the practice model where nobody waits: learning, nights, pages and summaries. Pure.

A question is known by the blocks of data in it. Statements are sentences in which people speak of
themselves, or state a rule; nothing is put in other words.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence

from wintermute.memory.core import HEADERS, bullets
from wintermute.memory.sense import main_words
from wintermute.messages import Json
from wintermute.secret_shapes import secret_kind
from wintermute.wiki.pages import MATTER, without_matter

BLOCKS = re.compile(r"^<(\w+)>\n(.*?)\n?^</\1>$", re.DOTALL | re.MULTILINE)
SPOKEN = re.compile(r"^(?! )(.{1,200}? \(@[^\s()]+\)|user): (.*(?:\n  .*)*)", re.MULTILINE)
"""A line of a person in a transcript; its further lines are indented."""
SENTENCE = re.compile(r"[^.!?…]+[.!?…]*")
OPENING = re.compile(
    r"(?:(?:oh|well|by the way|btw|so|and|but|yes|no|hi|hello|(?:hey )?wintermute)[,:]? )+", re.I
)
RULE = r"(?:please )?(?:never|always|do not|don['\u2019]t)(?! forget)\b.+"
STATEMENT = re.compile(rf"(?:i|we|my|our|(?:i|we)['\u2019](?:m|ve|re|d))\b.+|{RULE}", re.I)
WISH = re.compile(
    r"(?:i|we)(?:['\u2019](?:d|ll)| (?:would|will|want|need|wonder|think|guess|hope)\b)", re.I
)
"""The beginning of a statement that does not last."""
SAID_RULE = re.compile(rf"(?:.{{1,200}}? said: )?{RULE}", re.I)
ENTRY = re.compile(r"\d{4}-\d\d-\d\d, [^:\n]{1,200}: ")
NEWS = re.compile(r"\b(?:now|no longer|any ?more|instead|moved|changed)\b", re.I)
"""A word by which somebody says that it was otherwise before."""
MESSAGE = re.compile(r"^(?:\[message\]\n|- )(\S.*)$", re.MULTILINE)
NUMBERED = re.compile(r"^\[\d+\]$", re.MULTILINE)
MINE = re.compile(r"\b(?:my|our) ([^\W\d_]{2,30})", re.I)
PAGE = re.compile(r"^.*?(semantic/[^\n,]+)\.md, (?:create|update)\b", re.MULTILINE)
DATED = re.compile(r"^---\ncreated: [\d-]+\nupdated: ([\d-]+)\n---$", re.MULTILINE)
ABOUT = "About you"
USER = "The user"
LEAST_WORDS = 3
MOST_BULLETS = 8
MOST_PAGES = 5
MOST_SUMMED = 8
MOST_SUMMARY = 80
Blocks = Mapping[str, str]


def background_answer(asked: Json) -> str | None:
    """The answer to a question that no person asks; None: it is another."""
    question = asked.get("content")
    if asked.get("role") != "user" or not isinstance(question, str):
        return None
    shown: Blocks = dict(BLOCKS.findall(question))
    known = ANSWERS.get([*shown][-1]) if shown else None
    found = known(shown, question) if known else None
    return json.dumps(found, ensure_ascii=False) if isinstance(found, dict) else found


def statements(text: str) -> list[str]:
    """The sentences in which somebody tells of themselves, or how they want to be treated."""
    found = []
    for sentence in SENTENCE.findall(" ".join(text.split())):
        words = OPENING.sub("", sentence.strip(), count=1)
        told = STATEMENT.fullmatch(words) and not WISH.match(words) and not secret_kind(words)
        if told and len(words.split()) >= LEAST_WORDS and not words.endswith("?"):
            found.append(_ended(words))
    return found


def _ended(line: str) -> str:
    return line if line.endswith((".", "!", "?", "…")) else f"{line}."


def _lines(block: str) -> list[str]:
    lines = (line.removeprefix("- ").strip() for line in block.splitlines())
    return [line for line in lines if line and line != "(none)"]


def _distinct(lines: Sequence[str], pattern: str = "") -> list[str]:
    """The lines without those whose words, main words if no pattern is given, another has too."""
    folded = [line.casefold() for line in lines]
    about = [{*re.findall(pattern, line)} if pattern else main_words(line) for line in folded]
    kept = list[int]()
    for n in sorted(range(len(lines)), key=lambda n: (-len(lines[n]), n)):
        if not any(about[n] <= about[m] for m in kept):
            kept.append(n)
    return [lines[n] for n in sorted(kept)]


def _harvested(shown: Blocks, question: str) -> Json | str:
    """Sentences of people, each with its speaker where there are several; or pages of them."""
    if "entries" in shown:
        return _pages(shown, question)
    said = SPOKEN.findall(shown["transcript"])
    several = len({who for who, _ in said}) > 1
    told = [(who if several else USER, line) for who, words in said for line in statements(words)]
    return {"contents": [f"{who} said: {line}" for who, line in told]}


def _split(shown: Blocks, _: str) -> Json:
    sentences = (part.strip() for part in SENTENCE.findall(" ".join(shown["raw_input"].split())))
    return {"contents": [part for part in sentences if len(part.split()) >= LEAST_WORDS]}


def _rewritten(shown: Blocks, _: str) -> Json:
    """More careful than a night, which is to find something as well."""
    lines = _lines(shown.get("related_memories", "")) + _lines(shown["new_contents"])
    return {"memories": _distinct(lines, r"\w+"), "coverage": "complete"}


def _core(shown: Blocks, _: str) -> Json:
    """The page with the rules that were stated and are not on it, while it is short."""
    page = shown.get("current_core_markdown", "")
    rules = [line for line in _lines(shown["candidate_new_memories"]) if SAID_RULE.fullmatch(line)]
    new = [f"- {line}" for line in rules if f"- {line}" not in page.splitlines()]
    new = new[: max(0, MOST_BULLETS - len(bullets(page)))]
    before, header, after = page.partition("# RULE\n")
    if not new or not header:
        return {"should_update": False, "core_markdown": None}
    now, *rest = re.split(rf"^(?={HEADERS[-1]}$)", after, maxsplit=1, flags=re.MULTILINE)
    text = "\n".join([*filter(None, [now.strip()]), *new, "", *rest])
    return {"should_update": True, "core_markdown": f"{before}{header}{text}"}


def _settled(shown: Blocks, _: str) -> Json:
    """The longer one of two that say the same; else the later one, if it says that it is news."""
    both = [ENTRY.sub("", shown.get(name, "").strip(), count=1) for name in ("first", "second")]
    if NEWS.search(both[1]) and not NEWS.search(both[0]):
        return {"action": "keep_second"}
    if len(left := _distinct(both)) > 1:
        return {"action": "keep_both"}
    return {"action": "merge", "text": _ended(left[0])}


def _summed_up(shown: Blocks, _: str) -> str:
    """The newest words of people, each shortened to a line (L-039)."""
    said = [text[:MOST_SUMMARY] for text in MESSAGE.findall(shown["history"])]
    return "\n- ".join(["What was said so far:", *said[-MOST_SUMMED:]])


def _pages(shown: Blocks, question: str) -> Json | str:
    """A plan, or a page: one for each thing that somebody calls theirs, and one for the rest."""
    transcript, told = shown["transcript"], dict[str, dict[str, str]]()
    parts = zip(["", *NUMBERED.findall(transcript)], NUMBERED.split(transcript), strict=True)
    for number, part in parts:
        for line in (line for _, words in SPOKEN.findall(part) for line in statements(words)):
            named = MINE.search(line)
            title = f"Your {named[1].lower()}" if named else ABOUT
            told.setdefault(title, {}).setdefault(f"- {line[:1].upper()}{line[1:]}", number)
    if "memory" not in shown:
        known = _lines(shown["entries"])
        planned = ((title, "update" if title in known else "create") for title in told)
        pages = [{"path": f"semantic/{title}.md", "action": action} for title, action in planned]
        return {"pages": [page | {"reason": "what was said of it"} for page in pages[:MOST_PAGES]]}
    named, today = PAGE.search(question), DATED.search(question)
    title = named[1].removeprefix("semantic/") if named else ABOUT
    return _page(title, told.get(title, {}), shown["memory"], today[1] if today else "")


def _page(title: str, told: Mapping[str, str], before: str, today: str) -> str:
    """The page as it is with what is new, a line each."""
    matter = MATTER.match(before)
    created = re.search(r"created: (\S+)", matter[0]) if matter else None
    body = without_matter(before).strip() if matter else f"# {title}\n"
    new = [f"{line} {number}".rstrip() for line, number in told.items() if line[2:] not in body]
    head = f"---\ncreated: {created[1] if created else today}\nupdated: {today}\n---"
    return "\n".join([head, "", body, *new, ""])


ANSWERS: Mapping[str, Callable[[Blocks, str], Json | str]] = {
    "transcript": _harvested,
    "raw_input": _split,
    "new_contents": _rewritten,
    "candidate_new_memories": _core,
    "entries": lambda shown, _: {
        "text": " ".join(map(_ended, _distinct(_lines(shown["entries"]))))
    },
    "second": _settled,
    "memories": lambda shown, _: "\n".join(_distinct(_lines(shown["memories"]))),
    "tasks": lambda *_: {"actions": []},
    "skills": lambda *_: {"text": ""},
    "history": _summed_up,
}
"""By the last block of the question."""
