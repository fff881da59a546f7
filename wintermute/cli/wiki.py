"""`wintermute wiki`: linked pages. Its help is as quick as that of the program itself."""

import click

from wintermute.cli.options import LazyGroup

VERBS = {
    "init": ("wiki_store", "Make a store, or add what is missing in one."),
    "read": ("wiki_store", "Print a page as it is."),
    "resolve": ("wiki_store", "Print the path of a page."),
    "backlinks": ("wiki_store", "List the pages that link to a page."),
    "orphans": ("wiki_store", "List the pages that no other page links to."),
    "broken": ("wiki_store", "List the links that fit no page, or several."),
    "tokens": ("wiki_store", "Estimate the tokens of a page."),
    "create-conversation": ("wiki_store", "Make a new conversation, and print its path."),
    "conversations": ("wiki_store", "List the conversations."),
    "add-message": ("wiki_store", "Add a message from standard input to a conversation."),
    "generate": ("wiki_chat", "Answer the last message of a conversation, and print the answer."),
    "chat": ("wiki_chat", "Add a message from standard input, and print the answer."),
    "consolidate": ("wiki_pages", "Turn a conversation into pages, or what is new in a chat."),
    "search": ("wiki_store", "Search the pages for words, without a model."),
    "check": ("wiki_store", "List the problems of the pages."),
    "web": ("web", "Read and edit the pages in the browser."),
    "undo": ("wiki_pages", "Undo a job, or a save in the browser; later edits stay."),
}
"""The module of each command and its help line, which is repeated here so that help loads none."""


@click.group(
    "wiki",
    cls=LazyGroup,
    lazy={
        verb: f"wintermute.cli.{module}:{'wiki' if module == 'web' else verb.replace('-', '_')}"
        for verb, (module, _) in VERBS.items()
    },
    lines={verb: line for verb, (_, line) in VERBS.items()},
)
def command() -> None:
    """Read, search and tidy the wiki, and turn conversations into pages.

    Example: wintermute wiki read Index
    """
