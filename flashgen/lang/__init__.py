"""The language of specs: expressions as a graph, what is known of them, and what they mean."""
