"""Learning from conversations: facts are harvested, reconstructed, and summarised in core.md."""
