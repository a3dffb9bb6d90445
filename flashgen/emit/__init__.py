"""Expressions as code: fragments, the dialects that they are written in, and names."""
