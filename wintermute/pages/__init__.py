"""Talk becomes pages of the wiki, which cite what they are made from."""
