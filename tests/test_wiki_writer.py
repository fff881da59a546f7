"""What the built-in writer of pages is told and shown: what to write down, and pages by what names them."""

from datetime import date

from tests.test_cli_reconstruct import asks
from tests.test_consolidation import Writer, block, consolidate, plan, updated
from tests.world.model import ModelServer
from tests.world.shelf import INDEX, Shelf, page
from tests.world.terminal import Terminal
from wintermute.night.page_writer import OF_FILES
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


async def test_pages_of_one_name_are_shown_and_planned_by_their_paths(
    terminal: Terminal, model: ModelServer
) -> None:
    """W-011, W-016: an answer can name each of them, and link to each."""
    shelf = Shelf.make(terminal.data / "wiki")
    shelf.write(OTHER, page("# Garden\n\nThe first day. See [[Roses]].", date(2026, 5, 1)))
    shelf.write(INDEX, updated(shelf.read(INDEX), "- [[episodic/Garden]], [[semantic/Garden]]"))
    asks(terminal, model, "flat_file")
    grown = updated(shelf.read(OTHER), "And tulips, as in [[semantic/Garden]].")
    writer = Writer(model, plan("episodic/Garden"), {OTHER: grown})
    done = await consolidate(terminal, shelf.conversation())
    assert (done.returncode, shelf.job()["changed_files"]) == (0, [OTHER])
    assert block(writer.plans[0], "entries") == "- Roses\n- episodic/Garden\n- semantic/Garden"
    assert block(writer.calls[OTHER], "entries") == "- Roses\n- semantic/Garden"
