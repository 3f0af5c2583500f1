"""READMEs and books: their tables, links, recipes and commands are true."""

import re
import shlex
import textwrap
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from transduce import cli
from transduce.config import parse, read_recipe, recipe_names

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "README.zh.md", "docs/book.md", "docs/book.zh.md"]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(transduce(?:\.\w+){2,})`", TEXT)))
COMMAND = re.compile(r"^(?:\$ )?(?:printf .*?\| )?(transduce .*)$", re.MULTILINE)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


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


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", text_of(page))
    assert len(links) > 5
    for link in links:
        assert link.startswith("https://arxiv.org/") or (ROOT / page).parent.joinpath(link).exists()


@pytest.mark.parametrize("page", PAGES[:2])
def test_the_recipes_are_valid(page: str) -> None:
    recipes = re.findall(r"```toml\n(.*?)```", text_of(page), re.DOTALL)
    assert len(recipes) >= 2
    for recipe in recipes:
        parse(tomllib.loads(textwrap.dedent(recipe)), page)


def test_the_recipes_of_the_package_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSDUCE_DATA", "data")  # recipes of published conditions name it
    for name in recipe_names():
        parse(read_recipe(Path(name)), name)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_parse(page: str) -> None:
    """Every `transduce ...` line is one that the command understands."""
    lines = COMMAND.findall(text_of(page))
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(re.split(r" [<>#]", line)[0], comments=True)[1:]
        _, bound, unused, _ = cli.app.parse_known_args(cli.with_standard_input(words))
        assert not unused, line
        assert bound.arguments or line.startswith("transduce compare"), line
