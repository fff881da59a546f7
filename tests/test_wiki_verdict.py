"""What stands against changes of pages, and what of them waits for a person: pure rules as tables."""

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.shelf import DAY, GARDEN, INDEX, ROSES, Shelf, change, page
from wintermute.wiki.folder import FileChange
from wintermute.wiki.graph import LinkGraph
from wintermute.wiki.links import Names, Presence
from wintermute.wiki.pages import FRESH_INDEX, read_page
from wintermute.wiki.store import WikiStore
from wintermute.wiki.verdict import (
    PageVerdict,
    StoreView,
    judge_changes,
    lines_of,
    lost_content,
    objections,
    path_problem,
)

TODAY = date(2026, 5, 4)


def view_of(shelf: Shelf) -> StoreView:
    store = WikiStore(shelf.root)
    return StoreView(store.pages(), store.tree().names, store.files.presence)


def wanted(shelf: Shelf, **texts: str) -> list[FileChange]:
    """Changes of pages in `semantic`, by their names."""
    return [change(shelf, f"semantic/{name}.md", page(text)) for name, text in texts.items()]


def verdict(shelf: Shelf, changes: list[FileChange], **more: object) -> PageVerdict:
    """With every page ours, so that only what is told may stay."""
    ours = {path: lines_of(text.decode()) for path, text in shelf.pages().items()}
    known: dict[str, object] = {"today": TODAY, "ours": ours} | more
    return judge_changes(view_of(shelf), changes, **known)  # type: ignore[arg-type]  # as a test names it


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("semantic/Garden.md", ""),
        ("episodic/2026/A day.md", ""),
        ("semantic/v1.2.md", ""),
        ("semantic/Straße 🌷.md", ""),
        (INDEX, ""),
        ("../../evil.md", "lies outside the store"),
        ("semantic/../../evil.md", "lies outside the store"),
        ("/etc/passwd", "lies outside the store"),
        ("semantic//Garden.md", "lies outside the store"),
        ("semantic/./Garden.md", "lies outside the store"),
        ("semantic/a\0b.md", "lies outside the store"),
        ("", "lies outside the store"),
        ("semantic", "is neither"),
        ("meta/system-runtime.md", "is neither"),
        ("meta/Other.md", "is neither"),
        ("episodic-raw/20260504/a/0001-user.md", "is neither"),
        ("sleep/written/semantic/Garden.md", "is neither"),
        ("conversations/x/0001-user.md", "is neither"),
        ("Garden.md", "is neither"),
        ("semantic/Garden.txt", "does not end in .md"),
        ("semantic/Garden", "does not end in .md"),
        ("semantic/.md", "has a name"),
        ("semantic/.hidden.md", "has a name"),
        ("semantic/.git/Garden.md", "has a name"),
        ("semantic/A [b].md", "has a name"),
        ("semantic/A|b.md", "has a name"),
        ("semantic/A#b.md", "has a name"),
        ("semantic/A\nb.md", "has a name"),
        ("semantic/A\u202eb.md", "has a name"),
        ("semantic/A\ud800b.md", "has a name"),
        ("semantic/A\\b.md", "has a name"),
        ("semantic/ A.md", "has a name"),
        ("semantic/A .md", "has a name"),
        (f"semantic/{'a' * 253}.md", "has a name"),
        (f"semantic/{'ä' * 130}.md", "has a name"),
    ],
)
def test_pages_are_written_in_their_folders_only_and_can_be_linked(path: str, problem: str) -> None:
    """W-064, W-078: contained, and no name that would break a link."""
    assert path_problem(path).startswith(problem)
    assert bool(path_problem(path)) is bool(problem)


THEIRS = "# A\n\nAnn has 2 cats.\n\nSee [[B]] and [[C]].\n\n```\nrun me\n```\n\nThe end."


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (THEIRS + "\n\nAnd a dog.", ()),
        ("# A\n\nNew words.\n\n" + THEIRS.removeprefix("# A\n\n"), ()),
        (THEIRS.replace("\n\n", "\n"), ()),
        (THEIRS.replace("Ann has 2 cats.", "Ann has 3 cats."), ("the number 2",)),
        (THEIRS.replace("[[C]]", "C"), ("the link [[C]]",)),
        (THEIRS.replace("[[C]]", "`[[C]]`"), ("the link [[C]]",)),
        (THEIRS.replace("run me", "run"), ("a block of code",)),
        (THEIRS.replace("```", ""), ("a block of code",)),
        ("# A\n\n2 [[B]] [[C]]\n\n```\nrun me\n```", ("more than a third of its text",)),
    ],
)
def test_what_a_page_may_not_lose(after: str, told: tuple[str, ...]) -> None:
    """W-064: where all of its lines are ours."""
    assert lost_content(page(THEIRS), page(after), lines_of(THEIRS)) == told


def test_a_line_that_a_person_wrote_may_not_go(tmp_path: Path) -> None:
    """W-064: nor one that they edited; our own may be worded anew."""
    before = page("# A\n\nours once\nA person's words.")
    ours = ("# A", "ours once")
    assert lost_content(before, page("# A\n\nours anew\nA person's words."), ours) == ()
    told = lost_content(before, page("# A\n\nours once\nAnother person's words."), ours)
    assert told == ('the line "A person\'s words."',)
    moved = page("# A\n\nA person's  words.\n\nours once")
    assert lost_content(before.replace("\n", "\r\n"), moved, ours) == ()


def test_the_sentence_of_a_fresh_index_may_go() -> None:
    """W-003: nobody wrote it."""
    assert lost_content(page(f"# Index\n\n{FRESH_INDEX}"), page("# Index\n\n- [[A]]"), ()) == ()


def test_changes_that_are_clean_are_dated_today(tmp_path: Path) -> None:
    """W-067: when a page was made stays; what says the same is no change."""
    shelf = Shelf.make(tmp_path)
    changes = wanted(
        shelf,
        Garden="# Garden\n\nBehind the house since 2024. Anna waters it.\n\nSee [[Roses]], [[Pond]].",
        Roses="# Roses\n\nThree red ones.\n\n```\nprune --in march\n```\n\n",
        Pond="# Pond\n\nCarp.",
    )
    found = verdict(shelf, changes)
    assert (found.reasons, found.proposed) == ((), ())
    assert [each.path for each in found.changes] == [GARDEN, "semantic/Pond.md"]
    assert found.changes[0].after == page(
        "# Garden\n\nBehind the house since 2024. Anna waters it.\n\nSee [[Roses]], [[Pond]].",
        DAY,
        TODAY,
    )
    assert found.changes[1].after == page("# Pond\n\nCarp.", TODAY, TODAY)


GOOD = "# Garden\n\nBehind the house since 2024. Anna waters it.\n\nSee [[Roses]]"


@pytest.mark.parametrize(
    ("path", "after", "reason"),
    [
        (GARDEN, page(f"{GOOD} and [[Nowhere]]."), "broken link: semantic/Garden: [[Nowhere]]"),
        (GARDEN, page(f"{GOOD} and [[../../etc/passwd]]."), "(outside the store)"),
        ("semantic/Alone.md", page("# Alone"), "semantic/Alone.md: no page would link to it"),
        ("semantic/Alone.md", page("# Alone\n\n[[Alone]]"), "no page would link to it"),
        ("episodic/Garden.md", page("# Garden"), "ambiguous name: Garden"),
        ("semantic/system-runtime.md", page("# X"), "ambiguous name: system-runtime"),
        (GARDEN, page(f"{GOOD} {'word ' * 2000}"), "long page: semantic/Garden"),
        (GARDEN, f"{GOOD}\n", "semantic/Garden.md: has no frontmatter"),
        (GARDEN, page(GOOD).replace("updated", "tags"), "unknown key 'tags'"),
        (GARDEN, page(GOOD).replace("updated: 2026-05-01", "updated: soon"), "is no date"),
        (GARDEN, None, "semantic/Garden.md would be deleted"),
        ("../evil.md", page("# E"), "'../evil.md' lies outside the store"),
        ("meta/conversations.json", "[]", "is neither in semantic/ nor in episodic/"),
    ],
)
def test_a_new_problem_is_told(tmp_path: Path, path: str, after: str | None, reason: str) -> None:
    """W-064: nothing of the job is done then, the clean page beside it neither."""
    shelf = Shelf.make(tmp_path)
    clean = change(shelf, ROSES, shelf.read(ROSES) + "\nSee [[Garden]].\n")
    found = verdict(shelf, [clean, change(shelf, path, after)])
    assert reason in "; ".join(found.reasons)
    assert (found.changes, found.proposed) == ((), ())
    assert verdict(shelf, [clean]).reasons == ()


def test_problems_that_were_there_stand_against_nothing(tmp_path: Path) -> None:
    """W-064: what a person left broken is theirs to mend."""
    shelf = Shelf.make(tmp_path)
    shelf.write(GARDEN, page("# Garden\n\n[[Nowhere]] [[Roses]]").replace("updated", "tags"))
    shelf.write("semantic/Lost.md", page(f"# Lost\n\n{'word ' * 2000}"))
    more = shelf.read(GARDEN) + "\nMore.\n"
    assert verdict(shelf, [change(shelf, GARDEN, more)]).reasons == ()


def test_a_page_that_was_not_planned_is_refused(tmp_path: Path) -> None:
    """W-078."""
    shelf = Shelf.make(tmp_path)
    [roses] = wanted(
        shelf, Roses="# Roses\n\nThree red ones, one white.\n\n```\nprune --in march\n```"
    )
    index = shelf.read(INDEX)
    assert verdict(shelf, [roses], plan={ROSES}, index=index).changes
    assert verdict(shelf, [roses], plan={GARDEN}, index=index).reasons == (
        "semantic/Roses.md is not in the plan",
    )


def test_a_page_that_loses_a_persons_line_is_proposed(tmp_path: Path) -> None:
    """W-064: the others are judged without it."""
    shelf = Shelf.make(tmp_path)
    changes = wanted(
        shelf,
        Garden="# Garden\n\nBehind the house since 2024.\n\nSee [[Roses]] and [[Pond]].",
        Roses="# Roses\n\nThree red ones, a white one.\n\n```\nprune --in march\n```",
    )
    ours = {ROSES: lines_of(shelf.read(ROSES))}
    found = judge_changes(view_of(shelf), changes, today=TODAY, ours=ours)
    assert [each.path for each in found.changes] == [ROSES]
    assert [each.change.path for each in found.proposed] == [GARDEN]
    assert 'the line "See [[Roses]]."' in found.proposed[0].reason
    new = change(shelf, "semantic/Pond.md", page("# Pond"))
    found = judge_changes(view_of(shelf), [*changes, new], today=TODAY, ours=ours)
    assert found.reasons == ("semantic/Pond.md: no page would link to it",)


def test_a_new_page_that_nobody_links_to_gets_its_line_in_the_index(tmp_path: Path) -> None:
    """W-062: one line, by the shortest name; the sentence of a fresh index goes."""
    shelf = Shelf.make(tmp_path, {})
    fresh = shelf.read(INDEX)
    assert FRESH_INDEX in fresh
    changes = [
        *wanted(shelf, Pond="# Pond\n\n**Three** carp, see [[Fish|them]].", Fish="# Fish\n\nCarp."),
        change(shelf, "episodic/2026-05-04.md", page("# A day")),
    ]
    plan = {each.path for each in changes}
    found = verdict(shelf, changes, plan=plan, index=fresh)
    assert found.reasons == ()
    assert found.changes[-1] == FileChange(
        INDEX,
        fresh,
        page("# Index\n\n- [[Pond]]: Three carp, see Fishthem.\n- [[2026-05-04]]:", DAY, TODAY),
    )


PLAIN = st.sampled_from(["A", "B", "C", "Bee", "v1.2"])
FOLDER = st.sampled_from(["semantic", "episodic", "semantic/deep"])
LINKS = st.lists(
    st.one_of(
        PLAIN,
        st.builds("{}/{}".format, FOLDER, PLAIN),
        st.builds("{}/{}.md".format, FOLDER, PLAIN),
        st.sampled_from(["Index", "meta/Index", "Gone", "semantic//A", "A.md", "semantic/A/"]),
    ),
    max_size=4,
)
STORE = st.dictionaries(st.builds("{}/{}.md".format, FOLDER, PLAIN), LINKS, max_size=8)


@settings(max_examples=examples(150))
@given(before=STORE, index=LINKS, more=STORE)
def test_a_look_at_what_changes_finds_what_a_look_at_everything_does(
    before: dict[str, list[str]], index: list[str], more: dict[str, list[str]]
) -> None:
    """W-064: the naive way compares all problems of a whole store before and after."""
    links = {**before, INDEX: index}
    after = links | {path: [*links.get(path, ()), *found] for path, found in more.items()}
    was, now = ({path: linking(each) for path, each in one.items()} for one in (links, after))
    changes = [FileChange(path, was.get(path), now[path]) for path in more]
    found = objections(whole(was), whole(was).after(changes), list(more))
    new = problems(whole(now)) - problems(whole(was))
    assert bool(found) is bool(new)
    if not any(kind == "ambiguous name" for kind, *_ in new):  # else others' links mean nothing
        orphans = {name for kind, name, _ in new if kind == "orphan"}
        told = {line.partition(": no page would")[0] for line in found if "no page would" in line}
        assert told == orphans
        assert len(found) == len(new)


def linking(links: list[str]) -> str:
    return page(" ".join(f"[[{link}]]" for link in links))


def whole(texts: dict[str, str]) -> StoreView:
    def look(path: str) -> Presence:
        return "file" if path in texts else "none"

    pages = {path: read_page(text.encode()) for path, text in texts.items()}
    return StoreView(pages, Names(texts), look)


def problems(view: StoreView) -> set[tuple[str, str, str]]:
    graph = LinkGraph(view.pages, view.names, view.look)
    return {each.identity for each in graph.problems({}) if each.kind != "long index"}
