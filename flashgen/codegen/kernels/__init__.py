"""What the template of each kernel needs to know of a variant: one module a kernel, by its name."""
