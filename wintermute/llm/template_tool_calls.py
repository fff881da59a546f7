"""Calls that a model wrote as text: parsing them, and deciding if they count. Pure (F-044).

The end of an answer is its calls, if all of it can be parsed as calls. It stays text if somebody
else may have written it: if it is quoted, in view already, or after a text in a tainted cast.
"""

import html
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wintermute.llm import call_tokens as marks
from wintermute.llm.json_repair import parsed, repaired, unaliased
from wintermute.llm.special_tokens import TURN_ENDS, TextCall, text_of_calls
from wintermute.llm.text_tool_calls import calls_in, json_calls, json_values
from wintermute.messages import CLOSED, OPENED, UNREADABLE, Json, Request, json_in

MOST_CALLS = 100
MOST_WRITTEN = 1_000_000
"""The most characters of calls written as text; none of ours needs as many."""
WORD = re.compile(r"\w+")
ESCAPE = re.compile(r'\[CALL_ID\]\w+|:\d+(?=\s*<)| string=\\*"\w+|\\[nrt]')
FILLER = re.compile(
    r"name|arguments|parameters?|args?|functions?|tool(_name)?|default_api|invoke|call|string"
    r"|arg_(key|value)|escape|json|sep|tool_calls?_\w+|constrain|message|dsml|minimax|type"
)
"""Words of the forms, which are ignored when two spellings of one call are compared."""
KINDS: dict[type, set[str]] = {
    **{bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, str: {"string"}},
    **{dict: {"object"}, list: {"array"}, type(None): {"null"}},
}
SCALARS = {"boolean", "integer", "number"}
CONSTANTS = {"True": "true", "False": "false", "None": "null"}
NamedCall = tuple[str, str]
"""A call's name and arguments."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The texts in view that the model did not write, and the taint of its cast.

    `reported`: the model was told in this cast already that it wrote an unreadable call.
    """

    texts: tuple[str, ...] = ()
    tainted: bool = False
    reported: bool = False

    @property
    def blocks(self) -> tuple[str, ...]:
        """Our own context blocks in the messages, which some models repeat."""
        tails = (text[text.rfind(OPENED) :] for text in self.texts if OPENED in text)
        return tuple(text[: text.find(CLOSED) + len(CLOSED)] for text in tails if CLOSED in text)

    def holds(self, calls: Collection[NamedCall]) -> bool:
        """Return True if one of the texts contains one of the calls, in any form."""
        for text in self.texts:
            near = [call for call in calls if call[0] in text]
            words = _content_words(text) if near else ""
            if any(
                _is_copied(name, parsed(arguments) or {}, text, words) for name, arguments in near
            ):
                return True
        return False


def _is_copied(name: str, arguments: Json, text: str, words: str) -> bool:
    pairs = [
        _content_words(f"{key} {value if isinstance(value, str) else json.dumps(value)}")
        for key, value in arguments.items()
    ]
    if not pairs:
        return re.search(rf'[>"=:.]\s*{re.escape(name)}[\s\\]*["<>({{]', text) is not None
    called = (
        _content_words(name) + pair[1:] in words or pair + _content_words(name)[1:] in words
        for pair in pairs
    )
    return all(pair in words for pair in pairs) and any(called)


def context_of(request: Request) -> CallContext:
    """Return the context that decides if a call in the answer counts."""
    messages = request.messages
    texts = (str(each.get("content") or "") for each in messages if each["role"] != "assistant")
    last = max((n for n, each in enumerate(messages) if each["role"] == "user"), default=0)
    calls = [call for each in messages[last:] for call in each.get("tool_calls", ())]
    told = any(call["function"]["name"] == UNREADABLE for call in calls)
    return CallContext(tuple(texts), request.tainted, told)


def _content_words(text: str) -> str:
    words = WORD.findall(ESCAPE.sub(" ", html.unescape(text)).casefold())
    return f" {' '.join(word for word in words if not FILLER.fullmatch(word))} "


def split_calls(
    tail: Sequence[TextCall | str],
    before: str,
    offered: Mapping[str, Json],
    view: CallContext,
    *,
    is_whole: bool,
) -> tuple[str, list[NamedCall]]:
    """Return the text that remains of an answer's end, and the calls in it.

    `before`: the answer's text. An unreadable call is reported to the model, if its answer is
    whole.
    """
    first, found, broken = 0, list[NamedCall](), list[TextCall]()
    for n, piece in enumerate(tail if offered else ()):
        if isinstance(piece, str):
            continue
        if calls := template_calls(piece, offered):
            found += calls
        elif piece.form.is_text and piece.form is not marks.FENCE:
            first, found, broken = n + 1, [], []
        else:
            broken.append(piece)
    text = text_of_calls(tail[:first] if offered else tail)
    is_behind = view.tainted and bool((before + text).strip())
    quoted = any(isinstance(piece, TextCall) and piece.quoted for piece in tail[first:])
    if found and (len(found) > MOST_CALLS or is_behind or quoted or view.holds(found)):
        return text + text_of_calls(tail[first:], whole=True), []
    if broken and is_whole and not (view.reported or quoted):
        found.append((UNREADABLE, json.dumps({"text": broken[0].body[:2000]}, ensure_ascii=False)))
    return text, found


def template_calls(written: TextCall, offered: Mapping[str, Json]) -> list[NamedCall]:
    """Return names and arguments if a text is nothing but calls of offered tools.

    `offered`: the parameters of each tool, as JSON schema, by its name.
    """
    if len(written.body) > MOST_WRITTEN:
        return []
    if written.form is marks.BARE:
        return json_calls(written.body, offered)
    try:
        calls = [unaliased(*each) for each in _parsed_calls(written, offered)]
        named = [(known_name(name, offered), arguments) for name, arguments in calls]
    except (ValueError, TypeError, RecursionError):
        return []
    return named if all(name in offered for name, _ in named) else []


def known_name(name: str, offered: Mapping[str, Json]) -> str:
    """Return the tool for a name with a prefix or a leaked token; else the name unchanged."""
    if name in offered:
        return name
    bare = marks.LEAKED.sub("", name).strip()
    named = (bare.removeprefix(prefix) for prefix in ("", *marks.PREFIXES))
    return next((each for each in named if each in offered), name)


def typed(name: str, arguments: str, offered: Mapping[str, Json]) -> str:
    """Convert arguments that came as text to numbers or truth values where the schema requires it."""
    values, converted = parsed(arguments) or {}, dict[str, Any]()
    for key, value in values.items():
        types = _types(name, key, offered)
        if isinstance(value, str) and "string" not in types and types & SCALARS:
            scalar = _typed_value(value.strip().lower(), types & SCALARS)
            converted |= {} if isinstance(scalar, str) else {key: scalar}
    return json.dumps(values | converted, ensure_ascii=False) if converted else arguments


def _types(name: str, key: str, offered: Mapping[str, Json]) -> set[str]:
    schema = offered.get(name, {}).get("properties", {}).get(key, {})
    types = [each.get("type", ()) for each in (schema, *schema.get("anyOf", ()))]
    return {one for listed in types for one in ([listed] if isinstance(listed, str) else listed)}


# All of these raise ValueError, or a parser's error, if the text is no call.


def _parsed_calls(written: TextCall, offered: Mapping[str, Json]) -> Iterator[NamedCall]:
    body = written.body
    for part in marks.UNWANTED:
        body = body.replace(part, "")
    for end in TURN_ENDS:
        body = body.removesuffix(end).rstrip()
    if written.form.name:
        yield written.form.name, _object(body)
    elif named := next(filter(None, (_filling_matches(each, body) for each in marks.NAMED)), None):
        yield from ((name, _object(arguments)) for name, arguments in named)
    elif elements := _filling_matches(marks.ELEMENT, body) or (
        _filling_matches(marks.GLM, body) if "<arg_key>" in body else []
    ):
        for name, inside in elements:
            yield name, _single_arguments(known_name(name, offered), inside, offered)
    else:
        yield from [(body, "{}")] if body in offered else _listed(body, offered)


def _listed(body: str, offered: Mapping[str, Json]) -> Iterator[NamedCall]:
    if body.startswith("call:"):
        yield from (
            (name, _object(marks.GEMMA.sub(_gemma_json, rest)))
            for name, rest in _filling_matches(marks.CALL, body)
        )
        return
    if not body.lstrip("[ \n").startswith("{"):
        body = marks.PYTHON.sub(_json_of, marks.PRINTED.sub(r"\1", body))
    for value in json_values(body):
        for each in value if isinstance(value, list) else [value]:
            name = next(iter(each), "")
            is_named = name in offered  # Apertus: {"tool": {arguments}}
            meant = {"name": name, "arguments": each[name]} if is_named else each
            yield from calls_in(meant, missing={})


def _json_of(match: re.Match[str]) -> str:
    """Convert a part of a call from Python to JSON."""
    text, name, mark, end, constant = match.groups()
    if text:
        return f'"{marks.QUOTE.sub(_quote, text[1:-1])}"'
    if name:
        return f'"{name}":' if mark == "=" else f'{{"name":"{name}","arguments":{{'
    return "}}" if end else CONSTANTS[constant]


def _quote(match: re.Match[str]) -> str:
    return {"\\'": "'", '"': '\\"'}.get(match[0], match[0])


def _filling_matches(pattern: re.Pattern[str], body: str) -> list[NamedCall]:
    """Return the matches of a pattern one after another, if they fill the body."""
    matches, at = list[NamedCall](), 0
    while at < len(body):
        match = pattern.match(body, at)
        if match is None:
            return []
        matches.append((match[1], match[2]))
        at = match.end()
    return matches


def _gemma_json(match: re.Match[str]) -> str:
    return json.dumps(match[1]) if match[3] is None else f'{match[2] or ","}"{match[3]}":'


def _object(arguments: str) -> str:
    text = repaired(arguments.strip())
    if parsed(text) is None:
        raise ValueError(text[:20])
    return text


def _single_arguments(name: str, inside: str, offered: Mapping[str, Json]) -> str:
    """Parse single arguments without quotation marks, with the tool's types."""
    inside = inside.strip()
    if inside[:1] in ("", "{"):
        return _object(inside)
    pairs = next(filter(None, (_filling_matches(each, inside) for each in marks.VALUES)), None)
    if pairs is None:
        raise ValueError(inside[:20])
    arguments = {key: _typed_value(value, _types(name, key, offered)) for key, value in pairs}
    return json.dumps(arguments, ensure_ascii=False)


def _typed_value(value: str, types: set[str]) -> Any:
    decoded = json_in(value, value)
    return decoded if not types or KINDS[type(decoded)] & types else value
