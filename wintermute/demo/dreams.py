"""What the practice model answers at night: what is alike becomes one, and of two the newer one stays.

`dream_answer` is pure. It puts nothing in other words: it joins, or leaves out what another one says.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence

from wintermute.memory.sense import main_words
from wintermute.messages import Json

SHOWN = re.compile(
    r"^<(entries|first|second|memories|tasks|skills)>\n(.*?)\n?^</\1>", re.DOTALL | re.MULTILINE
)
ENTRY = re.compile(r"\d{4}-\d\d-\d\d, [^:\n]{1,200}: ")
"""What stands before a memory: the day it was said, and who said it."""
NEWS = re.compile(r"\b(?:now|no longer|any ?more|instead|moved|changed)\b", re.IGNORECASE)
"""By such a word somebody says that it was otherwise before."""
TASK = re.compile(r"\b(task_\w+)[:,]? (.+?)(?: \[[^\]\n]*\])?$", re.MULTILINE)


def dream_answer(question: str) -> str | None:
    """The answer to such a question; None: it is another."""
    shown: Mapping[str, str] = dict(SHOWN.findall(question))
    for names, answer in ANSWERS.items():
        if shown.keys() == set(names) and question.rstrip().endswith(f"</{names[-1]}>"):
            return answer(shown)
    return None


def joined(lines: Sequence[str]) -> list[str]:
    """The lines that say something which no other one does; of those that say the same the longest."""
    about = [main_words(line) for line in lines]
    order = sorted(range(len(lines)), key=lambda n: (-len(lines[n]), n))
    kept = list[int]()
    for n in order:
        if not any(about[n] <= about[m] for m in kept):
            kept.append(n)
    return [lines[n] for n in sorted(kept)]


def _lines(block: str) -> list[str]:
    return [text for line in block.splitlines() if (text := line.removeprefix("- ").strip())]


def _sentence(lines: Sequence[str]) -> str:
    return " ".join(line if line.endswith((".", "!", "?", "…")) else f"{line}." for line in lines)


def _merged(shown: Mapping[str, str]) -> str:
    return _as_json({"text": _sentence(joined(_lines(shown["entries"])))})


def _settled(shown: Mapping[str, str]) -> str:
    first, second = (ENTRY.sub("", shown[name].strip(), count=1) for name in ("first", "second"))
    if NEWS.search(second) and not NEWS.search(first):
        return _as_json({"action": "keep_second"})
    if len(both := joined([first, second])) > 1:
        return _as_json({"action": "keep_both"})
    return _as_json({"action": "merge", "text": _sentence(both)})


def _listed(shown: Mapping[str, str]) -> str:
    return "\n".join(joined(_lines(shown["memories"])))


def _tidied(shown: Mapping[str, str]) -> str:
    """Of two tasks in the same words the later one is done with."""
    seen: dict[frozenset[str], str] = {}
    actions = []
    for name, content in TASK.findall(shown["tasks"]):
        first = seen.setdefault(main_words(content), name)
        if first != name:
            reason = f"says the same as {first}"
            actions.append({"task_id": name, "action": "complete", "reason": reason})
    return _as_json({"actions": actions})


def _skill(_: Mapping[str, str]) -> str:
    """Whoever knows no better than its words makes no procedure better."""
    return _as_json({"text": ""})


def _as_json(answer: Json) -> str:
    return json.dumps(answer, ensure_ascii=False)


ANSWERS: Mapping[tuple[str, ...], Callable[[Mapping[str, str]], str]] = {
    ("entries",): _merged,
    ("first", "second"): _settled,
    ("memories",): _listed,
    ("tasks",): _tidied,
    ("skills",): _skill,
}
