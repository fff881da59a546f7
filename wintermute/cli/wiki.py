"""`wintermute wiki`: pages that link to each other. Help is as quick as that of the program itself."""

import click

from wintermute.cli.options import LazyGroup

VERBS = {
    "init": ("wiki_store", "Make a store, or what is missing in one."),
    "read": ("wiki_store", "Print a page as it is."),
    "resolve": ("wiki_store", "Print the path of the page that a title means."),
    "backlinks": ("wiki_store", "List the pages that link to a page."),
    "orphans": ("wiki_store", "List the pages that no other page links to."),
    "broken": ("wiki_store", "List the links that mean no page, or several."),
    "tokens": ("wiki_store", "Print about how many tokens a page has."),
    "create-conversation": ("wiki_store", "Make a new conversation, and print its path."),
    "conversations": ("wiki_store", "List the conversations."),
    "add-message": ("wiki_store", "Add a message from standard input to a conversation."),
    "generate": (
        "wiki_chat",
        "Have the last message of a conversation answered, and print the answer.",
    ),
    "chat": ("wiki_chat", "Say what is on standard input in a conversation, and print the answer."),
    "consolidate": (
        "wiki_pages",
        "Make pages of a conversation, or of what is new in a chat.",
    ),
    "search": ("wiki_store", "Look for words in the pages, without a model."),
    "check": ("wiki_store", "Say what is to be mended."),
    "web": ("web", "Read and mend the pages in the browser."),
    "undo": (
        "wiki_pages",
        "Take back what a job did, or a save in the browser; what was edited since stays.",
    ),
}
"""By verb the module it stands in, and its line, which is repeated here so that help loads none."""


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
    """Pages that link to each other, and grow out of conversations.

    Example: wintermute wiki read Index
    """
