"""A soak: random specs over the whole language, held against an evaluation that shares no code with the compiler.

`draw` makes a `Case` of a seed and an index: a spec, sizes, and how the tensors are made. `formula` and `attend` say
what the right answer is, from the text of the spec and Python's own parser. `trial` builds the spec and compares.
`shrink` makes a failing case small. `python -m flashgen.verify.soak` does all of it.
"""
