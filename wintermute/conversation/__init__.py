"""The life of a conversation: rooms take what comes in, casts answer it. Read cast.py first."""
