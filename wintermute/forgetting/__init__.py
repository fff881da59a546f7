"""Words that somebody wants gone go everywhere: rows, facts, pages, files."""
