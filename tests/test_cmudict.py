"""The dictionary: stress and comments gone, variants joined, words on one side of the split."""

from transduce.data.cmudict import dictionary, parse, split


def test_parsing() -> None:
    lines = [
        "read R EH1 D",
        "read(2) R IY1 D # past",
        "d'artagnan D AA0 # x",
        "3d TH R",
        "a.b EY B",
        "",
    ]
    assert list(parse(lines)) == [("read", "R EH D"), ("read", "R IY D"), ("d'artagnan", "D AA")]


def test_the_dictionary_and_its_split() -> None:
    words = dictionary()
    assert len(words) > 120_000
    assert words["read"] == ["R EH D", "R IY D"]
    parts = split(words, 3000, 500, seed=1)
    sides = [{word for word, _ in parts[part]} for part in ("train", "valid", "test")]
    assert [len(side) for side in sides] == [len(words) - 3500, 500, 3000]
    assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
    assert split(words, 10, 10, seed=2)["test"] != split(words, 10, 10, seed=3)["test"]
