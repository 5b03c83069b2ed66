"""Programs for maintainers, which build wheels and the documentation site."""
