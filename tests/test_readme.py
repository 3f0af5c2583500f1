"""The README: its table, its links and its commands are true."""

import re
import shlex
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from transduce import cli
from transduce.config import parse, read_recipe, recipe_names

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(transduce(?:\.\w+){2,})`", TEXT)))


@pytest.mark.parametrize("name", NAMES)
def test_the_table_from_paper_to_code(name: str) -> None:
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: object = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return
    raise AssertionError(name)


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert len(links) > 5
    for link in links:
        assert (README.parent / link).exists(), link


def test_the_recipes_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    import tomllib

    monkeypatch.setenv("TRANSDUCE_DATA", "data")  # recipes of published conditions name it
    recipes = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert len(recipes) >= 2
    for recipe in recipes:
        parse(tomllib.loads(textwrap.dedent(recipe)), "README")
    for name in recipe_names():
        parse(read_recipe(Path(name)), name)


def test_the_commands_parse() -> None:
    """Every `transduce ...` line of the README is one that the command understands."""
    lines = re.findall(r"^(?:\$ )?(?:printf .*?\| )?(transduce .*)$", TEXT, re.MULTILINE)
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(re.split(r" [<>#]", line)[0], comments=True)[1:]
        _, bound, unused, _ = cli.app.parse_known_args(cli.with_standard_input(words))
        assert not unused, line
        assert bound.arguments or line.startswith("transduce compare"), line
