"""Talk becomes memory: facts are harvested, made clear, and told in short in core.md."""
