"""The content of Matrix messages from Markdown: readable text and clean HTML.

A long answer is split into several messages without losing text; each has complete code blocks
(X-009).
"""

import html as entities
import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from wintermute import text
from wintermute.markdown import FENCE, INERT, RENDERED_MOST, ROOM, Fence, fence_after, html
from wintermute.messages import Json

CONTENT_MOST = 40_000
"""Bytes of a content as JSON. Synapse refused encrypted events above 48,368."""

EDIT_MOST = CONTENT_MOST // 2
"""Bytes of an edit's text: an edit contains its content twice."""
GROWS_MOST = 8_000
"""Bytes of Markdown of a streamed answer, and of the first part of a message that may be an edit."""
LIVE: Json = {"org.matrix.msc4357.live": {}}

ESCAPED = re.compile(
    r"(?P<code>(?<!`)(?P<run>`+)(?!`).*?(?<!`)(?P=run)(?!`))|\\(?P<mark>[!-/:-@\[-`{-~])"
)
LEAST = 512
"""Bytes. With a smaller limit a code fence, closed and opened again, would leave no room for text."""
ENVELOPE = 500
"""Bytes of a content besides body and formatted body."""
BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
Cut = tuple[int, Fence | None]
"""A position to cut at, and the code block that is open there."""


def content(
    markdown: str,
    msgtype: Literal["m.text", "m.notice"] = "m.text",
    *,
    literally: bool = False,
    most: int = CONTENT_MOST,
) -> Json:
    """Return the content of a message. HTML is left out if it adds nothing or is too large.

    `literally`: the text is not Markdown. `most`: bytes allowed. The empty `m.mentions` says that
    nobody is mentioned, even if the text contains a name.
    """
    plainly: Json = {"msgtype": msgtype, "body": plain(markdown), "m.mentions": {}}
    if literally:
        return plainly
    formatted = html(markdown)
    richly = plainly | {"format": "org.matrix.custom.html", "formatted_body": formatted}
    inner = formatted.removeprefix("<p>").removesuffix("</p>").replace("<br>\n", "\n")
    # HTML that is one paragraph of the same text adds nothing to the body.
    adds = "<" in inner or entities.unescape(inner) != plainly["body"].strip()
    return richly if adds and json_size(richly) <= most else plainly


def edit(new: Json, event_id: str, *, live: bool = False) -> Json:
    """Return the content of an event that replaces an earlier one's content.

    `live`: the text is still being streamed, which clients may show (MSC4357).
    """
    new = new | (LIVE if live else {})
    relation = {"rel_type": "m.replace", "event_id": event_id}
    shown = {**new, "body": f"* {new['body']}"}
    return shown | {"m.new_content": new, "m.relates_to": relation}


def json_size(value: Json) -> int:
    """Return the bytes of a content as nio writes it, with all non-ASCII characters escaped."""
    return len(json.dumps(value))


def plain(markdown: str) -> str:
    """Return Markdown as readable text: only backslashes that escape punctuation are removed."""
    source = text.clean(markdown)
    return ROOM.sub(
        INERT, source if len(source) > RENDERED_MOST else unescaped(text.with_math(source))
    )


def unescaped(source: str) -> str:
    """Remove the backslashes that escape punctuation, except in code."""
    lines, fence = list[str](), None
    for line in source.split("\n"):
        before, fence = fence, fence_after(line, fence)
        is_code = before or fence or line.startswith(("    ", "\t"))
        lines.append(line if is_code else ESCAPED.sub(r"\g<code>\g<mark>", line))
    return "\n".join(lines)


def parts(markdown: str, limit: int = 10_000, *, edits: bool = False) -> list[str]:
    """Split Markdown into parts of at most `limit` bytes (at least 512), in order.

    `edits`: the first part is small enough for an edit.

    It is cut between paragraphs if possible, else between lines, words or characters.
    """
    rest, fence = without_blank_ends(text.clean(markdown)), None
    found = list[str]()
    while rest:
        most, bytes_ = (EDIT_MOST, GROWS_MOST) if edits and not found else (CONTENT_MOST, limit)
        part, rest, fence = first_part(rest, fence, max(bytes_, LEAST), most)
        if part.strip():
            found.append(part)
    return found


def streamed_part(markdown: str) -> tuple[str, bool]:
    """Return the beginning of a streamed text, and True if no more of it will be shown until its end."""
    said = without_blank_ends(text.clean(markdown[: 2 * GROWS_MOST]))
    part, rest, _ = first_part(said, None, GROWS_MOST, EDIT_MOST)
    return part, bool(rest)


def first_part(
    rest: str, fence: Fence | None, limit: int, most: int = CONTENT_MOST
) -> tuple[str, str, Fence | None]:
    """Return the next part, the rest, and the code block that is open across the cut.

    A part that is too large as HTML is made smaller; the smallest is sent without HTML.
    """
    while True:
        part, left, still_open = divided(rest, fence, limit)
        rendered = {"body": plain(part), "formatted_body": html(part)} if limit > LEAST else {}
        if json_size(rendered) + ENVELOPE <= most:
            return part, left, still_open
        limit = max(limit * 3 // 4, LEAST)


def divided(rest: str, fence: Fence | None, limit: int) -> tuple[str, str, Fence | None]:
    """Cut off the longest good part within a limit; an open code block is closed and opened again."""
    opening = fence.opening if fence else ""
    room = limit - size(opening)
    if size(rest) <= room:
        return opening + rest, "", None
    at, cut = line_cut(rest, fence, room) or word_cut(rest, fence, room)
    part, left = opening + rest[:at], rest[at:]
    if cut is None:
        return part.rstrip("\n"), without_blank_ends(left), None
    return part.removesuffix("\n") + cut.closing, dedented(left, cut), replace(cut, indent=0)


def line_cut(rest: str, fence: Fence | None, room: int) -> Cut | None:
    """Find the last cut within the limit between two paragraphs, else between two lines."""
    between_paragraphs: Cut | None = None
    between_lines: Cut | None = None
    lines, at, used, before = rest.split("\n"), 0, 0, fence
    for line, following in pairwise(lines):
        after = fence_after(line, before)
        at, used = at + len(line) + 1, used + size(line) + 1
        if used - 1 > room:
            break
        closing = size(after.closing) if after else 0
        # A cut at the block's edge would leave an empty code block on one side.
        edge = after and (before is None or fence_after(following, after) is None)
        if used - 1 + closing <= room and not edge:
            between_lines = (at, after)
            if after is None and not following.strip() and rest[:at].strip():
                between_paragraphs = (at, after)
        before = after
    return between_paragraphs or between_lines


def word_cut(rest: str, fence: Fence | None, room: int) -> Cut:
    """Find a cut inside the last line that begins within the limit."""
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
    """Return the length of the shown beginning up to its last whole word; all if there is none."""
    for found in reversed(list(re.finditer(r"[ \t]+", shown))):
        if shown[: found.start()].strip() and not FENCE.match(line[found.end() :]):
            return found.end()
    return len(shown)


def dedented(rest: str, fence: Fence) -> str:
    """Move the lines of an indented code block to the margin."""
    lines = rest.split("\n")
    for n, line in enumerate(lines):
        lines[n] = line.removeprefix(" " * min(fence.indent, len(line) - len(line.lstrip(" "))))
        if fence_after(line, fence) is None:
            break
    return "\n".join(lines)


def without_blank_ends(markdown: str) -> str:
    """Remove blank lines before and after a text; its first line keeps its indentation."""
    return BLANK_LINES.sub("", markdown).rstrip()


def fitting(line: str, room: int) -> str:
    """Return the beginning of a line that fits into a number of bytes."""
    return line.encode()[: max(0, room)].decode(errors="ignore")


def size(part: str) -> int:
    """Return the bytes of a text as UTF-8."""
    return len(part.encode())
