"""The wiki: linked Markdown pages in a folder, which people and the assistant both write."""
