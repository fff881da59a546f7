"""The practice model's answers to background questions: learning, nights, pages and summaries. Pure.

The last block of data shows which question it is. Most answers are canned: they change nothing.
"""

import json
import re
from collections.abc import Callable, Mapping

from wintermute.memory.lexical_overlap import main_words
from wintermute.messages import Json
from wintermute.secret_shapes import secret_kind
from wintermute.wiki.pages import without_matter

BLOCKS = re.compile(r"^<(\w+)>\n(.*?)\n?^</\1>$", re.DOTALL | re.MULTILINE)
SPOKEN = re.compile(
    r"^(?:(\[\d+\])$|(?! )(?:.{1,200}? \(@[^\s()]+\)|user): (.*(?:\n  .*)*))", re.MULTILINE
)
"""A message's number, or a person's lines in a transcript; further lines are indented."""
SENTENCE = re.compile(r"[^.!?…]+[.!?…]*")
OPENING = re.compile(
    r"(?:(?:oh|well|by the way|btw|so|and|but|yes|no|hi|hello|(?:hey )?wintermute)[,:]? )+", re.I
)
STATEMENT = re.compile(
    r"(?:(?:i|we|my|our|(?:i|we)['\u2019](?:m|ve|re|d))\b"
    r"|(?:please )?(?:never|always|do not|don['\u2019]t)(?! forget)\b).+",
    re.IGNORECASE,
)
WISH = re.compile(
    r"(?:i|we)(?:['\u2019](?:d|ll)| (?:would|will|want|need|wonder|think|guess|hope)\b)", re.I
)
"""The beginning of a statement that does not last, such as a wish."""
MESSAGE = re.compile(r"^(?:\[message\]\n|- )(\S.*)$", re.MULTILINE)
MINE = re.compile(r"\b(?:my|our) ([^\W\d_]{2,30})", re.I)
DATED = re.compile(r"^---\ncreated: [\d-]+\nupdated: [\d-]+\n---\n", re.MULTILINE)
USER = "The user"
LEAST_WORDS = 3
MOST_SUMMED = 8
MOST_SUMMARY = 80
Blocks = Mapping[str, str]


def background_answer(asked: Json) -> str | None:
    """Answer a background question; None if it is none."""
    question = asked.get("content")
    if asked.get("role") != "user" or not isinstance(question, str):
        return None
    shown: Blocks = dict(BLOCKS.findall(question))
    known = ANSWERS.get([*shown][-1]) if shown else None
    found = known(shown, question) if known else None
    return json.dumps(found, ensure_ascii=False) if isinstance(found, dict) else found


def statements(text: str) -> list[str]:
    """Return the sentences in which people describe themselves, or how they want to be treated."""
    found = []
    for sentence in SENTENCE.findall(" ".join(text.split())):
        words = OPENING.sub("", sentence.strip(), count=1)
        is_statement = (
            STATEMENT.fullmatch(words) and not WISH.match(words) and not secret_kind(words)
        )
        if is_statement and len(words.split()) >= LEAST_WORDS and not words.endswith("?"):
            found.append(ended(words))
    return found


def ended(line: str) -> str:
    """Return a sentence with its full stop."""
    return line if line.endswith((".", "!", "?", "…", "。")) else f"{line}."


def _lines(block: str) -> list[str]:
    lines = (line.removeprefix("- ").strip() for line in block.splitlines())
    return [line for line in lines if line and line != "(none)"]


def _learnt(shown: Blocks, question: str) -> Json | str:
    """Return the statements of people as memories, or as a page."""
    number, lines = "", dict[str, str]()
    for mark, words in SPOKEN.findall(shown["transcript"]):
        number = mark or number
        lines |= {line: number for line in statements(words) if line not in lines}
    if "entries" not in shown:
        return {"contents": [f"{USER} said: {line}" for line in lines]}
    named = MINE.search(" ".join(lines))
    title = f"Your {named[1].lower()}" if named else "About you"
    if "memory" in shown:
        return _page(shown["memory"], title, lines, question)
    action = "update" if title in _lines(shown["entries"]) else "create"
    page = {"path": f"semantic/{title}.md", "action": action, "reason": "what was said of it"}
    return {"pages": [page] if lines else []}


def _page(before: str, title: str, numbered: Mapping[str, str], question: str) -> str:
    """Return the page with the new lines, each with the number of its message."""
    body = without_matter(before).strip() if before.startswith("---") else f"# {title}\n"
    lines = {f"- {line[:1].upper()}{line[1:]}": number for line, number in numbered.items()}
    new = [f"{line} {number}".rstrip() for line, number in lines.items() if line not in body]
    head = DATED.search(question)
    return "\n".join([head[0] if head else "", body, *new, ""])


def _merged(shown: Blocks, _: str) -> Json:
    """Return the entries, without those whose main words are all in a longer one."""
    kept = list[str]()
    lines = _lines(shown["entries"])
    for line in sorted(lines, key=len, reverse=True):
        if not any(main_words(line) <= main_words(other) for other in kept):
            kept.append(line)
    return {"text": " ".join(ended(line) for line in lines if line in kept)}


def _kept(shown: Blocks, _: str) -> Json:
    lines = _lines(shown.get("related_memories", "")) + _lines(shown["new_contents"])
    return {"memories": list(dict.fromkeys(lines)), "coverage": "complete"}


def _summed_up(shown: Blocks, _: str) -> str:
    """Return the newest words of people, each shortened to a line (L-039)."""
    said = [text[:MOST_SUMMARY] for text in MESSAGE.findall(shown["history"])]
    return "\n- ".join(["What was said so far:", *said[-MOST_SUMMED:]])


ANSWERS: Mapping[str, Callable[[Blocks, str], Json | str]] = {
    "transcript": _learnt,
    "entries": _merged,
    "new_contents": _kept,
    "history": _summed_up,
    "raw_input": lambda shown, _: {"contents": [" ".join(shown["raw_input"].split())]},
    "candidate_new_memories": lambda *_: {"should_update": False, "core_markdown": None},
    "second": lambda *_: {"action": "keep_both"},
    "memories": lambda shown, _: shown["memories"],
    "tasks": lambda *_: {"actions": []},
    "skills": lambda *_: {"text": ""},
}
"""The function that answers, by the last block of the question."""
