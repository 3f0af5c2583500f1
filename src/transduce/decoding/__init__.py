"""From a model and a source to the best outputs: search, engines, and lines of text."""
