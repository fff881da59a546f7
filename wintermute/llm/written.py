"""Calls that a model wrote as text: which they are, and whether they count. Pure (F-044).

What ends an answer is its calls if all of it can be read so. It is text where somebody else may
have put it there: quoted, standing in view already, or behind something in a tainted cast.
"""

import ast
import html
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wintermute.llm.call_marks import (
    BARE,
    ELEMENT,
    FENCE,
    GLM,
    LEAKED,
    NAMED,
    PREFIXES,
    UNWANTED,
    VALUES,
)
from wintermute.llm.markup import TURN_ENDS, Written, restored
from wintermute.llm.spelled import json_values, spelled_calls
from wintermute.llm.wording import parsed, repaired, unaliased
from wintermute.messages import CLOSED, OPENED, UNREADABLE, Json, Request

MOST_WRITTEN = 1_000_000
"""Characters of calls written as text; no call of ours needs as many."""
MOST_PYTHON = 100_000
WORD = re.compile(r"\w+")
ESCAPE = re.compile(r' string=\\*"\w+|\\[nrt]')
FILLER = re.compile(
    r"name|arguments|parameters?|args?|functions?|tool(_name)?|default_api|invoke|call|string"
    r"|arg_(key|value)|escape|dsml|minimax|type"
)
"""Words of the forms, in which two writings of one call differ."""
KINDS: dict[type, set[str]] = {
    **{bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, str: {"string"}},
    **{dict: {"object"}, list: {"array"}, type(None): {"null"}},
}
SCALARS = {"boolean", "integer", "number"}
CONSTANTS = {"true": True, "false": False, "null": None}
Found = tuple[str, str]
"""A name and arguments."""


@dataclass(frozen=True, slots=True)
class View:
    """The texts in view that the model did not write, and whether its cast is tainted.

    `told`: it was told in this cast already that a mark of its led to no call.
    """

    texts: tuple[str, ...] = ()
    tainted: bool = False
    told: bool = False

    @classmethod
    def of(cls, request: Request) -> "View":
        """The view of a question."""
        messages = request.messages
        texts = (str(each.get("content") or "") for each in messages if each["role"] != "assistant")
        last = max((n for n, each in enumerate(messages) if each["role"] == "user"), default=0)
        calls = [call for each in messages[last:] for call in each.get("tool_calls", ())]
        told = any(call["function"]["name"] == UNREADABLE for call in calls)
        return cls(tuple(texts), request.tainted, told)

    @property
    def blocks(self) -> tuple[str, ...]:
        """What we have told with messages, which some models repeat."""
        found = (text[text.rfind(OPENED) :] for text in self.texts if OPENED in text)
        return tuple(text[: text.find(CLOSED) + len(CLOSED)] for text in found if CLOSED in text)

    def holds(self, name: str, arguments: str) -> bool:
        """Whether the call stands in one of the texts, in whatever form."""
        pairs = [
            _words(f"{key} {value if isinstance(value, str) else json.dumps(value)}")
            for key, value in (parsed(arguments) or {}).items()
        ]
        bare = re.compile(rf'[>"=:.]\s*{re.escape(name)}[\s\\]*["<>({{]')
        for text in self.texts:
            if name not in text:
                continue
            words = _words(text) if pairs else ""
            if all(pair in words for pair in pairs) and (pairs or bare.search(text)):
                return True
        return False


def _words(text: str) -> str:
    found = WORD.findall(ESCAPE.sub(" ", html.unescape(text)).casefold())
    return f" {' '.join(word for word in found if not FILLER.fullmatch(word))} "


def settled(
    tail: Sequence[Written | str],
    before: str,
    offered: Mapping[str, Json],
    view: View,
    *,
    is_whole: bool,
) -> tuple[str, list[Found]]:
    """The text that stays of what ends an answer, and the calls in it.

    `before`: what the answer said. A mark that leads to no call is one that the model is told of,
    if its answer is whole.
    """
    first, found, broken = 0, list[Found](), list[Written]()
    for n, piece in enumerate(tail if offered else ()):
        if isinstance(piece, str):
            continue
        if calls := written_calls(piece, offered):
            found += calls
        elif piece.form.is_text and piece.form is not FENCE:
            first, found, broken = n + 1, [], []
        else:
            broken.append(piece)
    text = restored(tail[:first] if offered else tail)
    is_behind = view.tainted and bool((before + text).strip())
    quoted = any(isinstance(piece, Written) and piece.quoted for piece in tail[first:])
    if found and (is_behind or quoted or any(view.holds(*call) for call in found)):
        return text + restored(tail[first:], whole=True), []
    if broken and is_whole and not (view.told or quoted):
        found.append((UNREADABLE, json.dumps({"text": broken[0].body[:2000]}, ensure_ascii=False)))
    return text, found


def written_calls(written: Written, offered: Mapping[str, Json]) -> list[Found]:
    """Names and arguments of what a model wrote as text, if all of it is calls of offered tools.

    `offered`: the parameters of each tool, as JSON schema, by its name.
    """
    if len(written.body) > MOST_WRITTEN:
        return []
    if written.form is BARE:
        return spelled_calls(written.body, offered)
    try:
        found = [unaliased(*each) for each in _read(written, offered)]
        named = [(known_name(name, offered), arguments) for name, arguments in found]
    except (ValueError, TypeError, AttributeError, SyntaxError, RecursionError, MemoryError):
        return []
    return named if all(name in offered for name, _ in named) else []


def known_name(name: str, offered: Mapping[str, Json]) -> str:
    """The tool that a name with a prefix or a leaked token means; else the name as it is."""
    if name in offered:
        return name
    bare = LEAKED.sub("", name).strip()
    named = (bare.removeprefix(prefix) for prefix in ("", *PREFIXES))
    return next((each for each in named if each in offered), name)


def typed(name: str, arguments: str, offered: Mapping[str, Json]) -> str:
    """Arguments in which a number or a truth value that came as text is one where it must be."""
    given, schema = parsed(arguments), offered.get(name, {})
    if given is None or '"' not in arguments:
        return arguments
    meant = {key: _scalar(value, _types(schema, key)) for key, value in given.items()}
    same = all(meant[key] is given[key] for key in given)
    return arguments if same else json.dumps(meant, ensure_ascii=False)


def _types(schema: Json, key: str) -> set[str]:
    properties = schema.get("properties")
    wanted = properties.get(key) if isinstance(properties, dict) else None
    wanted = wanted if isinstance(wanted, dict) else {}
    kinds = [each.get("type") for each in (wanted, *wanted.get("anyOf", ()))]
    return {one for kind in kinds for one in (kind if isinstance(kind, list) else [kind]) if one}


def _scalar(value: Any, types: set[str]) -> Any:
    if not isinstance(value, str) or "string" in types or not types & SCALARS:
        return value
    found = _bare(value.strip().lower(), types & SCALARS)
    is_number = isinstance(found, int | float) and math.isfinite(found)
    return found if is_number else value


# All of these raise ValueError, or what parsers raise, where something is no call.


def _read(written: Written, offered: Mapping[str, Json]) -> Iterator[Found]:
    body = written.body
    for part in UNWANTED:
        body = body.replace(part, "")
    while end := next((end for end in TURN_ENDS if body.lower().endswith(end)), ""):
        body = body[: -len(end)].rstrip()
    if written.form.name:
        yield written.form.name, _object(body)
    elif named := next(filter(None, (_all(each, body) for each in NAMED)), None):
        yield from ((name, _object(arguments)) for name, arguments in named)
    elif elements := _all(ELEMENT, body) or (_all(GLM, body) if "<arg_key>" in body else []):
        for name, inside in elements:
            yield name, _given(known_name(name, offered), inside, offered)
    elif body in offered:
        yield body, "{}"
    else:
        yield from _gemma(body) if body.startswith("call:") else _listed(body, offered)


def _listed(body: str, offered: Mapping[str, Json]) -> Iterator[Found]:
    if not body.lstrip("[ \n").startswith("{"):
        yield from _pythonic(body)
        return
    for value in json_values(body):
        for each in value if isinstance(value, list) else [value]:
            yield _of_object(each, offered)


def _all(pattern: re.Pattern[str], body: str) -> list[Found]:
    """What a pattern finds, if it is all of the body."""
    found = [match.groups()[:2] for match in pattern.finditer(body)]
    return [(name, rest) for name, rest in found] if not pattern.sub("", body).strip() else []


def _object(arguments: str) -> str:
    text = repaired(arguments.strip())
    if parsed(text) is None:
        raise ValueError(text[:20])
    return text


def _given(name: str, inside: str, offered: Mapping[str, Json]) -> str:
    """Arguments that stand one by one, without quotation marks, as the tool wants them."""
    inside = inside.strip()
    if inside[:1] in ("", "{"):
        return _object(inside)
    pairs = next(filter(None, (_all(each, inside) for each in VALUES)), None)
    if pairs is None:
        raise ValueError(inside[:20])
    schema = offered.get(name, {})
    given = {key: _bare(value, _types(schema, key)) for key, value in pairs}
    return json.dumps(given, ensure_ascii=False)


def _bare(value: str, types: set[str]) -> Any:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if not types or KINDS[type(found)] & types else value


def _gemma(body: str) -> Iterator[Found]:
    """The writing of Gemma: keys without quotation marks, texts between tokens."""
    head = re.match(r"call:([\w.-]+)\s*(?=\{)", body)
    if head is None:
        raise ValueError(body[:20])
    parts = re.split(r'<\|"\|>|<escape>', body[head.end() :])
    for n in range(0, len(parts), 2):
        parts[n] = re.sub(r"(\A|[{,])\s*([\w.-]+)\s*:", _key, parts[n])
    for n in range(1, len(parts), 2):
        parts[n] = json.dumps(parts[n], ensure_ascii=False)
    yield head[1], _object("".join(parts))


def _key(found: re.Match[str]) -> str:
    return f'{found[1] or ","}"{found[2]}":'


def _of_object(value: Json, offered: Mapping[str, Json]) -> Found:
    (name, inside), *more = value.items()
    if name in offered and isinstance(inside, dict) and not more:  # Apertus
        return name, json.dumps(inside, ensure_ascii=False)
    function = value.get("function", value)
    function = function if isinstance(function, dict) else {**value, "name": function}
    arguments = function.get("arguments", function.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return str(function.get("name", function.get("tool_name", ""))), _object(text)


class _Constants(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(CONSTANTS[node.id]) if node.id in CONSTANTS else node


def _pythonic(body: str) -> Iterator[Found]:
    """Calls as Python has them: one a line, in a list, or printed."""
    if len(body) > MOST_PYTHON:
        raise ValueError(body[:20])
    for line in ast.parse(body).body:
        yield from _of_node(line.value if isinstance(line, ast.Expr) else line)


def _of_node(node: ast.AST) -> Iterator[Found]:
    if isinstance(node, ast.List | ast.Tuple):
        for each in node.elts:
            yield from _of_node(each)
        return
    if not isinstance(node, ast.Call):
        raise ValueError(type(node).__name__)  # noqa: TRY004  nobody gave us a wrong type
    name = ast.unparse(node.func)
    if name == "print":
        yield from _of_node(ast.Tuple(node.args))
        return
    if node.args:
        raise ValueError(name)
    given = {
        each.arg or "": ast.literal_eval(_Constants().visit(each.value)) for each in node.keywords
    }
    yield name, json.dumps(given, ensure_ascii=False)
