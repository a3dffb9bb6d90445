"""Functions of the GPU that kernels share word for word: @triton.jit here, @gluon.jit for Hopper in `sm90`.

A generated file imports those that it calls. Importing the modules here needs no Gluon.
"""
