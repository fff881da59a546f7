"""The web door: chat in the browser, read and edit the wiki."""
