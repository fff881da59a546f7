"""Wintermute: a self-hosted personal assistant that lives in your Matrix rooms."""

__version__ = "0.1.0"
