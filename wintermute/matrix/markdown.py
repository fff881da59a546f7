"""The model's Markdown as the content of a Matrix message: readable text and clean HTML."""

import html as entities
import json
import re
from collections.abc import Sequence
from typing import Any, Literal

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

from wintermute import text
from wintermute.messages import Json

RENDERED_MOST = 12_000
"""Characters. Answers are split before they are so long; the parser is quadratic in places."""
NESTED_MOST = 30
CELLS_MOST = 5_000
"""Markdown fills short table rows up, so a few kilobytes can ask for a megabyte of cells."""
CONTENT_MOST = 40_000
"""Bytes of a content as JSON. Synapse refused encrypted events beyond 48,368."""

TAGS = frozenset(
    {"a", "blockquote", "br", "code", "del", "em", "hr", "li", "ol", "p", "pre", "s", "strong"}
    | {"h1", "h2", "h3", "h4", "h5", "h6", "table", "tbody", "td", "th", "thead", "tr", "ul"}
)
SCHEMES = frozenset({"http", "https", "mailto", "matrix"})
LANGUAGE = re.compile(r"language-[\w+#.-]{1,40}")
ROOM = re.compile(r"@(?=room\b)", re.IGNORECASE)
INERT = "@\u2060"
"""@ and an invisible word joiner: no client or push rule finds "@room" in it, people still do."""


def content(
    markdown: str,
    msgtype: Literal["m.text", "m.notice"] = "m.text",
    *,
    literally: bool = False,
) -> Json:
    """The content of the event that says it. HTML is left out where it adds or fits nothing.

    `literally`: it is no Markdown, and each mark in it is meant.

    The empty `m.mentions` says that nobody is mentioned, whatever the text looks like.
    """
    plainly: Json = {"msgtype": msgtype, "body": plain(markdown), "m.mentions": {}}
    if literally:
        return plainly
    formatted = html(markdown)
    richly = plainly | {"format": "org.matrix.custom.html", "formatted_body": formatted}
    adds = adds_something(formatted, plainly["body"])
    return richly if adds and json_size(richly) <= CONTENT_MOST else plainly


def json_size(value: Json) -> int:
    """Bytes of a content as nio writes it, everything beyond ASCII escaped."""
    return len(json.dumps(value))


def plain(markdown: str) -> str:
    """Markdown is readable as it is."""
    return ROOM.sub(INERT, text.clean(markdown))


def html(markdown: str) -> str:
    """Clean HTML. HTML in the Markdown shows as the text it is, an image as its description."""
    source = text.clean(markdown)
    if too_costly(source):
        return literal(source)
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": NESTED_MOST, "breaks": True})
    parser.enable(["table", "strikethrough"])
    parser.add_render_rule("image", described)
    tokens = parser.parse(source)
    if any(token.nesting == 1 and token.level >= NESTED_MOST - 1 for token in tokens):
        return literal(source)  # the parser drops what is nested deeper
    safe = nh3.clean(
        parser.renderer.render(tokens, parser.options, {}),
        tags=set(TAGS),
        attributes={"*": set(), "a": {"href"}, "code": {"class"}, "ol": {"start"}},
        attribute_filter=known_class,
        url_schemes=set(SCHEMES),
        url_relative="deny",
        link_rel=None,
    ).strip()
    # Nothing left of a text: it was all link definitions, which HTML does not show.
    return without_room_mention(safe) if safe else literal(source)


def too_costly(source: str) -> bool:
    """Whether rendering could take seconds, or more than an event can hold."""
    lines = source.split("\n")
    cells = len(lines) * max(line.count("|") for line in lines)
    return len(source) > RENDERED_MOST or cells > CELLS_MOST


def literal(source: str) -> str:
    """The text itself as HTML, marks and all."""
    shown = entities.escape(source.strip(), quote=False).replace("\n", "<br>\n")
    return without_room_mention(f"<p>{shown}</p>") if shown else ""


def described(
    renderer: Any, tokens: Sequence[Token], at: int, options: Any, environment: Any
) -> str:
    """An image as text: nothing is loaded from anywhere because a model said so."""
    image = tokens[at]
    words: str = renderer.renderInlineAsText(image.children or [], options, environment)
    return entities.escape(words or str(image.attrs.get("src", "")))


def known_class(tag: str, attribute: str, value: str) -> str | None:
    """Attribute values as they are, but of classes only a code block's language."""
    return value if attribute != "class" or LANGUAGE.fullmatch(value) else None


def without_room_mention(safe: str) -> str:
    """HTML whose text does not call the whole room; tags (a link may hold `@room`) stay."""
    pieces = re.split(r"(<[^>]*>)", safe)
    return "".join(p if p.startswith("<") else ROOM.sub(INERT, p) for p in pieces)


def adds_something(formatted: str, body: str) -> bool:
    """Whether HTML says more than the body: not when it is one paragraph of the same text."""
    inner = formatted.removeprefix("<p>").removesuffix("</p>").replace("<br>\n", "\n")
    return "<" in inner or entities.unescape(inner) != body.strip()
