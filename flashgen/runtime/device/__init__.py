"""Functions of the GPU that kernels share word for word: @triton.jit here, @gluon.jit for one kind of GPU in
a folder by its name.

A generated file imports those that it calls. Importing the modules here needs no Gluon.
"""
