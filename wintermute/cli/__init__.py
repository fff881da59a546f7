"""The command line: one module per noun, loaded only when it is called."""
