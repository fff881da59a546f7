"""What the model reads before the conversation."""
