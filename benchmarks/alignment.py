"""Pairs of Tatoeba written as the English-French sentences are whose word alignments are known.

Those (the 447 of the shared task of 2003, from the proceedings of Canada's parliament) have spaces
around punctuation, whole words for contracted ones ("de le" for "du", "do not" for "don't"), small
letters at the beginning, and 16 words on average, where Tatoeba has six. So sentences are also put
one after the other, each in one place, until as many words are together as was drawn (1 to 40): no
position is new to the model that is to align them.

    transduce data split $TRANSDUCE_DATA/tatoeba/fra-eng.2019-04-08.zip/fra-eng/fra.txt \\
        --valid 1000 --test 1000 --out fra-eng
    python benchmarks/alignment.py fra-eng --out words

writes words/train.tsv and words/valid.tsv to train on, and words/gold.tsv, to which the links in
$TRANSDUCE_DATA/align/enfr.gold belong: English words first, counted from 1.
"""

import argparse
import os
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from transduce.data.files import read_lines

Pair = tuple[str, str]
LONGEST = 40
"""English words of what is put together."""

BOTH = [
    (r"[\u00a0\u202f\u2009]", " "),
    ("’", "'"),
    (r"(?<!\d)[.,](?!\d)|(?<=\d)[.,](?!\d)|[!?;:()\"«»$%…]", r" \g<0> "),
    (r"(?<=\w)-(?=\w)", " - "),
    (r"\b(Mr|Mrs|Ms|Dr|St|M|Mme|Mlle) \.", r"\1."),
]
ENGLISH = [
    (r"\b(can)'t\b", r"\1 not"),
    (r"\b(w)on't\b", r"\1ill not"),
    (r"n't\b", " not"),
    (r"\b(let)'s\b", r"\1 us"),
    (r"\b(it|that|what|he|she|there|where|who|how|here)'s\b", r"\1 is"),
    (r"'s\b", " 's"),
    (r"'m\b", " am"),
    (r"'re\b", " are"),
    (r"'ve\b", " have"),
    (r"'ll\b", " will"),
    (r"'d\b", " would"),
]
FRENCH = [
    (r"\b(jus|lors|puis|quel|quoi)qu'", r"\1que "),
    (r"\b([ldjncsmt]|qu)'", r"\1e "),
    (r"\b(aujourd)'", r"\1' "),
    (r"\bdu\b", "de le"),
    (r"\bdes\b", "de les"),
    (r"\bau\b", "à le"),
    (r"\baux\b", "à les"),
]


def spaced(text: str, rules: list[tuple[str, str]]) -> str:
    """Return a sentence with spaces between its words, which begins with a small letter."""
    text = text[:1].lower() + text[1:]
    for pattern, instead in [*BOTH, *rules]:
        text = re.sub(pattern, instead, text, flags=re.IGNORECASE)
    return " ".join(text.split())


def pairs_of(path: Path) -> list[Pair]:
    """Return the pairs of a TSV as they are to be."""
    split = (line.split("\t") for line in read_lines(path))
    return [(spaced(english, ENGLISH), spaced(french, FRENCH)) for english, french in split]


def together(pairs: list[Pair], draw: random.Random) -> Iterator[Pair]:
    """Put pairs drawn at random one after the other, until they are as long as was drawn."""
    src, tgt, most = "", "", draw.randint(1, LONGEST)
    for english, french in draw.sample(pairs, len(pairs)):
        if src and len(src.split()) + len(english.split()) > most:
            yield src, tgt
            src, tgt, most = "", "", draw.randint(1, LONGEST)
        src, tgt = f"{src} {english}".strip(), f"{tgt} {french}".strip()
    yield src, tgt


def gold_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs whose links are known."""
    for line in read_lines(path):
        english, _, french = line.partition("|||")
        yield english.strip(), french.strip()


def write(path: Path, pairs: Iterable[Pair]) -> None:
    """Write pairs as TSV."""
    rows = [f"{src}\t{tgt}\n" for src, tgt in pairs]
    path.write_text("".join(rows), encoding="utf-8")
    print(f"{path}: {len(rows):,} pairs")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("split", type=Path, help="what `transduce data split` has written")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    draw = random.Random(options.seed)
    for part in ("train", "valid"):
        pairs = pairs_of(options.split / f"{part}.tsv")
        write(options.out / f"{part}.tsv", together(pairs, draw))
    gold = Path(os.environ["TRANSDUCE_DATA"]) / "align" / "enfr.src-tgt"
    write(options.out / "gold.tsv", gold_pairs(gold))


if __name__ == "__main__":
    main()
