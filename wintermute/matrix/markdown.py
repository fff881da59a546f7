"""The model's Markdown as the content of a Matrix message: readable text and clean HTML.

A long answer in several messages: nothing lost, code blocks whole in each (X-009).
"""

import html as entities
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
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
ESCAPED = re.compile(
    r"(?P<code>(?<!`)(?P<run>`+)(?!`).*?(?<!`)(?P=run)(?!`))|\\(?P<mark>[!-/:-@\[-`{-~])"
)
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
    inner = formatted.removeprefix("<p>").removesuffix("</p>").replace("<br>\n", "\n")
    # One paragraph of the same text says no more than the body.
    adds = "<" in inner or entities.unescape(inner) != plainly["body"].strip()
    return richly if adds and json_size(richly) <= CONTENT_MOST else plainly


def json_size(value: Json) -> int:
    """Bytes of a content as nio writes it, everything beyond ASCII escaped."""
    return len(json.dumps(value))


def plain(markdown: str) -> str:
    """Markdown is readable as it is, but for backslashes that say that a mark is none."""
    source = text.clean(markdown)
    return ROOM.sub(
        INERT, source if len(source) > RENDERED_MOST else unescaped(text.with_math(source))
    )


def unescaped(source: str) -> str:
    """Markdown without the backslashes that HTML does not show; in code each is meant."""
    lines, fence = list[str](), None
    for line in source.split("\n"):
        before, fence = fence, fence_after(line, fence)
        is_code = before or fence or line.startswith(("    ", "\t"))
        lines.append(line if is_code else ESCAPED.sub(r"\g<code>\g<mark>", line))
    return "\n".join(lines)


def html(markdown: str) -> str:
    """Clean HTML. HTML in the Markdown shows as the text it is, an image as its description."""
    source = text.clean(markdown)
    lines = source.split("\n")
    cells = len(lines) * max(line.count("|") for line in lines)
    if len(source) > RENDERED_MOST or cells > CELLS_MOST:  # seconds, or more than an event can hold
        return literal(source)
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": NESTED_MOST, "breaks": True})
    parser.enable(["table", "strikethrough"])
    parser.add_render_rule("image", described)
    tokens = parser.parse(text.with_math(source))
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


LEAST = 512
"""Bytes. Below this a code fence opened and closed again would leave no room for text."""
ENVELOPE = 500
"""Bytes of a content that are neither body nor formatted body."""
INFO_MOST = 64
LINE_MOST = 200
MARKS_MOST = 16
LEAD_MOST = 32
FENCE = re.compile(
    r"(?P<lead>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<marks>`{3,}|~{3,})(?P<info>.*)"
)
BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code block: how far its first line is indented, its marks, its language."""

    indent: int
    marks: str
    info: str

    @property
    def opening(self) -> str:
        """The line that opens it again in a message of its own."""
        info = self.info if size(self.info) <= INFO_MOST else ""
        return f"{self.marks}{info}\n"

    @property
    def closing(self) -> str:
        """The line that closes it where it stands."""
        return "\n" + " " * self.indent + self.marks


Cut = tuple[int, Fence | None]
"""A place to cut, and the code block that is open there."""


def parts(markdown: str, limit: int = 10_000) -> list[str]:
    """The Markdown in pieces of at most `limit` bytes (no less than 512), in order.

    Cut between paragraphs; where there is none between lines, then words, then characters.
    """
    rest, fence = without_blank_ends(text.clean(markdown)), None
    found = []
    while rest:
        part, rest, fence = first_part(rest, fence, max(limit, LEAST))
        if part.strip():
            found.append(part)
    return found


def first_part(rest: str, fence: Fence | None, limit: int) -> tuple[str, str, Fence | None]:
    """The next piece, what is left, and the code block that is open across the cut.

    A piece that grows too large as HTML is made smaller; the smallest goes without HTML.
    """
    while True:
        part, left, still_open = divided(rest, fence, limit)
        rendered = {"body": plain(part), "formatted_body": html(part)} if limit > LEAST else {}
        if json_size(rendered) + ENVELOPE <= CONTENT_MOST:
            return part, left, still_open
        limit = max(limit * 3 // 4, LEAST)


def divided(rest: str, fence: Fence | None, limit: int) -> tuple[str, str, Fence | None]:
    """The longest good piece within a limit, closed and opened as its code block needs."""
    opening = fence.opening if fence else ""
    room = limit - size(opening)
    if size(rest) <= room:
        return opening + rest, "", None
    at, cut = line_cut(rest, fence, room) or word_cut(rest, fence, room)
    piece, left = opening + rest[:at], rest[at:]
    if cut is None:
        return piece.rstrip("\n"), without_blank_ends(left), None
    return piece.removesuffix("\n") + cut.closing, dedented(left, cut), replace(cut, indent=0)


def line_cut(rest: str, fence: Fence | None, room: int) -> Cut | None:
    """The last place between two paragraphs, else between two lines, that leaves a fit piece."""
    between_paragraphs: Cut | None = None
    between_lines: Cut | None = None
    lines, at, used, before = rest.split("\n"), 0, 0, fence
    for line, following in pairwise(lines):
        after = fence_after(line, before)
        at, used = at + len(line) + 1, used + size(line) + 1
        if used - 1 > room:
            break
        closing = size(after.closing) if after else 0
        # A cut at its edge would leave an empty code block on one of its sides.
        edge = after and (before is None or fence_after(following, after) is None)
        if used - 1 + closing <= room and not edge:
            between_lines = (at, after)
            if after is None and not following.strip() and rest[:at].strip():
                between_paragraphs = (at, after)
        before = after
    return between_paragraphs or between_lines


def word_cut(rest: str, fence: Fence | None, room: int) -> Cut:
    """A place inside the last line of text that begins within the room."""
    best = (max(1, len(fitting(rest, room))), fence)
    at = used = 0
    for line in rest.split("\n"):
        closing = size(fence.closing) if fence else 0
        if used + closing >= room:
            break
        after = fence_after(line, fence)
        if after == fence and len(line) > 1:
            shown = fitting(line, room - used - closing)[: len(line) - 1]
            best = (at + max(1, after_last_word(shown, line)), fence)
        at, used, fence = at + len(line) + 1, used + size(line) + 1, after
    return best


def after_last_word(shown: str, line: str) -> int:
    """How much of the shown beginning of a line ends with a whole word; all when none does."""
    for found in reversed(list(re.finditer(r"[ \t]+", shown))):
        if shown[: found.start()].strip() and not FENCE.match(line[found.end() :]):
            return found.end()
    return len(shown)


def fence_after(line: str, fence: Fence | None) -> Fence | None:
    """The code block that is open after a line, given the one before it."""
    found = FENCE.match(line)
    if not found:
        return fence
    lead, marks, info = len(found["lead"]), found["marks"], found["info"]
    if fence is None:
        fits = len(marks) <= MARKS_MOST and lead <= LEAD_MOST and len(info) <= LINE_MOST
        return Fence(lead, marks, info) if fits and not ("`" in marks and "`" in info) else None
    closes = (
        marks.startswith(fence.marks)
        and not info.strip()
        and not found["lead"].strip()
        and lead <= fence.indent + 3
    )
    return None if closes else fence


def dedented(rest: str, fence: Fence) -> str:
    """The rest with an indented code block's own lines moved to the margin, where it goes on."""
    lines = rest.split("\n")
    for n, line in enumerate(lines):
        lines[n] = line.removeprefix(" " * min(fence.indent, len(line) - len(line.lstrip(" "))))
        if fence_after(line, fence) is None:
            break
    return "\n".join(lines)


def without_blank_ends(markdown: str) -> str:
    """Text without blank lines before and after it; its first line keeps its indentation."""
    return BLANK_LINES.sub("", markdown).rstrip()


def fitting(line: str, room: int) -> str:
    """As much of the beginning as fits into a number of bytes."""
    return line.encode()[: max(0, room)].decode(errors="ignore")


def size(piece: str) -> int:
    """Bytes as UTF-8."""
    return len(piece.encode())
