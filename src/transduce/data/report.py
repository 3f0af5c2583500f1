"""The data report: what a corpus holds, what was left out and why, before anything is trained.

One dictionary (report.json) that the page and the printed summary are made from.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from transduce.config import CleaningConfig, Source
from transduce.data.cleaning import Findings, sentence
from transduce.data.readers import shown
from transduce.data.statistics import Survey, distribution
from transduce.data.tokenizer import Tokenizer

REPAIRS = ("entities", "markup", "encoding")


def part_report(
    inputs: Sequence[Source],
    chunks: Sequence[dict[str, Any]],
    findings: Findings,
    survey: Survey,
    tokens: dict[str, Any] | None,
    duplicates: dict[str, int],
) -> dict[str, Any]:
    """Return what the report says about one part of a corpus.

    Args:
        inputs: where its pairs come from.
        chunks: of each chunk the source's number, and how many pairs were read and are left.
        findings: of all checks.
        survey: of the text.
        tokens: of the pieces (`piece_report`), where the part was encoded.
        duplicates: of the comparison, where it was compared.
    """
    read, left = (sum(chunk[what] for chunk in chunks) for what in ("read", "left"))
    return {
        "inputs": [
            {
                "path": shown(source.path),
                "format": source.format,
                "read": sum(c["read"] for c in chunks if c["source"] == i),
                "kept": sum(c["left"] for c in chunks if c["source"] == i),
                "weight": source.weight,
                "tag": source.tag,
            }
            for i, source in enumerate(inputs)
        ],
        "read": read,
        "kept": left,
        "dropped": read - left,
        "checks": findings.to_json(),
        "source": survey.source.summary(),
        "target": survey.target.summary(),
        "ratios": survey.ratio_summary(),
        "duplicates": duplicates,
        "tokens": tokens,
    }


def piece_report(
    chunks: Iterable[dict[str, Any]], tokenizers: tuple[Tokenizer, Tokenizer]
) -> dict[str, Any]:
    """Add up how the text of the chunks was cut into pieces."""
    sides = dict(zip(("source", "target"), tokenizers, strict=True))
    pieces = {side: np.zeros(len(tokenizer), np.int64) for side, tokenizer in sides.items()}
    lengths: dict[str, Counter[int]] = {side: Counter() for side in sides}
    words: Counter[str] = Counter()
    for chunk in chunks:
        for side in sides:
            pieces[side] += np.array(chunk[side]["pieces"], np.int64)
            lengths[side].update(dict(chunk[side]["lengths"]))
            words[side] += chunk[side]["words"]
    result = {}
    for side, tokenizer in sides.items():
        names = tokenizer.pieces(range(len(tokenizer)))
        spelled = [i for i, name in enumerate(names) if re.fullmatch("<0x[0-9A-F]{2}>", name)]
        total = int(pieces[side].sum())
        result[side] = {
            "tokens": total,
            "vocabulary": len(tokenizer),
            "used": int((pieces[side] > 0).sum()),
            "unknown": int(pieces[side][1]),
            "byte_pieces": int(pieces[side][spelled].sum()),
            "pieces_per_word": round(total / max(1, words[side]), 3),
            "lengths": distribution(lengths[side]),
        }
    return result


def advice(
    parts: dict[str, Any], leaks: Sequence[dict[str, Any]], cleaning: CleaningConfig
) -> list[str]:
    """Say what a person may want to do about what was found, and is not done by `cleaning`."""
    lines = []
    rows = parts["train"]["checks"]
    for leak in leaks:
        if leak["source"]["normalised"] and not leaks_dropped(parts):
            lines.append(
                f"{leak['source']['normalised']:,} of {leak['pairs']:,} {leak['part']} sources are "
                "also training sources, so scores on them flatter the model: divide the pairs with "
                "`transduce data split`, or leave these training pairs out with [cleaning] leaks = "
                '"drop"'
            )
    known = set(CleaningConfig.model_fields) - {"leaks"}
    for row in rows:
        if row["action"] == "report" and row["name"] in known:
            one = row["count"] == 1
            action = "fix" if row["name"] in REPAIRS else "drop"
            if getattr(cleaning, row["name"]) == "fix":  # these could not be repaired
                action = "drop"
            lines.append(
                f"{row['count']:,} training {'pair' if one else 'pairs'}: {row['name']}. They are "
                f"kept; to {'repair' if action == 'fix' else 'leave out'} such pairs: [cleaning] "
                f'{row["name"]} = "{action}"'
            )
    for side in ("source", "target"):
        tokens = parts["train"]["tokens"]
        if tokens and tokens[side]["unknown"] > 0.001 * tokens[side]["tokens"]:
            lines.append(
                f"{tokens[side]['unknown'] / tokens[side]['tokens']:.2%} of the {side} pieces are "
                "unknown: a larger tokenizer.vocabulary, tokenizer.character_coverage = 1.0 or "
                "tokenizer.byte_fallback = true makes fewer"
            )
    return lines


def leaks_dropped(parts: dict[str, Any]) -> bool:
    """Say whether training pairs were left out since other parts have their sources."""
    rows = parts["train"]["checks"]
    return any((row["name"], row["action"]) == ("leaks", "drop") for row in rows)


def printed(report: dict[str, Any]) -> list[str]:
    """Return the report as lines for a terminal."""
    lines = []
    for name, part in report["parts"].items():
        lines.append(
            f"{name}: {part['read']:,} pairs read, {part['kept']:,} kept, "
            f"{part['dropped']:,} left out"
        )
        for source in part["inputs"] if len(part["inputs"]) > 1 else ():
            lines.append(
                f"  {source['path']} ({source['format']}): {source['read']:,} read, "
                f"{source['kept']:,} kept"
            )
        lines += [f"  {sentence(row)}" for row in part["checks"]]
        for side in ("source", "target"):
            text, tokens = part[side], (part["tokens"] or {}).get(side)
            line = (
                f"  {side}: {text['characters']:,} characters ({text['distinct_characters']:,} "
                f"distinct), {text['words']:,} words, {text['lengths']['median']} characters a "
                f"line (95 %: at most {text['lengths']['p95']})"
            )
            if tokens:
                rate = tokens["unknown"] / max(1, tokens["tokens"])
                line += (
                    f"; {tokens['tokens']:,} pieces, {tokens['pieces_per_word']:.2f} a word, "
                    f"{tokens['used']:,} of {tokens['vocabulary']:,} used, {rate:.2%} unknown"
                )
            lines.append(line)
        again = part["duplicates"]
        if again:
            lines.append(
                f"  repeated: {again['pairs']:,} pairs exactly, {again['near_pairs']:,} but for "
                f"case and spaces, {again['sources']:,} sources, {again['targets']:,} targets"
            )
    before = ", before they were left out there" if leaks_dropped(report["parts"]) else ""
    for leak in report["leaks"]:
        lines.append(
            f"of {leak['pairs']:,} {leak['part']} pairs also in training{before} (exact / "
            "normalised): "
            + ", ".join(
                f"{kind} {leak[kind]['exact']:,} / {leak[kind]['normalised']:,}"
                for kind in ("source", "target", "pair")
            )
        )
    return lines + [f"advice: {line}" for line in report["advice"]]
