"""From what a person wrote down to a prepared corpus: settings, choices, preparation."""

import os
from collections.abc import Callable
from pathlib import Path

from transduce import choices
from transduce.config import (
    Settings,
    TokenizerConfig,
    merge,
    named,
    parse,
    read_recipe,
    read_toml,
    resolved_path,
    with_paths,
)
from transduce.data.corpus import MANIFEST, RECIPE, Corpus
from transduce.data.preparation import prepare
from transduce.data.statistics import Survey
from transduce.errors import UsageError

Say = Callable[[str], None]


def settings_of(recipe: Path) -> Settings:
    """Return the settings of a recipe, or those that a prepared corpus was made with.

    Raises:
        UsageError: if it is a folder but no corpus.
    """
    if not recipe.is_dir():
        return read_recipe(recipe)
    if not (recipe / MANIFEST).exists():
        raise UsageError(f"{recipe} is neither a recipe nor a prepared corpus")
    settings = read_toml(recipe / RECIPE)
    return merge(settings, {"data": {"corpus": os.path.abspath(recipe)}})


def absolute(user: Settings) -> Settings:
    """Return settings with the paths in them from the root, so that they hold anywhere."""
    tables = {
        name: with_paths(table, lambda path: resolved_path(path, Path.cwd()))
        for name in ("data", "fine_tuning")
        if isinstance(table := user.get(name), dict)
    }
    return merge(user, tables)


def prepare_corpus(user: Settings, out: Path, say: Say) -> Corpus:
    """Prepare the corpus that a user's settings describe, or find it there.

    What the user left open of [tokenizer] is chosen from the text.

    Raises:
        UsageError: if there are no training pairs, or settings are wrong.
        TransduceError: if pairs cannot be read.
    """
    start = None
    if user.get("fine_tuning"):
        from transduce.fine_tuning import start_of  # needs torch, which takes a while

        if start := start_of(user):
            user = start.over(user)
    sizes = {} if "preset" in user else named("presets", "tiny")  # until one is chosen
    asked = parse(merge(sizes, user), "the recipe")
    if not asked.data.train:
        raise UsageError("no train pairs: give --train FILE, or data.train in the recipe")

    def choose(survey: Survey) -> TokenizerConfig:
        return choices.resolved(choices.from_text(survey, user).settings, user).tokenizer

    given = start.given(asked) if start else None
    return prepare(asked.data, asked.cleaning, absolute(user), choose, out, say, given)
