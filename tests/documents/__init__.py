"""The site of the documents, beside mkdocs."""
