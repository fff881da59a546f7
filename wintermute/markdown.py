"""Markdown in, safe HTML out: the one renderer of all doors.

HTML in a text is shown as text, and nothing is loaded from anywhere.
"""

import html as entities
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import nh3
from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from wintermute import text

RENDERED_MOST = 12_000
"""Characters. Longer answers are split before, because the parser is quadratic in places."""
NESTED_MOST = 30
CELLS_MOST = 5_000
"""Markdown pads short table rows, so a few kilobytes could become a megabyte of cells."""
TAGS = frozenset(
    {"a", "blockquote", "br", "code", "del", "em", "hr", "li", "ol", "p", "pre", "s", "strong"}
    | {"h1", "h2", "h3", "h4", "h5", "h6", "table", "tbody", "td", "th", "thead", "tr", "ul"}
)
WIKI = "wiki"
"""The scheme of a wiki link during the cleaning, which drops addresses of our own pages."""
LINK = re.compile(r"\[\[([^\[\]\n]+)\]\]")
LINKED = re.compile(rf'<a href="{WIKI}:(\d{{1,9}})">')
HEADING = re.compile(r"#{1,6}(?:\s|$)")
BRACKETS_MOST = 1_000
"""The most brackets: the parser searches the end of a link after each."""
SCHEMES = frozenset({"http", "https", "mailto", "matrix"})
LANGUAGE = re.compile(r"language-[\w+#.-]{1,40}")
INFO_MOST = 64
LINE_MOST = 200
MARKS_MOST = 16
LEAD_MOST = 32
FENCE = re.compile(
    r"(?P<lead>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<marks>`{3,}|~{3,})(?P<info>.*)"
)
ROOM = re.compile(r"@(?=room\b)", re.IGNORECASE)
INERT = "@\u2060"
"""@ and an invisible word joiner: no client or push rule finds "@room" in it, but people read it."""


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code block: the indent of its first line, its marks, its language."""

    indent: int
    marks: str
    info: str

    @property
    def opening(self) -> str:
        """The line that opens it again in another message."""
        info = self.info if len(self.info.encode()) <= INFO_MOST else ""
        return f"{self.marks}{info}\n"

    @property
    def closing(self) -> str:
        """The line that closes it."""
        return "\n" + " " * self.indent + self.marks


@dataclass(frozen=True, slots=True)
class WikiTarget:
    """A wiki link's address on this door, its text, and the reason if it has no page yet."""

    href: str
    shown: str
    problem: Literal["", "missing", "ambiguous"] = ""
    title: str = ""

    @property
    def opening(self) -> str:
        """The tag that begins the link."""
        named = {"href": self.href, "class": self.problem, "title": self.title}
        shown = (f' {name}="{entities.escape(value)}"' for name, value in named.items() if value)
        return f"<a{''.join(shown)}>"


FindTarget = Callable[[str], WikiTarget | None]
"""Returns the target of a wiki link for the text between its brackets; None: it stays text."""


def html(markdown: str) -> str:
    """Return clean HTML. HTML in the Markdown is shown as text, an image as its description."""
    return "\n".join(blocks(markdown))


def blocks(markdown: str, links: FindTarget | None = None) -> tuple[str, ...]:
    """Return clean HTML by top-level blocks, so that a growing text changes only few of them.

    `links` makes wiki links of `[[Title]]`; without it they are text.
    """
    found = (each for part in sections(text.clean(markdown)) for each in rendered(part, links))
    return tuple(filter(None, found))


def sections(source: str) -> Iterator[str]:
    """Cut a long text before headings, after blank lines and around code blocks.

    The parser is quadratic in places, so it gets one section at a time.
    """
    held, size = list[str](), 0
    for section in smallest_sections(source) if len(source) > RENDERED_MOST else (source,):
        size += len(section) + 1
        if held and size > RENDERED_MOST:
            yield "\n".join(held)
            held, size = [], len(section) + 1
        held.append(section)
    yield "\n".join(held)


def smallest_sections(source: str) -> Iterator[str]:
    """Yield the smallest sections of a text. A code block at the margin is one of its own."""
    lines, begun, fence, is_gap, is_closed = source.split("\n"), 0, None, False, False
    for n, line in enumerate(lines):
        before, fence = fence, fence_after(line, fence)
        opens = before is None and fence is not None and not fence.indent
        is_new = (is_gap and line[:1].strip()) or HEADING.match(line)
        if n and (is_closed or opens or (before is None and is_new)):
            yield "\n".join(lines[begun:n])
            begun = n
        is_gap = fence is None and not line.strip()
        is_closed = fence is None and before is not None and not before.indent
    yield "\n".join(lines[begun:])


def rendered(source: str, links: FindTarget | None) -> list[str]:
    """Return a section as clean HTML by its top-level blocks, or as literal text if rendering takes
    seconds or gives more than an event can hold.
    """
    lines, opened = source.split("\n"), fence_after(source.partition("\n")[0], None)
    is_long, is_code = len(source) > RENDERED_MOST, opened is not None and not opened.indent
    cells = len(lines) * max(line.count("|") for line in lines)
    is_cheap = cells <= CELLS_MOST and source.count("[") <= BRACKETS_MOST
    if not (is_code if is_long else is_cheap):
        return [literal(source)]
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": NESTED_MOST, "breaks": True})
    parser.enable(["table", "strikethrough"])
    parser.add_render_rule("image", described)
    targets = linked(parser, links) if links else []
    tokens = parser.parse(text.with_math(source))
    if any(token.nesting == 1 and token.level >= NESTED_MOST - 1 for token in tokens):
        return [literal(source)]  # the parser would drop deeper nesting
    blocks_of_html, begun = list[str](), 0
    for n, token in enumerate(tokens, 1):
        if token.level == 0 and token.nesting <= 0:
            made = parser.renderer.render(tokens[begun:n], parser.options, {})
            blocks_of_html.append(cleaned(made, targets))
            begun = n
    # An empty result: the text has only link definitions, which HTML does not show.
    return blocks_of_html or [literal(source)]


def linked(parser: MarkdownIt, links: FindTarget) -> list[WikiTarget]:
    """Teach a parser wiki links. Return their targets in order; a link's address is its position there.

    Code and other links come first, as Markdown has it.
    """
    targets = list[WikiTarget]()

    def wiki_link(state: StateInline, silent: bool) -> bool:
        inside = not silent and not state.linkLevel and LINK.match(state.src, state.pos)
        target = links(inside[1]) if inside else None
        if not inside or target is None:
            return False
        state.push("link_open", "a", 1).attrs = {"href": f"{WIKI}:{len(targets)}"}
        state.push("text", "", 0).content = target.shown
        state.push("link_close", "a", -1)
        targets.append(target)
        state.pos = inside.end()
        return True

    parser.inline.ruler.after("link", "wiki_link", wiki_link)
    return targets


def cleaned(made: str, targets: Sequence[WikiTarget]) -> str:
    """Keep known tags and schemes only, then insert the addresses of the wiki links."""
    safe = nh3.clean(
        made,
        tags=set(TAGS),
        attributes={"*": set(), "a": {"href"}, "code": {"class"}, "ol": {"start"}},
        attribute_filter=known_class,
        url_schemes=SCHEMES | {WIKI} if targets else set(SCHEMES),
        url_relative="deny",
        link_rel=None,
    )

    def opening(found: re.Match[str]) -> str:
        at = int(found[1])
        return targets[at].opening if at < len(targets) else "<a>"

    return LINKED.sub(opening, without_room_mention(safe.strip()))


def literal(source: str) -> str:
    """Return the text itself as HTML, with all its marks."""
    shown = entities.escape(source.strip(), quote=False).replace("\n", "<br>\n")
    return without_room_mention(f"<p>{shown}</p>") if shown else ""


def described(
    renderer: Any, tokens: Sequence[Token], at: int, options: Any, environment: Any
) -> str:
    """Render an image as text: a model must not make clients load anything."""
    image = tokens[at]
    words: str = renderer.renderInlineAsText(image.children or [], options, environment)
    return entities.escape(words or str(image.attrs.get("src", "")))


def known_class(tag: str, attribute: str, value: str) -> str | None:
    """Keep attribute values, but of classes only the language of a code block."""
    return value if attribute != "class" or LANGUAGE.fullmatch(value) else None


def without_room_mention(safe: str) -> str:
    """Defuse "@room" in the text of HTML; tags stay, as a link may contain it."""
    pieces = re.split(r"(<[^>]*>)", safe)
    return "".join(p if p.startswith("<") else ROOM.sub(INERT, p) for p in pieces)


def fence_after(line: str, fence: Fence | None) -> Fence | None:
    """Return the code block that is open after a line, given the one before it."""
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
