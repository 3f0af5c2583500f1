"""Configuration: strict, layered, written down, and with helpful words for mistakes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.config import (
    Config,
    ModelConfig,
    departures,
    from_assignments,
    known_keys,
    merge,
    named,
    overlay,
    parse,
    preset_names,
    read_recipe,
)
from transduce.errors import TransduceError, UsageError


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_parses(name: str) -> None:
    assert parse(overlay({"preset": name}), "test").preset == name


def test_the_presets_are_the_rows_of_table_3_and_ours() -> None:
    counts = {"A": 4, "B": 2, "C": 7, "D": 4}
    rows = [f"{row}{i + 1}" for row, count in counts.items() for i in range(count)]
    rows += ["E", "base", "big"]
    assert preset_names() == sorted([*rows, "tiny", "small"])


def test_dump_and_load_is_identity() -> None:
    config = parse(overlay({"preset": "B1", "profile": "t2t"}, ["training.seed=7"]), "test")
    import tomllib

    assert parse(tomllib.loads(config.to_toml()), "test") == config


def test_layers_win_in_the_stated_order() -> None:
    recipe = {"profile": "t2t", "preset": "D3", "training": {"beta_2": 0.5}}
    config = parse(overlay(recipe, ["training.beta_2=0.6"]), "test")
    assert config.training.beta_2 == 0.6  # --set over recipe
    assert config.training.eps_ls == 0.0  # preset over profile
    assert config.training.warmup_steps == 8000  # profile over defaults
    assert config.training.beta_1 == 0.9


def test_merge_joins_tables_and_leaves_its_arguments_alone() -> None:
    first = {"a": {"x": 1, "y": 2}, "b": 1}
    assert merge(first, {"a": {"y": 3}}, {"b": {"z": 1}}) == {"a": {"x": 1, "y": 3}, "b": {"z": 1}}
    assert first == {"a": {"x": 1, "y": 2}, "b": 1}


def test_derived_sizes() -> None:
    config = ModelConfig(N=3, d_model=96, h=4)
    assert (config.N_encoder, config.N_decoder, config.d_k, config.d_v) == (3, 3, 24, 24)
    config = ModelConfig(N_encoder=12, N_decoder=1, d_model=96, h=4, d_k=5)
    assert (config.N_encoder, config.N_decoder, config.d_k, config.d_v) == (12, 1, 5, 24)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": {"dmodel": 8}}, ["model.dmodel", "did you mean 'model.d_model'"]),
        ({"modle": {}}, ["modle"]),
        ({"model": {"d_model": 10, "h": 4}}, ["d_model (10)", "h (4)"]),
        ({"model": {"d_model": 0}}, ["model.d_model", "greater than or equal to 1"]),
        ({"model": {"d_model": "wide"}}, ["model.d_model", "'wide'"]),
        ({"model": {"P_drop": 1.0}}, ["model.P_drop", "less than 1"]),
        ({"training": {"steps": 1.5}}, ["training.steps"]),
        ({"training": {"schedule": "steep"}}, ["training.schedule", "'cosine' or 'constant'"]),
        ({"decoding": {"beam_size": 0}}, ["decoding.beam_size"]),
        ({"decoding": {"beam_size": -3}}, ["decoding.beam_size", "-3"]),
        ({"data": {"train": 3}}, ["data.train"]),
        ({"tokenizer": {"source": {"kind": "char"}}}, ["joint must be false"]),
        ({"evaluation": {"metrics": ["blue"]}}, ["evaluation.metrics", "'blue'"]),
    ],
)
def test_mistakes_are_named(settings: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse(settings, "recipe.toml")
    message = str(caught.value)
    assert message.startswith("recipe.toml: ")
    for word in words:
        assert word in message


def test_unknown_preset_profile_and_assignment_name_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'small'"):
        overlay({"preset": "smal"})
    with pytest.raises(UsageError, match="did you mean 'paper'"):
        overlay({"profile": "papr"})
    with pytest.raises(UsageError, match=r"did you mean 'training\.warmup_steps'"):
        from_assignments(["training.warmup=3"])
    with pytest.raises(UsageError, match="key=value"):
        from_assignments(["model.N"])
    with pytest.raises(UsageError, match="base"):
        named("presets", ["no", "name"])


def test_assignments_are_toml_values_or_words() -> None:
    assert from_assignments(["model.N=2", "preset=tiny", "training.factor = 0.5"]) == {
        "model": {"N": 2},
        "preset": "tiny",
        "training": {"factor": 0.5},
    }


def test_every_key_has_a_description() -> None:
    schema = Config.model_json_schema()
    for section in [schema, *schema["$defs"].values()]:
        for key, value in section["properties"].items():
            assert value.get("description"), f"{section['title']}.{key} says nothing about itself"
    assert "training.warmup_steps" in known_keys()


def test_recipe_paths_are_relative_to_the_recipe(write: Callable[[str, str], Path]) -> None:
    path = write("r.toml", '[data]\ntrain = ["a.en", "/b.de"]\nvalid = "v.tsv"\n')
    data = read_recipe(path)["data"]
    assert data == {
        "train": [str(path.parent / "a.en"), "/b.de"],
        "valid": str(path.parent / "v.tsv"),
    }


def test_broken_and_missing_recipes(write: Callable[[str, str | bytes], Path]) -> None:
    with pytest.raises(UsageError, match="line 2"):
        read_recipe(write("bad.toml", "a = 1\nb = = 2\n"))
    with pytest.raises(TransduceError, match="UTF-8"):
        read_recipe(write("latin.toml", b'a = "\xe9"\n'))
    with pytest.raises(TransduceError, match="No such file"):
        read_recipe(Path("nowhere.toml"))


def test_departures_from_the_paper() -> None:
    assert departures(parse(overlay({"profile": "paper", "preset": "base"}), "test")) == []
    found = departures(parse(overlay({"profile": "t2t"}), "test"))
    assert "model.norm_place = pre (paper: post)" in found
    assert "training.factor = 2.0 (paper: 1.0)" in found
    assert "decoding.max_extra = 100 (paper: 50)" in found
