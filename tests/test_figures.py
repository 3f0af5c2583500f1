"""The figures of the book are drawn from any model's trace, the same each time."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from tests.conftest import letters_recipe
from transduce.experiment import train

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(("norm_place", "times"), [("post", 2), ("pre", 1)])
def test_all_of_them(
    norm_place: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    from figures import FIGURES, make

    recipe = letters_recipe(tmp_path, steps=2, every=2)
    recipe["model"]["norm_place"] = norm_place
    train(recipe, tmp_path / "run")
    made = [make(tmp_path / "run", "cab", tmp_path / str(i)) for i in range(times)]
    assert [path.stem for path in made[0]] == list(FIGURES)
    for same in zip(*made, strict=True):
        contents = {path.read_bytes() for path in same}
        assert len(contents) == 1, same[0].name
        root = ET.fromstring(contents.pop())
        assert root.tag.endswith("svg") and len(list(root.iter())) > 20


def test_the_files_in_the_repository_are_small_and_ask_for_nothing() -> None:
    texts = [path.read_text("utf-8") for path in (DOCS / "figures").iterdir()]
    assert 0 < sum(map(len, texts)) < 1_500_000
    for text in texts:
        assert "<script" not in text
        links = set(re.findall(r'href="([^"]+)', text))
        assert all(link.startswith(("#", "data:")) for link in links)
