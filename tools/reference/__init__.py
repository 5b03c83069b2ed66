"""The reference pages of the documentation site, generated from the code. tools/docs_site.py adds them to the site."""
