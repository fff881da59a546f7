"""The model's Markdown becomes safe HTML and readable text."""

import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.clock import cheap
from wintermute.markdown import RENDERED_MOST, SCHEMES, TAGS, WikiTarget, blocks, html
from wintermute.matrix.content import CONTENT_MOST, content, plain
from wintermute.text import plain as marked


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("# Title", "<h1>Title</h1>"),
        ("*a* **b** ~~c~~ `d`", "<em>a</em> <strong>b</strong> <s>c</s> <code>d</code>"),
        ("- a\n- b", "<ul>\n<li>a</li>\n<li>b</li>\n</ul>"),
        ("3. a\n4. b", '<ol start="3">'),
        ("> quoted", "<blockquote>\n<p>quoted</p>\n</blockquote>"),
        ("```py\n1 < 2\n```", '<pre><code class="language-py">1 &lt; 2\n</code></pre>'),
        ("|a|b|\n|-|-|\n|1|2|", "<td>1</td>\n<td>2</td>"),
        ("[x](https://e.org/?a=1&b=2)", '<a href="https://e.org/?a=1&amp;b=2">x</a>'),
        ("<mailto:a@e.org>", '<a href="mailto:a@e.org">'),
        ("[x](matrix:u/a:e.org)", '<a href="matrix:u/a:e.org">x</a>'),
        ("one\ntwo", "<p>one<br>\ntwo</p>"),
        ("a\n\n---\n\nb", "<hr>"),
        (r"so \(a_1 + a_2\) *is* it", r"so \(a_1 + a_2\) <em>is</em> it"),
        ("$$\n\\begin{a}\n= x \\\\\n- y*2*\n$$", "\\begin{a}<br>\n= x \\\\<br>\n- y*2*<br>\n$$"),
        (r"1. \[x^2\]", r"<li>\[x^2\]</li>"),
        (r"`\(a\)` for $5 and $6 *now*", r"<code>\(a\)</code> for $5 and $6 <em>now</em>"),
        (r"C:\temp", r"C:\temp"),
    ],
)
def test_markdown_becomes_html(markdown: str, expected: str) -> None:
    """X-008, F-052."""
    assert expected in html(markdown)


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("<b>bold</b>", "<p>&lt;b&gt;bold&lt;/b&gt;</p>"),
        ("<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>"),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
        ("[x](data:text/html,1)", "<p>[x](data:text/html,1)</p>"),
        ("[x](ftp://e.org)", "<p><a>x</a></p>"),
        ("[x](/etc/passwd)", "<p><a>x</a></p>"),
        ('[x](https://e.org "title")', '<p><a href="https://e.org">x</a></p>'),
        ("![a *cat*](https://e.org/cat.png)", "<p>a cat</p>"),
        ("![](https://e.org/cat.png)", "<p>https://e.org/cat.png</p>"),
        ("![<i>](https://e.org/cat.png)", "<p>&lt;i&gt;</p>"),
        ('```py" onclick="x\n1\n```', "<pre><code>1\n</code></pre>"),
        ("a\x00b\x1b[31m", "<p>a\ufffdb\ufffd[31m</p>"),
        ("\ud800", "<p>\ufffd</p>"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_what_could_do_harm_is_inert(markdown: str, expected: str) -> None:
    """X-008."""
    assert html(markdown) == expected


@pytest.mark.parametrize(
    "markdown", ["@room", "@Room: wake up", "`@room`", "&#64;room", "x\n@ROOM\n"]
)
def test_nobody_calls_the_whole_room(markdown: str) -> None:
    """X-008."""
    made = content(markdown)
    shown = made["body"] + made.get("formatted_body", "")
    assert not re.search("@room", shown, re.IGNORECASE)
    assert "room" in shown.lower()
    assert made["m.mentions"] == {}


def test_a_link_whose_address_holds_room_still_works() -> None:
    assert 'href="https://e.org/@room"' in html("[x](https://e.org/@room)")


@pytest.mark.parametrize(
    "markdown", ["hello", "one\ntwo", "1 < 2 & 3", 'it\'s "so"', "", "> " * 99 + "deep"]
)
def test_plain_words_travel_without_html(markdown: str) -> None:
    assert content(markdown) == {
        "msgtype": "m.text",
        "body": markdown,
        "m.mentions": {},
    }


def test_a_notice_with_marks_has_both_forms() -> None:
    """X-008."""
    assert content("**now**\n\nplease", "m.notice") == {
        "msgtype": "m.notice",
        "body": "**now**\n\nplease",
        "format": "org.matrix.custom.html",
        "formatted_body": "<p><strong>now</strong></p>\n<p>please</p>",
        "m.mentions": {},
    }


@pytest.mark.parametrize(
    ("markdown", "body"),
    [
        (f"- {marked('[P5] #task_1: 1 < 2 & *3*')}", "- [P5] #task_1: 1 < 2 & *3*"),
        (marked("# no heading_"), "# no heading_"),
        (marked(r"C:\[new]"), r"C:\[new]"),
        (marked(r"\(a\) [b] \[c\]"), r"\(a\) [b] \[c\]"),
        (r"\(a_1\) is \*so\*; \[x \\ y\]", r"\(a_1\) is *so*; \[x \\ y\]"),
        ("$$\na \\\\ b\n$$", "$$\na \\\\ b\n$$"),
        (r"say `\[x]` and ``a`\*`` \*so\*", r"say `\[x]` and ``a`\*`` *so*"),
        (r"\`no code\`, \` \*", "`no code`, ` *"),
        ("```\n\\[x]\n```\n\\[y]", "```\n\\[x]\n```\n[y]"),
        ("so:\n\n    \\[x]", "so:\n\n    \\[x]"),
        (r"\d and C:\temp", r"\d and C:\temp"),
    ],
)
def test_a_mark_that_is_none_is_readable_in_the_body(markdown: str, body: str) -> None:
    """X-008: as HTML shows it; in code a backslash is one."""
    assert content(markdown)["body"] == body


def test_a_text_that_html_would_hide_is_shown_as_it_is() -> None:
    assert html("[note]: remember") == "<p>[note]: remember</p>"
    assert "deep" in html("> " * 200 + "deep")
    assert "deep" in html("".join(f"{'  ' * n}- deep{n}\n" for n in range(60)))


def test_html_that_would_not_fit_an_event_is_left_out() -> None:
    assert "formatted_body" not in content("&" * 9_000 + "*a*")


HOSTILE = [
    *(mark * 10_000 for mark in (">", "[", "*", "_", "`", "![", "](", "- ", "&", "<", "|", "~~")),
    *(mark * 64_000 for mark in ("[", "<", "\\")),
    "a\n" * 10_000,
    "".join(f"{' ' * n}- a\n" for n in range(300)),
    "[a]: x\n\n" + "![a][" * 3_500,
    "**a_b " * 3_000,
    "![" * 3_000 + "a](b)" * 3_000,
    "|" + "a|" * 700 + "\n|" + "-|" * 700 + "\n" + "|\n" * 3_500,
    "|a|\n|-|\n" * 2_000,
]


@pytest.mark.parametrize("markdown", HOSTILE, ids=lambda text: repr(text[:8]))
def test_hostile_markdown_costs_little_time(markdown: str) -> None:
    """X-008."""
    with cheap(1):
        made = content(markdown)
        blocks(markdown, linked)
    assert made["body"] == markdown
    if "formatted_body" in made:
        assert len(json.dumps(made)) <= CONTENT_MOST


class Census(HTMLParser):
    """Counts what a browser would make of HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add((tag, name))
            if name == "href":
                self.links.add(str(value).partition(":")[0])


def linked(inside: str) -> WikiTarget | None:
    """Links as a wiki has them: pages that begin with a capital are there, `?` nowhere."""
    title, _, shown = inside.partition("|")
    if title.endswith(".png"):
        return None
    problem: Any = "" if title[:1].isupper() else "missing"
    return WikiTarget(f"/wiki/{quote(title)}", shown or title, problem, problem and f"no {title}")


KNOWN = {("a", "href"), ("code", "class"), ("ol", "start")}
BITS = (
    "* ** ` > - 1. [ ]( ) ![ < <b> <script> <img/src=x/onerror=y> javascript: https://e.org ~~ | "
    '&lt; &#x6a; |-| # \' " a [[T]] [[t|<b>"]] [[ ]] wiki:0 wiki:9 é \u202e @room \x00 \\ [a]:data:x'
)


@given(
    st.lists(st.sampled_from([*BITS.split(), " ", "\n", "\n\n", "\n```"]), max_size=60).map("".join)
    | st.text()
)
def test_whatever_the_model_writes_only_known_html_comes_out(markdown: str) -> None:
    """X-008."""
    census = Census()
    census.feed(html(markdown))
    assert census.tags <= TAGS
    assert census.attributes <= KNOWN
    assert census.links <= SCHEMES
    plain(markdown).encode()
    content(markdown)
    made = blocks(markdown, linked)
    assert "\n".join(blocks(markdown)) == html(markdown)
    assert all(made)
    census = Census()
    census.feed("\n".join(made))
    assert census.tags <= TAGS
    assert census.attributes <= KNOWN | {("a", "class"), ("a", "title")}
    assert {link for link in census.links if not link.startswith("/wiki/")} <= SCHEMES


WIKI = (
    ("see [[Tea]].", '<p>see <a href="/wiki/Tea">Tea</a>.</p>'),
    ("[[Tea|the *tea*]]", '<p><a href="/wiki/Tea">the *tea*</a></p>'),
    ("[[a_b_]]", '<p><a href="/wiki/a_b_" class="missing" title="no a_b_">a_b_</a></p>'),
    ('[[T"><b>|"><b>]]', '<p><a href="/wiki/T%22%3E%3Cb%3E">"&gt;&lt;b&gt;</a></p>'),
    ('[[x" onclick="y]]', 'title="no x&quot; onclick=&quot;y"'),
    ("[[T|@room]]", "@\u2060room"),
    ("|a|\n|-|\n|[[Tea\\|x]]|", '<td><a href="/wiki/Tea">x</a></td>'),
    ("`[[Tea]]`", "<p><code>[[Tea]]</code></p>"),
    ("    [[Tea]]", "<pre><code>[[Tea]]\n</code></pre>"),
    ("\\[[Tea]]", "<p>[[Tea]]</p>"),
    ("[[1]](https://e.org)", '<p><a href="https://e.org">[1]</a></p>'),
    ("[a [[Tea]]](https://e.org)", '<p><a href="https://e.org">a [[Tea]]</a></p>'),
    ("![[plan.png]]", "<p>![[plan.png]]</p>"),
    ("![[[Tea]]](https://e.org/x)", "<p>Tea</p>"),
    ("[x](wiki:0) [y](wiki:9)", "<p><a>x</a> <a>y</a></p>"),
    ("[[Tea]] [y](wiki:9)", '<p><a href="/wiki/Tea">Tea</a> <a>y</a></p>'),
    ("[[\n]] [[]] [[a]b]]", "<p>[[<br>\n]] [[]] [[a]b]]</p>"),
)


@pytest.mark.parametrize(("markdown", "expected"), WIKI)
def test_links_of_the_wiki_lead_on_and_never_out_of_code(markdown: str, expected: str) -> None:
    """V-021, V-027."""
    assert expected in "\n".join(blocks(markdown, linked))
    assert "/wiki/" not in html(markdown)


def test_a_long_text_is_rendered_by_section() -> None:
    """V-021: cut before headings, between paragraphs and around code; nothing is lost."""
    text = "".join(f"# Part {n}\n*about* [[Tea]]\n\n- a\n\n  b\n\n" for n in range(1_000))
    code = "```py\n" + "x = [1]\n\n# no heading\n" * 2_000 + "```\n  *after*\n\n"
    made = blocks(text + code + text, linked)
    assert len(made) == 2 * 3_000 + 2
    assert "".join(made).count('<em>about</em> <a href="/wiki/Tea">Tea</a>') == 2_000
    assert made[3_000].startswith('<pre><code class="language-py">x = [1]\n\n# no heading')
    assert made[3_000].count("no heading") == 2_000
    assert made[3_001] == "<p><em>after</em></p>"
    assert blocks("*x* " * RENDERED_MOST) == (f"<p>{('*x* ' * RENDERED_MOST).strip()}</p>",)


def test_a_growing_text_changes_its_last_blocks_only() -> None:
    """V-014."""
    text = "# A\n\none *two*\n\n- a\n- b\n\n```py\n1\n```\n\nend"
    before: tuple[str, ...] = ()
    for n in range(len(text) + 1):
        made = blocks(text[:n])
        assert made[: len(before) - 1] == before[:-1]
        before = made
    assert len(before) == 5
