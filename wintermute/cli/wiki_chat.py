"""`wintermute wiki chat` and `generate`: conversations in folders, also beside a running daemon."""

import sys
from pathlib import Path

import click

from wintermute.answering import folder_answers
from wintermute.cli.opening import with_models
from wintermute.cli.options import REDACT, reporting, tell
from wintermute.cli.wiki_store import conversation_of, message_of, settings_of, store_option
from wintermute.clock import CheckedClock, SystemClock
from wintermute.config.schema import Config
from wintermute.config.secrets import Redaction
from wintermute.config.wiki import WikiSettings
from wintermute.conversation.state import Unwatched
from wintermute.llm.models import Models
from wintermute.prompt.context_builder import read_texts
from wintermute.stores import Stores
from wintermute.wiki.conversations import ConversationFolder
from wintermute.wiki.pages import MOST_BYTES
from wintermute.wiki.store import WikiStore
from wintermute.work.data_folder import DataFolder

conversation_option = click.option(
    "--conversation",
    required=True,
    metavar="PATH",
    help="A conversation of the store, or another folder of messages.",
)


@click.command("chat")
@conversation_option
@store_option
@reporting
def chat(ctx: click.Context, store: Path | None, conversation: str, as_json: bool) -> None:
    """Add a message from standard input, and print the answer.

    The message is stored first and stays if the model does not answer; then `generate --write` asks
    again.

    Example: wintermute wiki chat --conversation conversations/20260504-090000 < question.md
    """
    text = message_of(sys.stdin.buffer.read(MOST_BYTES + 1))
    settings = settings_of(ctx, store)
    folder = conversation_of(WikiStore(settings.store), conversation)
    with folder.held():
        folder.append("user", text)
        answer = _answer(ctx, settings, folder)
        name = folder.append("assistant", answer)
    tell(ctx, {"answer": answer, "name": name}, answer, as_json=as_json)


@click.command("generate")
@conversation_option
@click.option("--write", is_flag=True, help="Add the answer, and print the name of its file.")
@store_option
@reporting
def generate(
    ctx: click.Context, store: Path | None, conversation: str, write: bool, as_json: bool
) -> None:
    """Answer the last message of a conversation, and print the answer.

    Example: wintermute wiki generate --conversation conversations/20260504-090000 --write
    """
    settings = settings_of(ctx, store)
    folder = conversation_of(WikiStore(settings.store), conversation)
    with folder.held():
        answer = _answer(ctx, settings, folder)
        name = folder.append("assistant", answer) if write else None
    tell(ctx, {"answer": answer, "name": name}, name or answer, as_json=as_json)


def _answer(ctx: click.Context, settings: WikiSettings, folder: ConversationFolder) -> str:
    """Return the model's answer to the last message. Raises: WintermuteError."""

    async def work(stores: Stores, config: Config, models: Models) -> str:
        prompts = config.data_dir / "prompts"
        texts = read_texts(prompts, config.opening, wiki=config.wiki)
        redact, clock = ctx.meta.get(REDACT) or Redaction(()), CheckedClock(SystemClock())
        answers = folder_answers(DataFolder(config, stores, models, texts, clock, redact), settings)
        return await answers(folder, Unwatched())

    return with_models(ctx, work, lambda _: settings, level="error")
