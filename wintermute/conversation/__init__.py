"""The life of a conversation:

rooms take messages and events, casts answer them. Read cast.py first.
"""
