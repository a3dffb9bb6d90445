"""Front doors for other people's libraries: generated attention where they look for theirs."""
