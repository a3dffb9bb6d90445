"""What is asked of a variant, answered once."""
