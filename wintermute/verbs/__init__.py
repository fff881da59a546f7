"""What a person can do where it takes a door more than one step."""
