"""What was changed, item by item, with the way back."""
