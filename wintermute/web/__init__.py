"""The web door: talk in the browser, read and mend the wiki."""
