"""The documentation site: assembles pages, runs the notebooks, builds HTML, checks its links."""
