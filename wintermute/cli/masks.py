"""Exports that may be given away: secrets, people and texts give way to what stands for them. Pure."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

_SERVER = r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*)(?::\d+)?"
PERSON = re.compile(rf'@[^\s:@"\\]{{1,255}}:{_SERVER}')
ROOM = re.compile(rf'[!#][^\s:@"\\]{{1,255}}:{_SERVER}')
TEXTS = frozenset(
    {"intent", "utterance", "result", "args", "arguments", "summary", "text", "content"}
)
"""Keys below which people and models speak."""


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """JSON with every text in it changed, keys as well."""
    match value:
        case str():
            return change(value)
        case list() | tuple():
            return [changed(item, change) for item in value]
        case dict():
            return {change(key): changed(item, change) for key, item in value.items()}
        case _:
            return value


def without_texts(value: Any) -> Any:
    """JSON in which each text that somebody said is only as long as it was (L-088)."""
    match value:
        case list() | tuple():
            return [without_texts(item) for item in value]
        case dict():
            return {key: _without_texts(key, item) for key, item in value.items()}
        case _:
            return value


def _without_texts(key: str, value: Any) -> Any:
    if key in TEXTS:
        return changed(_listed(value), _length)
    return value if key == "tools" else without_texts(value)  # those are ours


def _listed(value: Any) -> Any:
    """Names of arguments may be anything a model wrote: only the values count."""
    if isinstance(value, dict):
        return [_listed(item) for item in value.values()]
    return [_listed(item) for item in value] if isinstance(value, list) else value


def _length(text: str) -> str:
    return f"[{len(text)} characters]"


def without_people(
    value: Any, people: Iterable[tuple[str, str]], rooms: Iterable[str], known: Mapping[str, str]
) -> Any:
    """JSON with the same word for the same person or room everywhere (L-088).

    `people` are ids and display names, `rooms` ids; others that look like one are found. `known`
    has the words for ids that have a meaning of their own.
    """
    text = json.dumps(value, ensure_ascii=False)
    named = dict(known)
    listed = list(people)
    for one in (*(person for person, _ in listed), *PERSON.findall(text)):
        named.setdefault(one, f"person{sum(map(_is_person, named.values())) + 1}")
    for one in (*rooms, *ROOM.findall(text)):
        named.setdefault(one, f"room{sum(map(_is_room, named.values())) + 1}")
    looks = {**{quote(one, safe=""): word for one, word in named.items()}, **named}
    names = {
        look: named[person] for person, name in listed for look in _looks(name) if len(look) > 1
    }
    return changed(value, _Replaced(looks, names))


def _is_person(word: str) -> bool:
    return word.startswith("person")


def _is_room(word: str) -> bool:
    return word.startswith("room")


def _looks(name: str) -> tuple[str, str]:
    """A display name, and as an intent shows it (see `conversation.intent`)."""
    return name.strip(), " ".join(name.translate(str.maketrans("", "", "@:()<>")).split())


class _Replaced:
    """Puts words for ids and for names that stand alone, longest first."""

    def __init__(self, ids: Mapping[str, str], names: Mapping[str, str]) -> None:
        self._words = {**{name.casefold(): word for name, word in names.items()}, **ids}
        longest = sorted(map(re.escape, ids), key=len, reverse=True)
        alone = sorted(map(re.escape, names), key=len, reverse=True)
        parts = [*longest, *(rf"(?<!\w)(?i:{name})(?!\w)" for name in alone)]
        self._pattern = re.compile("|".join(parts) or r"(?!)")

    def __call__(self, text: str) -> str:
        return self._pattern.sub(self._word, text)

    def _word(self, match: re.Match[str]) -> str:
        return self._words.get(match[0]) or self._words[match[0].casefold()]
