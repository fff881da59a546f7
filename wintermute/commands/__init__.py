"""Lines that start with `/`: the same at every door, and none needs a model."""

from wintermute.commands.chat import ChatCommands

__all__ = ["ChatCommands"]
