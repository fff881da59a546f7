"""What the practice model answers where pages are made of a conversation: a plan, and each page.

`page_answer` is pure. A page is made for each thing that somebody calls theirs, and one for the rest.
"""

import json
import re
from collections.abc import Mapping

from wintermute.demo.unasked import SPOKEN, statements
from wintermute.wiki.pages import MATTER, without_matter

SHOWN = re.compile(
    r"^<(entries|index|memories|memory|transcript)>\n(.*?)\n?^</\1>", re.DOTALL | re.MULTILINE
)
FILE_SPOKEN = re.compile(r"^user: (.*(?:\n  .*)*)", re.MULTILINE)
NUMBERED = re.compile(r"^\[\d+\]$", re.MULTILINE)
MINE = re.compile(r"\b(?:my|our) ([^\W\d_]{2,30})", re.IGNORECASE)
PAGE = re.compile(r"^.*?(semantic/[^\n,]+\.md), (?:create|update)\b", re.MULTILINE)
DATED = re.compile(r"^---\ncreated: [\d-]+\nupdated: ([\d-]+)\n---$", re.MULTILINE)
ABOUT = "About you"
MOST_PAGES = 5


def page_answer(question: str) -> str | None:
    """The answer to such a question; None: it is another."""
    shown: Mapping[str, str] = dict(SHOWN.findall(question))
    if not question.rstrip().endswith("</transcript>") or "entries" not in shown:
        return None
    told = _told(shown["transcript"])
    if "memory" not in shown:
        known = set(shown["entries"].splitlines())
        pages = [_planned(title, known) for title in list(told)[:MOST_PAGES]]
        return json.dumps({"pages": pages}, ensure_ascii=False)
    named = PAGE.search(question)
    title = named[1].removeprefix("semantic/").removesuffix(".md") if named else ABOUT
    today = DATED.search(question)
    return _page(title, told.get(title, {}), shown["memory"], today[1] if today else "")


def _planned(title: str, known: set[str]) -> dict[str, str]:
    action = "update" if {title, f"- {title}"} & known else "create"
    return {"path": f"semantic/{title}.md", "action": action, "reason": "what was said of it"}


def _told(transcript: str) -> dict[str, dict[str, str]]:
    """Collect people's statements, each with the number of its message, by the title of its page."""
    found: dict[str, dict[str, str]] = {}
    parts = zip(["", *NUMBERED.findall(transcript)], NUMBERED.split(transcript), strict=True)
    for number, part in parts:
        said = [words for _, words in SPOKEN.findall(part)] or FILE_SPOKEN.findall(part)
        for line in (line for words in said for line in statements(words)):
            named = MINE.search(line)
            title = f"Your {named[1].lower()}" if named else ABOUT
            found.setdefault(title, {}).setdefault(line, number)
    return found


def _page(title: str, lines: Mapping[str, str], before: str, today: str) -> str:
    """The page as it is with what is new, a line each."""
    matter = MATTER.match(before)
    created = re.search(r"created: (\S+)", matter[0]) if matter else None
    body = without_matter(before).strip() if matter else f"# {title}\n"
    told = ((f"- {line[:1].upper()}{line[1:]}", n) for line, n in lines.items() if line not in body)
    new = [f"{line} {number}".rstrip() for line, number in told]
    head = f"---\ncreated: {created[1] if created else today}\nupdated: {today}\n---"
    return "\n".join([head, "", body.rstrip(), *([""] if not matter else []), *new, ""])
