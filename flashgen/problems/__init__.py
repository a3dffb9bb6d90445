"""Problems and random but realistic calls for any variant, the same for proof, tuning and benchmarks."""
