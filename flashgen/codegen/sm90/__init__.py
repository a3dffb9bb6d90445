"""What the kernels for Hopper ask of a variant beside the portable ones: tiles, masks, rows, sums of learned inputs."""
