"""The command line: one file per noun, each loaded only when it is called."""
