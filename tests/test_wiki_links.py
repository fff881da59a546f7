"""Titles and links, as tables: what is one, what it means, and what is said where it means nothing."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.world.clock import cheap
from wintermute.wiki.graph import LinkGraph
from wintermute.wiki.links import (
    MOST_LINKS,
    Names,
    Presence,
    Unresolved,
    links_in,
    resolve,
    without_code,
)
from wintermute.wiki.pages import read_page

PATHS = (
    "README.md",
    "meta/Index.md",
    "semantic/Garden.md",
    "semantic/Ann.md",
    "episodic/Ann.md",
    "semantic/v1.2.md",
    "semantic/plants/Roses.md",
    "semantic/Notes.md.md",
    "episodic/2026-05-04.md",
)
UNTITLED = {
    "episodic-raw/20260504/talk/0001-user.md": "file",
    "conversations/20260504-090000/0001-user.md": "file",
    "sleep/20260504-010000/report.md": "file",
    "semantic/away.md": "link",
    "semantic/.hidden.md": "file",
    ".git/Garden.md": "file",
}


def look(path: str) -> Presence:
    """What stands beside the titled files."""
    found: dict[str, Presence] = {"semantic/away.md": "link"}
    return found.get(path, "file" if path in UNTITLED else "none")


@pytest.mark.parametrize(
    ("text", "links"),
    [
        # W-011: a title, a path, with a text, with a part
        ("[[Foo]]", ["Foo"]),
        ("[[semantic/Foo]]", ["semantic/Foo"]),
        ("[[Foo|the foo]] [[Bar#part]] [[Baz#part|text]]", ["Foo", "Bar", "Baz"]),
        ("[[ Foo ]] and [[Foo]]", ["Foo"]),
        ("| [[The shed\\|shed]] | [[Foo]] |", ["The shed", "Foo"]),
        ("[[b]] [[a]] [[b]]", ["b", "a"]),
        ("[[v1.2]] [[Foo.md]] [[Grüße, 世界 👩‍💻]]", ["v1.2", "Foo.md", "Grüße, 世界 👩‍💻"]),
        # a picture that is shown in the page is no link; a page shown in it is
        (
            "![[plan.png]] ![[media/Rose.JPG|200]] ![[Foo]] ![[v1.2]] [[b.png]]",
            ["Foo", "v1.2", "b.png"],
        ),
        # none, or a part of something else
        ("[[]] [[ ]] [[|x]] [[#x]] [x] [[x] [x]]", []),
        ("[[a\nb]]", []),
        ("[[[[x]]]]", ["x"]),
        ("[[a[b]]", []),
        ("[[a [[b]]", ["b"]),
        # W-012: code spans
        ("`[[Foo]]`", []),
        ("`a` [[Foo]] `b`", ["Foo"]),
        ("``a ` [[Foo]]`` [[Bar]]", ["Bar"]),
        ("`` [[Foo]] `", ["Foo"]),
        ("`[[Foo]]", ["Foo"]),
        ("`over\nlines [[Foo]]` [[Bar]]", ["Bar"]),
        ("[[a `b]] c` [[d]]", ["d"]),
        ("an escaped \\` is [[Foo]] no code \\`", ["Foo"]),
        ("an escaped \\\\` begins [[Foo]] code `", []),
        ("\\``[[Foo]]`", []),
        # a span ends with its block
        ("`one\n\n[[Foo]]` two", ["Foo"]),
        ("- a ` here\n- [[Foo]]\n- and ` there", ["Foo"]),
        ("1. a `\n2. [[Foo]] `", ["Foo"]),
        ("a ` here\n# [[Foo]] `", ["Foo"]),
        # W-012: fences
        ("```\n[[Foo]]\n```\n[[Bar]]", ["Bar"]),
        ("~~~ md\n[[Foo]]\n~~~\n[[Bar]]", ["Bar"]),
        ("````\n```\n[[Foo]]\n```\n````\n[[Bar]]", ["Bar"]),
        ("```\n~~~\n[[Foo]]\n```\n[[Bar]]", ["Bar"]),
        ("> ```\n> [[Foo]]\n> ```\n[[Bar]]", ["Bar"]),
        ("- ```\n  [[Foo]]\n  ```\n- [[Bar]]", ["Bar"]),
        ("1. ~~~\n   [[Foo]]\n   ~~~\n[[Bar]]", ["Bar"]),
        ("```\n[[Foo]]\n- ```\n[[Bar]]\n```", []),
        ("```\n[[Foo]]", []),
        ("```\n[[Foo]]\n``` no end\n[[Bar]]", []),
        ("``` `no fence` [[Foo]]", ["Foo"]),
        ("text ```[[Foo]]``` [[Bar]]", ["Bar"]),
    ],
)
def test_a_link_is_known_and_code_holds_none(text: str, links: list[str]) -> None:
    """W-011, W-012."""
    assert list(links_in(text)) == links


@pytest.mark.parametrize(
    ("title", "path"),
    [
        # W-014: a bare title, by the name of the file, not by its heading (W-009)
        ("Garden", "semantic/Garden.md"),
        ("  Garden\t", "semantic/Garden.md"),
        ("Roses", "semantic/plants/Roses.md"),
        ("README", "README.md"),
        ("Index", "meta/Index.md"),
        ("2026-05-04", "episodic/2026-05-04.md"),
        # W-015: a path, with and without its ending; dotted names; a bare name with an ending
        ("semantic/Garden", "semantic/Garden.md"),
        ("semantic/Garden.md", "semantic/Garden.md"),
        ("semantic//./Garden", "semantic/Garden.md"),
        ("episodic/Ann", "episodic/Ann.md"),
        ("v1.2", "semantic/v1.2.md"),
        ("semantic/v1.2", "semantic/v1.2.md"),
        ("README.md", "README.md"),
        ("Garden.md", "semantic/Garden.md"),
        ("Notes.md", "semantic/Notes.md.md"),
        ("semantic/Notes.md", "semantic/Notes.md.md"),
        # W-018: what has no title is found by its path
        ("episodic-raw/20260504/talk/0001-user", "episodic-raw/20260504/talk/0001-user.md"),
        ("conversations/20260504-090000/0001-user.md", "conversations/20260504-090000/0001-user.md"),
    ],
)  # fmt: skip
def test_a_title_means_one_file(title: str, path: str) -> None:
    """W-009, W-014, W-015, W-018."""
    assert resolve(title, Names(PATHS), look) == path


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("", "empty title"),
        (" \t ", "empty title"),
        ("Ann", "ambiguous title 'Ann': episodic/Ann.md, semantic/Ann.md"),
        ("Ann.md", "ambiguous title 'Ann.md': episodic/Ann.md, semantic/Ann.md"),
        ("Nobody", "no page named 'Nobody'"),
        ("garden", "no page named 'garden' (did you mean 'Garden'?)"),
        ("Gardn", "no page named 'Gardn' (did you mean 'Garden'?)"),
        ("Agrden", "no page named 'Agrden' (did you mean 'Garden'?)"),
        ("Grdn", "no page named 'Grdn' (did you mean 'Garden'?)"),
        ("Grn", "no page named 'Grn' (did you mean 'Ann'?)"),
        ("semantic/Nobody", "not found: semantic/Nobody"),
        ("nowhere/Garden", "not found: nowhere/Garden (did you mean 'semantic/Garden'?)"),
        ("sleep/20260504-010000/report", "not found: sleep/20260504-010000/report"),
        ("./sleep/20260504-010000/report", "not found: ./sleep/20260504-010000/report"),
        ("semantic/.hidden", "not found: semantic/.hidden"),
        (".git/Garden", "not found: .git/Garden (did you mean 'semantic/Garden'?)"),
        ("../Garden", "../Garden: outside the store"),
        ("semantic/../../Garden", "semantic/../../Garden: outside the store"),
        ("/etc/passwd", "/etc/passwd: outside the store"),
        ("Gar\0den", "Gar\\x00den: outside the store"),
        ("semantic/away", "semantic/away: outside the store"),
        ("a\x1b[2Jb\nc", "no page named 'a\\x1b[2Jb\\nc'"),
        ("x" * 1000, f"no page named '{'x' * 300}…'"),
    ],
)
def test_a_title_that_means_none_is_told_in_one_line(title: str, said: str) -> None:
    """W-016, W-017, W-018, W-019."""
    found = resolve(title, Names(PATHS), look)
    assert isinstance(found, Unresolved)
    assert str(found) == said


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("the garden of Ann", ("Ann", "Garden")),
        ("GARDN", ("Garden",)),
        ("wild roses", ("Roses",)),
        ("xyz", ()),
    ],
)
def test_what_is_most_like_a_title_is_offered(title: str, names: tuple[str, ...]) -> None:
    """W-017: to who has to choose another one."""
    assert tuple(sorted(Names(PATHS).like(title))) == names


@pytest.mark.quick(every=3)
@pytest.mark.parametrize(
    "text",
    [
        "[[" * 2_000_000,
        "[[[[x]]]]" * 400_000,
        "".join(f"[[Page {n}]]\n" for n in range(100_000)),
        "` " * 1_000_000,
        "`\n\n" * 600_000,
        "".join(f"{'`' * n} " for n in range(1, 2_000)),
        "".join(f"{'`' * n} " for n in range(1, 9)) + "x\n" * 1_000_000,
        "```\n" * 500_000,
        "- " * 1_000_000 + "```",
        "\\`" * 1_000_000,
        " " * 4_000_000 + "```",
        "`" + "\n> " * 1_000_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_no_text_takes_long_to_read(text: str) -> None:
    """Issue 20: 100,000 links in one page, and worse; a second on an idle machine, most a tenth."""
    with cheap(10):
        assert len(links_in(f"{text} [[x]]")) <= MOST_LINKS


@given(st.text(st.sampled_from("`~[]\\\n >-#x1.| "), max_size=80))
@example("`\\`` [[x]]")
@example("~~~")
def test_what_is_no_code_keeps_its_place(text: str) -> None:
    """W-012."""
    left = without_code(text)
    assert len(left) == len(text)
    assert all(mark in (" ", before) for mark, before in zip(left, text, strict=True))
    assert [at for at, mark in enumerate(left) if mark == "\n"] == [
        at for at, mark in enumerate(text) if mark == "\n"
    ]
    plain = text.replace("`", "").replace("~", "")
    assert without_code(plain) == plain


def graph_of(**texts: str) -> LinkGraph:
    """Of pages in semantic/, by their names, and the index."""
    files = {"meta/Index.md" if name == "Index" else f"semantic/{name}.md": text for name, text in texts.items()}  # fmt: skip
    pages = {path: read_page(text.encode()) for path, text in files.items()}
    return LinkGraph(pages, Names(pages), look)


def test_a_link_to_itself_makes_no_page_known() -> None:
    """W-043, W-044: it is a link, and nobody else has one."""
    graph = graph_of(Alone="[[Alone]]", Known="x", Index="[[Known]]")
    assert graph.orphans == ("semantic/Alone.md",)
    assert graph.backlinks("semantic/Alone.md") == ("semantic/Alone.md",)
    assert graph.backlinks("semantic/Known.md") == ("meta/Index.md",)
