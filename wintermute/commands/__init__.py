"""Commands: messages that begin with `/`. They are the same at every door and need no model."""
