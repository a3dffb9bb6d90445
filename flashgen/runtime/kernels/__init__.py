"""The kernels, a module each: whom it serves, what its configs may be, how it is launched."""
