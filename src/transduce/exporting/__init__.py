"""Converters of a model into the formats of other engines; each mirrors the module tree."""

from collections.abc import Container, Iterator

from transduce.config import ModelConfig


def not_carried(config: ModelConfig, carried: Container[str]) -> Iterator[tuple[str, object]]:
    """Yield the settings, with their values, that are not listed and do not have their defaults.

    So a switch that the model gets one day is refused until a converter says that it carries it.
    """
    for name, field in ModelConfig.model_fields.items():
        value = getattr(config, name)
        if name not in carried and value != field.default:
            yield name, value
