"""The prompt: everything that the model reads before the conversation."""
