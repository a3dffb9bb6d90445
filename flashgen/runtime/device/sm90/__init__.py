"""What the warp-specialized kernels for Hopper share word for word, in Gluon."""
