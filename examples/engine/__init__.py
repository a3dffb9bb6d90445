"""A serving engine in five short files: pages, scheduler, batch, model, engine. docs/serving.md walks through them."""
