"""What the built-in writer of pages is told and shown: what to write down, and pages by what names them."""

from datetime import date

from tests.world.consolidated import (
    BAD_PAGES,
    POND,
    Writer,
    consolidate,
    plan,
    ready,
    updated,
)
from tests.world.model import ModelServer
from tests.world.shelf import GARDEN, INDEX, Shelf, page
from tests.world.terminal import Terminal, with_model
from wintermute.pages.page_writer import OF_FILES
from wintermute.templates import CONSOLIDATION, shipped_prompts

OTHER = "episodic/Garden.md"


def test_the_shipped_prompt_tells_apart_what_to_write_down_and_how_files_are_changed() -> None:
    """W-061, W-062, W-078: a model that answers with a plan or a page changes no file."""
    told, of_files, rest = shipped_prompts()[CONSOLIDATION].partition(OF_FILES)
    assert of_files
    assert "What to write down" in told
    of_programs = ["__CONVERSATION_PATH__", "`meta/", "`semantic/`", "change nothing", "report"]
    assert [words for words in of_programs if words in told] == []
    assert [words for words in of_programs if words not in rest] == []


async def test_pages_of_one_name_go_by_their_paths(terminal: Terminal, model: ModelServer) -> None:
    """W-011, W-016: an answer can name each of them, and link to each."""
    shelf = Shelf.make(terminal.data / "wiki")
    shelf.write(OTHER, page("# Garden\n\nThe first day. See [[Roses]].", date(2026, 5, 1)))
    shelf.write(INDEX, updated(shelf.read(INDEX), "- [[episodic/Garden]], [[semantic/Garden]]"))
    with_model(terminal, model, "flat_file")
    grown = updated(shelf.read(OTHER), "And tulips, as in [[semantic/Garden]].")
    writer = Writer(model, plan("episodic/Garden"), {OTHER: grown})
    done = await consolidate(terminal, shelf.conversation())
    assert (done.returncode, shelf.job()["changed_files"]) == (0, [OTHER])
    assert writer.plans[0].block("entries") == "- Roses\n- episodic/Garden\n- semantic/Garden"
    assert writer.calls[OTHER].block("entries") == "- Roses\n- semantic/Garden"


async def test_a_bad_page_does_not_cost_the_others(terminal: Terminal, model: ModelServer) -> None:
    """M-094: what would link to it says its name."""
    shelf = Shelf.make(terminal.data / "wiki")
    ready(terminal, model, **{POND: BAD_PAGES["no frontmatter"]})
    done = await consolidate(terminal, shelf.conversation())
    job = shelf.job()
    assert (done.returncode, job["status"], job["changed_files"]) == (0, "applied", [GARDEN])
    assert "There are 12 tulips by the Pond." in shelf.read(GARDEN)
    assert f"- {POND} was not written: " in shelf.read(f"sleep/{job['name']}/report.md")


async def test_a_link_to_nowhere_is_told_once(terminal: Terminal, model: ModelServer) -> None:
    """M-094: of any kind; those in code, and to what a person has still to write, stay."""
    shelf = Shelf.make(terminal.data / "wiki")
    links = "[[The moon]], [[../../etc/passwd|all]], [[episodic-raw/20260504/x/0009-user]], `[[x]]`"
    ready(terminal, model, **{POND: page(f"# Pond\n\nBy the [[Garden]]: {links}.")})
    done = await consolidate(terminal, shelf.conversation())
    assert done.returncode == 0, done
    says = "By the [[Garden]]: The moon, all, episodic-raw/20260504/x/0009-user, `[[x]]`."
    assert says in shelf.read(POND)
    told = [str(seen.messages[-1]["content"]) for seen in model.requests]
    assert sum("[[The moon]] leads nowhere" in each for each in told) == 1
