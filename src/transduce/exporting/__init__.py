"""Converters of a model into the formats of other engines; each mirrors the module tree."""
