"""The demo: a private homeserver, the real daemon and a practice model, without account or key."""
