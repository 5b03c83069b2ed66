"""Programs for maintainers: wheels, and the documentation site."""
