"""Search: which configs are tried, measured in turns, and kept for a GPU model."""
