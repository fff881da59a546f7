"""The commands of `wintermute wiki` that need a store alone: no model, database or full configuration."""

import os
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from pathlib import Path, PurePosixPath
from typing import Any
from zoneinfo import ZoneInfo

import click

from wintermute.cli.options import CONFIG, reporting, tell, visible
from wintermute.clock import SystemClock
from wintermute.config.read import environment, read_with_gaps
from wintermute.config.schema import DATA, WIKI, Config
from wintermute.config.wiki import WikiSettings, command_wiki
from wintermute.errors import ConfigurationError, FileUnusable, StoreUnusable, WintermuteError
from wintermute.files import decoded
from wintermute.templates import RUNTIME, read_template, shipped_prompts
from wintermute.text import EMPTY_AT_SHELL, harmless
from wintermute.wiki.conversations import (
    ROLES,
    ConversationFolder,
    create,
    is_encodable,
    is_there,
    listed,
)
from wintermute.wiki.graph import WikiProblem, shown
from wintermute.wiki.links import CONVERSATIONS, INDEX, META, Unresolved, is_page, legible
from wintermute.wiki.pages import MOST_BYTES, read_page, text_of
from wintermute.wiki.store import LISTED, OLD_INDEX, WikiStore

WikiFound = tuple[Any, Iterable[str]]
"""The result of a command: values for a program, lines for a person."""

OUT_OF_PLACE = (
    "outside of semantic/ and episodic/, so found by their titles but neither searched nor checked"
)
NAMED = 5

store_option = click.option(
    "--store",
    type=click.Path(path_type=Path, readable=False),
    metavar="PATH",
    help="The folder of the pages; default: the configured one.",
)
raw_option = click.option(
    "--raw", is_flag=True, help="Find copies of conversations in episodic-raw as well."
)


def settings_of(ctx: click.Context, store: Path | None) -> WikiSettings:
    """Return the wiki settings of a command with this `--store`, or none.

    An unreadable configuration is an error only if nothing else names the store (W-056).
    """
    here = _here()
    try:
        return command_wiki(store, environment(), here, _config(ctx))
    except ConfigurationError:
        found = command_wiki(store, environment(), here, None)
        if store is None and found.store == here / DATA / WIKI:
            raise
        return found


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise ConfigurationError("the folder you are in is gone: change into another") from error


def _config(ctx: click.Context) -> Config:
    return read_with_gaps(ctx.meta[CONFIG], environment())[0]


def local_now(ctx: click.Context) -> datetime:
    """Return the time in the configured zone, or else in the machine's."""
    now = SystemClock().now()
    try:
        return now.astimezone(ZoneInfo(_config(ctx).timezone))
    except ConfigurationError:
        return now.astimezone()


def on_pages(work: Callable[..., WikiFound]) -> Callable[..., None]:
    """Make a command that reads a store under its lock, and prints the result."""

    @store_option
    @reporting
    @wraps(work)
    def run(ctx: click.Context, /, store: Path | None, as_json: bool, **given: Any) -> None:
        wiki = WikiStore(settings_of(ctx, store).store)
        with wiki.files.reading():
            values, lines = work(wiki, **given)
        tell(ctx, values, *lines, as_json=as_json)

    return run


def _page_path(wiki: WikiStore, title: str, *, raw: bool = False) -> str:
    found = wiki.resolve(title, raw=raw)
    if isinstance(found, Unresolved):
        raise WintermuteError(str(found))
    return found


def _content(wiki: WikiStore, path: str) -> bytes:
    try:
        content = wiki.files.content(path)
    except FileUnusable as problem:
        raise WintermuteError(f"{path} {problem}") from problem
    if content is None:
        raise WintermuteError(f"{path} is gone: somebody has just removed it")
    return content


def conversation_of(wiki: WikiStore, named: str) -> ConversationFolder:
    """Find a conversation by its path in the store, or any folder of message files (W-038).

    Raises: WintermuteError.
    """
    if not is_encodable(named):
        raise WintermuteError(f"{named!a} is no name that can be written: rename the folder")
    path, root = PurePosixPath(named), _resolved(wiki.root)
    if not path.is_absolute() and ".." not in path.parts and os.path.lexists(root / path):
        return _stored(wiki, str(path))
    folder = _resolved(Path(named))
    if folder.is_relative_to(root):
        return _stored(wiki, folder.relative_to(root).as_posix())
    found = ConversationFolder(folder)
    strangers = found.strangers()
    if strangers:
        raise WintermuteError(
            f"{legible(str(folder))} holds {strangers[0]}: only a folder with nothing but messages is a conversation"
        )
    return found


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # not permitted, a cycle of links, NUL
        raise WintermuteError(f"{legible(str(path))} is no folder that can be entered") from error


def _stored(wiki: WikiStore, path: str) -> ConversationFolder:
    with wiki.files.reading():
        if not path.startswith(f"{CONVERSATIONS}/") and path not in listed(wiki.files):
            raise WintermuteError(
                f"{legible(path)} is no conversation: `wintermute wiki conversations` lists them"
            )
    return ConversationFolder(wiki.root, path)


@click.command("init")
@store_option
@reporting
def init(ctx: click.Context, store: Path | None, as_json: bool) -> None:
    """Make a store, or add what is missing in one.

    Existing files stay as they are. The index of an old store, index.md, becomes the new index.

    Example: wintermute wiki init --store ~/wiki
    """
    settings = settings_of(ctx, store)
    wiki, prompt = WikiStore(settings.store), settings.runtime_prompt
    text = (
        read_template(prompt.parent, prompt.name) if prompt.exists() else shipped_prompts()[RUNTIME]
    )
    is_old = not wiki.exists and wiki.files.presence(OLD_INDEX) == "file"
    made = wiki.init(local_now(ctx).date(), text)
    if is_old:
        click.echo(f"{OLD_INDEX} was taken over as {INDEX}", err=True)
    if wiki.has_two_indexes:
        click.echo(f"{OLD_INDEX} is not used beside {INDEX}: both stay as they are", err=True)
    values = {
        "store": str(wiki.root),
        "made": [path for path, new in made.items() if new],
        "taken_over": is_old,
        "two_indexes": wiki.has_two_indexes,
    }
    tell(ctx, values, str(wiki.root), as_json=as_json)


@click.command("read")
@click.argument("title")
@raw_option
@store_option
@reporting
def read(ctx: click.Context, store: Path | None, title: str, raw: bool, as_json: bool) -> None:
    """Print a page as it is.

    In a terminal, control characters appear as text, such as u001b for an escape.

    Example: wintermute wiki read "Garden"
    """
    wiki = WikiStore(settings_of(ctx, store).store)
    with wiki.files.reading():
        path = _page_path(wiki, title, raw=raw)
        content = _content(wiki, path)
    if as_json:
        tell(ctx, {"path": path, "text": _decoded(path, content)}, as_json=True)
    elif sys.stdout.isatty():
        click.echo(visible(content.decode("utf-8", "replace")), nl=False)
    else:
        click.echo(content, nl=False)


def _decoded(path: str, content: bytes) -> str:
    try:
        return text_of(content)
    except FileUnusable as problem:
        raise WintermuteError(f"{path} {problem}") from problem


@click.command("resolve")
@click.argument("title")
@raw_option
@on_pages
def resolve(wiki: WikiStore, title: str, raw: bool) -> WikiFound:
    """Print the path of a page.

    A title is the name of a page, or its path in the store.

    Example: wintermute wiki resolve semantic/Garden
    """
    path = _page_path(wiki, title, raw=raw)
    return {"path": path}, [path]


@click.command("backlinks")
@click.argument("title")
@on_pages
def backlinks(wiki: WikiStore, title: str) -> WikiFound:
    """List the pages that link to a page.

    Example: wintermute wiki backlinks "Garden"
    """
    found = wiki.graph().backlinks(_page_path(wiki, title))
    return found, map(shown, found)


@click.command("orphans")
@on_pages
def orphans(wiki: WikiStore) -> WikiFound:
    """List the pages that no other page links to.

    Example: wintermute wiki orphans
    """
    found = wiki.graph().orphans
    return found, map(shown, found)


@click.command("broken")
@on_pages
def broken(wiki: WikiStore) -> WikiFound:
    """List the links that fit no page, or several.

    Example: wintermute wiki broken
    """
    found = wiki.graph().broken
    values = [
        {
            "page": each.page,
            "target": each.target,
            "reason": each.why.reason,
            "paths": each.why.paths,
        }
        for each in found
    ]
    return values, map(str, found)


@click.command("tokens")
@click.argument("title", metavar="FILE")
@on_pages
def tokens(wiki: WikiStore, title: str) -> WikiFound:
    """Estimate the tokens of a page.

    The estimate is a quarter of its characters.

    Example: wintermute wiki tokens semantic/Garden.md
    """
    path = _page_path(wiki, title)
    page = read_page(_content(wiki, path))
    if page.unusable:
        raise WintermuteError(f"{path} {page.unusable}")
    return {"path": path, "tokens": page.tokens}, [str(page.tokens)]


@click.command("create-conversation")
@store_option
@reporting
def create_conversation(ctx: click.Context, store: Path | None, as_json: bool) -> None:
    """Make a new conversation, and print its path.

    Example: wintermute wiki create-conversation
    """
    wiki = WikiStore(settings_of(ctx, store).store)
    now = local_now(ctx)
    with wiki.files.writing():
        path = create(wiki.files, now)
    tell(ctx, {"path": path}, path, as_json=as_json)


@click.command("conversations")
@on_pages
def conversations(wiki: WikiStore) -> WikiFound:
    """List the conversations.

    Example: wintermute wiki conversations
    """
    lost = {path: not is_there(wiki.files, path) for path in listed(wiki.files)}
    lines = (f"{legible(path)}{' (missing)' if gone else ''}" for path, gone in lost.items())
    return [{"path": path, "missing": gone} for path, gone in lost.items()], lines


@click.command("add-message")
@click.option(
    "--conversation",
    required=True,
    metavar="PATH",
    help="A conversation of the store, or another folder of messages.",
)
@click.argument("role", type=click.Choice([*ROLES]))
@store_option
@reporting
def add_message(
    ctx: click.Context, store: Path | None, conversation: str, role: str, as_json: bool
) -> None:
    """Add a message from standard input to a conversation.

    It does not answer, and prints the name of the new file. A system message must come first.

    Example: wintermute wiki add-message --conversation conversations/20260504-090000 user < hello.md
    """
    text = message_of(sys.stdin.buffer.read(MOST_BYTES + 1))
    folder = conversation_of(WikiStore(settings_of(ctx, store).store), conversation)
    with folder.held():
        name = folder.append(ROLES[role], text)
    tell(ctx, {"name": name, "path": str(folder.path / name)}, name, as_json=as_json)


def message_of(content: bytes) -> str:
    """Return the given message. Raises: click.UsageError for a blank one; WintermuteError."""
    if len(content) > MOST_BYTES:
        raise WintermuteError(f"the message has over {MOST_BYTES:,} bytes: shorten it")
    try:
        text = decoded(content).replace("\r\n", "\n").rstrip()
    except FileUnusable as problem:
        raise WintermuteError(f"the message {problem}") from problem
    if not text:
        raise click.UsageError("the message is blank: give it on standard input")
    return text


@click.command("search")
@click.argument("words")
@click.option(
    "--k", "most", type=click.IntRange(min=1), default=10, show_default=True, help="How many pages."
)
@on_pages
def search(wiki: WikiStore, words: str, most: int) -> WikiFound:
    """Search the pages for words, without a model.

    Words in the name of a page count more than words in its text. Pages linked with the best ones
    come last.

    Example: wintermute wiki search "roses in the garden"
    """
    found, has_pages = wiki.search(words, most), any(map(is_page, wiki.pages()))
    lines = []
    for hit in found:
        beside = f" (linked with {shown(hit.linked_with)})" if hit.linked_with else ""
        lines += [f"{shown(hit.path)}{beside}", f"    {harmless(hit.line)}"]
    return found, lines or ["No page fits." if has_pages else EMPTY_AT_SHELL["pages"]]


@click.command("check")
@store_option
@reporting
def check(ctx: click.Context, store: Path | None, as_json: bool) -> None:
    """List the problems of the pages.

    It finds broken links, pages without links to them, names that several pages have, and bad
    frontmatter. It also finds pages that are too long or unreadable. The exit code is 1 if there is
    a problem.

    Example: wintermute wiki check --store ~/wiki
    """
    wiki = WikiStore(settings_of(ctx, store).store)
    with wiki.files.reading():
        found = [*wiki.problems(), *_damaged(wiki)]
        beside = sorted(path for path in wiki.tree().names.paths if not _is_known(path))
    if beside:
        few = ", ".join(map(legible, beside[:NAMED]))
        more = f" and {len(beside) - NAMED} more" if len(beside) > NAMED else ""
        click.echo(f"{OUT_OF_PLACE}: {few}{more}", err=True)
    tell(ctx, found, *map(str, found), as_json=as_json)
    ctx.exit(1 if found else 0)


def _is_known(path: str) -> bool:
    return is_page(path) or path.startswith(f"{META}/")


def _damaged(wiki: WikiStore) -> Iterable[WikiProblem]:
    try:
        listed(wiki.files)
    except StoreUnusable as problem:
        yield WikiProblem("damaged list", LISTED, "", str(problem))
