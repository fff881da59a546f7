"""What the practice model answers where nobody waits: what was told, one clear version of it, the core.

`unasked` is pure. A question is known by the blocks of data that it ends with, and its answer is the
JSON of M-072. A statement is a sentence in which people speak of themselves, or state a rule.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence

from wintermute.memory.core import HEADERS, bullets
from wintermute.messages import Json
from wintermute.secret_shapes import secret_kind

BLOCKS = re.compile(r"^<(\w+)>\n(.*?)\n?^</\1>(?:\s*\Z|\n(?=<))", re.DOTALL | re.MULTILINE)
SPOKEN = re.compile(r"^(?! )(.{1,200}? \(@[^\s()]+\)): (.*(?:\n  .*)*)", re.MULTILINE)
"""What a person said in a transcript; a line that goes on is indented."""
SENTENCE = re.compile(r"[^.!?…]+[.!?…]*")
OPENING = re.compile(
    r"(?:(?:oh|well|by the way|btw|so|and|but|yes|no|hi|hello|(?:hey )?wintermute)[,:]? )+",
    re.IGNORECASE,
)
RULE = r"(?:please )?(?:never|always|do not|don['\u2019]t)(?! forget)\b.+"
STATEMENT = re.compile(rf"(?:i|we|my|our|(?:i|we)['\u2019](?:m|ve|re|d))\b.+|{RULE}", re.IGNORECASE)
WISH = re.compile(
    r"(?:i|we)(?:['\u2019](?:d|ll)| (?:would|will|want|need|wonder|think|guess|hope)\b)",
    re.IGNORECASE,
)
"""What begins like a statement and is none that lasts."""
SAID_RULE = re.compile(rf"(?:.{{1,200}}? said: )?{RULE}", re.IGNORECASE)
WORD = re.compile(r"\w+")
USER = "The user"
LEAST_WORDS = 3
MOST_BULLETS = 8
UNDER = "# RULE"


def statements(text: str) -> list[str]:
    """The sentences in which somebody tells of themselves, or how they want to be treated."""
    found = []
    for sentence in SENTENCE.findall(" ".join(text.split())):
        words = OPENING.sub("", sentence.strip(), count=1)
        told = STATEMENT.fullmatch(words) and not WISH.match(words) and not secret_kind(words)
        if told and len(words.split()) >= LEAST_WORDS and not words.endswith("?"):
            found.append(words if words.endswith((".", "!", "…")) else f"{words}.")
    return found


def unasked(messages: Sequence[Json]) -> str | None:
    """The answer to such a question; None: it is another. A second try is answered as the first."""
    question = messages[0].get("content")
    if messages[0].get("role") != "user" or not isinstance(question, str):
        return None
    shown = dict(BLOCKS.findall(question))
    for names, answer in ANSWERS.items():
        if shown.keys() == set(names):
            return json.dumps(answer(shown), ensure_ascii=False)
    return None


def _harvested(shown: Mapping[str, str]) -> Json:
    """What people said, each sentence with who said it where there are several."""
    said = SPOKEN.findall(shown["transcript"])
    several = len({who for who, _ in said}) > 1
    told = [(who if several else USER, line) for who, words in said for line in statements(words)]
    return {"contents": [f"{who} said: {line}" for who, line in told]}


def _split(shown: Mapping[str, str]) -> Json:
    sentences = (part.strip() for part in SENTENCE.findall(" ".join(shown["raw_input"].split())))
    return {"contents": [part for part in sentences if len(part.split()) >= LEAST_WORDS]}


def _rewritten(shown: Mapping[str, str]) -> Json:
    """All of it, without what another one says in the same words and more."""
    lines = [*_listed(shown["related_memories"]), *_listed(shown["new_contents"])]
    lines = list({line.casefold(): line for line in lines}.values())
    known = [set(WORD.findall(line.casefold())) for line in lines]
    kept = [
        line
        for n, line in enumerate(lines)
        if not any(known[n] < more or (known[n] == more and m < n) for m, more in enumerate(known))
    ]
    return {"memories": kept, "coverage": "complete"}


def _core(shown: Mapping[str, str]) -> Json:
    """The page with the rules that were stated and are not on it, while it is short."""
    page = shown["current_core_markdown"]
    room = MOST_BULLETS - len(bullets(page))
    rules = [line for line in _listed(shown["candidate_new_memories"]) if SAID_RULE.fullmatch(line)]
    new = [f"- {line}" for line in rules if f"- {line}" not in page.splitlines()][: max(0, room)]
    before, header, after = page.partition(f"{UNDER}\n")
    if not new or not header:
        return {"should_update": False, "core_markdown": None}
    rest = re.split(rf"^(?={HEADERS[-1]}$)", after, maxsplit=1, flags=re.MULTILINE)
    section = [rest[0].strip(), *new] if rest[0].strip() else new
    text = "\n".join([*section, "", *rest[1:]])
    return {"should_update": True, "core_markdown": f"{before}{header}{text}"}


def _listed(block: str) -> list[str]:
    lines = (line.removeprefix("- ").strip() for line in block.splitlines())
    return [line for line in lines if line and line != "(none)"]


ANSWERS: Mapping[tuple[str, ...], Callable[[Mapping[str, str]], Json]] = {
    ("transcript",): _harvested,
    ("raw_input",): _split,
    ("related_memories", "new_contents"): _rewritten,
    ("current_core_markdown", "candidate_new_memories"): _core,
}
