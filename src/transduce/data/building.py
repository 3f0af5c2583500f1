"""From files of pairs to a corpus, step by step.

    read     one process reads the files from front to back and cuts them in chunks
    clean    each chunk is repaired, checked and counted by a worker process
    compare  duplicates and leaks are found over all chunks, by hashes
    learn    the tokenizers learn from a sample of what is left
    encode   each chunk becomes a shard of the corpus, again by workers
    finish   reports are written, and last of all the manifest

Each step leaves its result in files that appear in one go and does only what is not there yet.
What comes out is a function of the inputs and settings alone, byte for byte.
"""

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tomli_w

from transduce.config import (
    STDIN,
    CleaningConfig,
    DataConfig,
    Settings,
    Source,
    TokenizerConfig,
    is_url,
)
from transduce.data.chunks import (
    FLAGS,
    CleanJob,
    EncodeJob,
    LearnJob,
    appearing,
    clean_unless_done,
    cut,
    drop_flags,
    dropped_line,
    encode_unless_done,
    learn,
    write,
)
from transduce.data.cleaning import Findings, sentence
from transduce.data.comparison import Chunk, compare
from transduce.data.corpus import (
    DROPPED,
    FORMAT,
    MANIFEST,
    PAGE,
    RECIPE,
    REPORT,
    TOKENIZERS,
    load_tokenizers,
)
from transduce.data.files import fingerprint
from transduce.data.page import report_page
from transduce.data.progress import Counting
from transduce.data.readers import entries, paths_of, shown
from transduce.data.report import advice, part_report, piece_report
from transduce.data.statistics import Survey
from transduce.data.text import Pair
from transduce.data.tokenizer import TRAINING_BYTES, TRAINING_LINES, Tokenizer, check_symbols
from transduce.data.workers import Workers
from transduce.errors import TransduceError

Say = Callable[[str], None]
Choose = Callable[[Survey], TokenizerConfig]
Parts = dict[str, list[Source]]
"""Where the pairs of each part (train, valid, test) are."""


@dataclass(frozen=True)
class Given:
    """Tokenizers that a corpus is encoded with, in the place of new ones."""

    folder: Path
    """Where they are."""
    grow: bool | int = False
    """Whether they get new pieces, and how many at most (True: see `grow_tokenizer`)."""

    @property
    def made_of(self) -> dict[str, Any]:
        """All that decides what the corpus's tokenizers look like."""
        files = [file for file in TOKENIZERS if (self.folder / file).exists()]
        grow = str(self.grow)  # since True equals 1
        return {"grow": grow} | {file: fingerprint(str(self.folder / file)) for file in files}


class Build:
    """The steps of a preparation.

    Args:
        part: folder that becomes the corpus; `part/work` has what is on the way.
        data: the [data] table.
        cleaning: the [cleaning] table.
        inputs: where the pairs are, as reports name it.
        files: where they are really read from.
        symbols: pieces to reserve, besides the tags.
        workers: do what is done chunk by chunk.
        say: is told what happens.
        given: tokenizers that take the place of new ones.

    Raises:
        UsageError: if a symbol or tag can be no piece.
    """

    def __init__(
        self,
        part: Path,
        data: DataConfig,
        cleaning: CleaningConfig,
        inputs: Parts,
        files: Parts,
        symbols: Sequence[str],
        workers: Workers,
        say: Say,
        given: Given | None = None,
    ) -> None:
        self.part, self.work = part, part / "work"
        self.data, self.cleaning, self.inputs, self.files = data, cleaning, inputs, files
        tags = {source.tag for found in inputs.values() for source in found} - {""}
        self.symbols = check_symbols([*symbols, *sorted(tags)], data.normalization)
        self.workers, self.say, self.given = workers, say, given
        self.chunks: dict[str, list[str]] = {}
        self.counts: dict[str, list[dict[str, int]]] = {}

    def run(self, made_of: dict[str, Any], asked: Settings, choose: Choose) -> None:
        """Do all steps; at the end `part` is a whole corpus, but for `part/work`."""
        for name in self.inputs:
            self.read(name)
        comparison = self.compare()
        surveys = {name: self.survey(name) for name in self.inputs}
        tokenizer = choose(surveys["train"]).model_copy(update={"symbols": self.symbols})
        self.learn(tokenizer, surveys["train"])
        shards = self.encode(tokenizer)
        self.finish(made_of, asked, tokenizer, surveys, comparison, shards)

    # Results of earlier steps; only what is small is kept in memory.

    def json(self, name: str) -> Any:
        """Read a result of an earlier step."""
        return json.loads((self.work / name).read_text("utf-8"))

    def survey(self, name: str) -> Survey:
        """Return what a part's clean text looks like."""
        survey = Survey()
        for chunk in self.chunks[name]:
            survey.merge(Survey.from_json(self.json(f"{chunk}.found")["survey"]))
        return survey

    def findings(self, name: str, suffix: str = "found") -> Findings:
        """Return what the checks found in a part."""
        findings = Findings()
        for chunk in self.chunks[name]:
            findings.merge(Findings.from_json(self.json(f"{chunk}.{suffix}")["findings"]))
        return findings

    def file_of(self, name: str, source: int) -> str:
        """Return how a line's file is named in the report: not at all if there is only one."""
        paths = [paths_of(one)[0] for one in self.inputs[name]]
        if len(paths) == 1:
            return ""
        names = [os.path.basename(path) for path in paths]
        return names[source] if names.count(names[source]) == 1 else paths[source]

    def nothing_left(self, name: str, findings: Findings) -> TransduceError:
        """Say why no pair of a part can be used."""
        why = [sentence(row) for row in findings.to_json() if row["action"] in ("drop", "skip")]
        files = ", ".join(shown(source.path) for source in self.inputs[name])
        return TransduceError(f"no usable pair in {files}: {'; '.join(why) or 'the file is empty'}")

    # The steps.

    def read(self, name: str) -> None:
        """Read a part's files and have their chunks cleaned."""
        done = self.work / f"{name}.chunks.json"
        if not done.exists():
            sizes: list[int] = []
            chunks: list[str] = []
            with Counting(f"reading the {name} pairs", "pairs") as counting:
                jobs = self.cleaning_jobs(name, sizes)
                for chunk in self.workers.ordered(clean_unless_done, jobs):
                    counting.advance(sizes[len(chunks)])
                    chunks.append(chunk)
            write(done, json.dumps(chunks).encode())
        self.chunks[name] = self.json(done.name)
        self.counts[name] = [self.json(f"{chunk}.json") for chunk in self.chunks[name]]
        if not sum(count["clean"] for count in self.counts[name]):
            raise self.nothing_left(name, self.findings(name))

    def cleaning_jobs(self, name: str, sizes: list[int]) -> Iterator[CleanJob | str]:
        """Cut a part's files in chunks; yield the names of those that are clean already."""
        for number, source in enumerate(self.files[name]):
            for chunk in cut(entries(source)):
                title = f"{name}-{len(sizes):05}"
                sizes.append(len(chunk))
                if (self.work / f"{title}.json").exists():
                    yield title
                    continue
                languages = source.languages
                yield CleanJob(
                    self.work,
                    title,
                    chunk,
                    number,
                    self.file_of(name, number),
                    source.tag,
                    self.cleaning,
                    self.data.normalization,
                    (languages[0], languages[1]) if languages else None,
                    tuple(self.symbols),
                    name == "train",
                )

    def compare(self) -> dict[str, Any]:
        """Find duplicates among the training pairs and what they share with the other parts."""
        done = self.work / "comparison.json"
        if not done.exists():
            self.say("looking for duplicates and leaks")
            chunks = {name: self.comparable(name) for name in self.inputs}
            train = chunks.pop("train")
            with (
                appearing(self.work / "train.compared") as beside,
                open(beside, "w", encoding="utf-8", newline="\n") as dropped,
            ):

                def note(chunk: Chunk, reason: str, pair: Pair) -> None:
                    dropped.write(dropped_line(reason, chunk.file, pair))

                comparison = compare(train, chunks, self.cleaning, note)
            flags = io.BytesIO()
            np.save(flags, comparison.dropped)
            write(self.work / FLAGS, flags.getvalue())
            found = {
                "findings": comparison.findings.to_json(),
                "duplicates": comparison.duplicates,
                "leaks": comparison.leaks,
                "left": int((~comparison.dropped).sum()),
            }
            write(done, json.dumps(found, ensure_ascii=False).encode())
        result: dict[str, Any] = self.json(done.name)
        if not result["left"]:
            findings = self.findings("train")
            findings.merge(Findings.from_json(result["findings"]))
            raise self.nothing_left("train", findings)
        return result

    def comparable(self, name: str) -> list[Chunk]:
        """Return a part's chunks with the places of their pairs."""
        chunks, first = [], 0
        for chunk, count in zip(self.chunks[name], self.counts[name], strict=True):
            file = self.file_of(name, count["source"])
            chunks.append(Chunk(self.work / f"{chunk}.arrow", first, count["clean"], file))
            first += count["clean"]
        return chunks

    def learn(self, tokenizer: TokenizerConfig, survey: Survey) -> None:
        """Learn the tokenizers that are not there yet, or take those that are given."""
        given = self.given
        for side in (
            [("joint.spm", ("src", "tgt"), tokenizer, "joint vocabulary")]
            if tokenizer.joint
            else [
                ("source.spm", ("src",), tokenizer.source, "source vocabulary"),
                ("target.spm", ("tgt",), tokenizer.target, "target vocabulary"),
            ]
        ):
            file, columns, own, name = side
            kind = own.kind or tokenizer.kind
            if kind == "byte" or (self.work / file).exists():
                continue
            if given and given.grow is False:
                write(self.work / file, (given.folder / file).read_bytes())
                continue
            sides = [survey.source] * ("src" in columns) + [survey.target] * ("tgt" in columns)
            lines, size = sum(side.lines for side in sides), sum(side.bytes for side in sides)
            fraction = min(1.0, TRAINING_LINES / lines, TRAINING_BYTES / size)
            self.say(
                f"{'growing' if given else 'learning'} the {name} ({kind})"
                + (f" from {fraction:.1%} of the pairs" if fraction < 1 else "")
            )
            coverage = own.character_coverage
            job = LearnJob(
                self.work,
                file,
                tuple(self.chunks["train"]),
                columns,
                fraction,
                tokenizer,
                kind,
                own.vocabulary or tokenizer.vocabulary,
                tokenizer.character_coverage if coverage is None else coverage,
                self.data.normalization,
                name,
                (given.folder / file).read_bytes() if given else None,
                given.grow if given and given.grow is not True else None,
            )
            self.workers.alone(learn, job)

    def encode(self, tokenizer: TokenizerConfig) -> dict[str, list[dict[str, Any]]]:
        """Encode the training and validation pairs; return the shards of each."""
        shards: dict[str, list[dict[str, Any]]] = {}
        for name in [part for part in ("train", "valid") if part in self.inputs]:
            clean = [count["clean"] for count in self.counts[name]]
            with Counting(f"encoding the {name} pairs", "pairs", sum(clean)) as counting:
                jobs = self.encoding_jobs(name, tokenizer)
                done = self.workers.ordered(encode_unless_done, jobs)
                for count, _ in zip(clean, done, strict=True):
                    counting.advance(count)
            shards[name] = [self.json(f"{chunk}.shard.json") for chunk in self.chunks[name]]
        return shards

    def encoding_jobs(self, name: str, tokenizer: TokenizerConfig) -> Iterator[EncodeJob | str]:
        """Yield what is to be encoded, or the name of a chunk that is encoded already."""
        first = 0
        for chunk, count in zip(self.chunks[name], self.counts[name], strict=True):
            rows = count["clean"]
            if (self.work / f"{chunk}.shard.json").exists():
                yield chunk
            else:
                yield EncodeJob(
                    self.part,
                    chunk,
                    drop_flags(self.work, first, rows) if name == "train" else np.zeros(rows, bool),
                    tokenizer,
                    self.data.normalization,
                    self.data.max_length if name == "train" else None,
                    self.file_of(name, count["source"]),
                )
            first += rows

    def finish(
        self,
        made_of: dict[str, Any],
        asked: Settings,
        tokenizer: TokenizerConfig,
        surveys: dict[str, Survey],
        comparison: dict[str, Any],
        shards: dict[str, list[dict[str, Any]]],
    ) -> None:
        """Write the tokenizers, the report and, last, the manifest."""
        tokenizers = load_tokenizers(self.work, tokenizer, self.data.normalization)
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "made_of": made_of,
            "tokenizer": tokenizer.model_dump(exclude_none=True, exclude={"sampling"}),
            "source_vocabulary": len(tokenizers[0]),
            "target_vocabulary": len(tokenizers[1]),
        }
        parts: dict[str, Any] = {}
        for name in self.inputs:
            manifest[name], parts[name] = self.described(
                name, tokenizers, surveys[name], comparison, shards.get(name)
            )
        manifest["survey"] = surveys["train"].to_json()
        report = {
            "version": 1,
            "title": " and ".join(
                os.path.basename(path)
                for source in self.inputs["train"]
                for path in paths_of(source)
            ),
            "parts": parts,
            "leaks": comparison["leaks"],
            "vocabularies": {
                name: {
                    "kind": side.kind or tokenizer.kind,
                    "size": len(tokenizers[i]),
                    "joint": tokenizer.joint,
                }
                for i, (name, side) in enumerate(
                    [("source", tokenizer.source), ("target", tokenizer.target)]
                )
            },
            "examples": self.examples(tokenizers, shards["train"]),
            "advice": advice(parts, comparison["leaks"], self.cleaning),
        }
        for file in TOKENIZERS:
            if (self.work / file).exists():
                write(self.part / file, (self.work / file).read_bytes())
        write(self.part / RECIPE, tomli_w.dumps(_recipe(asked)).encode())
        write(self.part / REPORT, _pretty(report))
        write(self.part / PAGE, report_page(report).encode())
        self.gather_dropped()
        write(self.part / MANIFEST, _pretty(manifest))

    def described(
        self,
        name: str,
        tokenizers: tuple[Tokenizer, Tokenizer],
        survey: Survey,
        comparison: dict[str, Any],
        shards: list[dict[str, Any]] | None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what manifest and report say about a part; test pairs have no shards."""
        inputs, counts = self.inputs[name], self.counts[name]
        findings = self.findings(name)
        duplicates = {}
        if name == "train":
            findings.merge(Findings.from_json(comparison["findings"]))
            duplicates = comparison["duplicates"]
        lefts = [shard["rows"] for shard in shards] if shards else [c["clean"] for c in counts]
        left = sum(lefts)
        manifest: dict[str, Any] = {
            "pairs": left,
            "inputs": [
                {
                    "path": absolute_paths(source),
                    "format": source.format,
                    "weight": source.weight,
                }
                for source in inputs
            ],
        }
        tokens = None
        if shards:
            findings.merge(self.findings(name, "pieces"))
            if not left:
                raise self.nothing_left(name, findings)
            pieces = [f"{chunk}.pieces" for chunk in self.chunks[name]]
            tokens = piece_report(map(self.json, pieces), tokenizers)
            manifest |= {
                "source_tokens": tokens["source"]["tokens"] + left,
                "target_tokens": tokens["target"]["tokens"] + left,
                "unknown_tokens": tokens["source"]["unknown"] + tokens["target"]["unknown"],
                "longest_surplus": max(self.json(file)["longest_surplus"] for file in pieces),
                "shards": [
                    shard | {"source": count["source"]}
                    for shard, count in zip(shards, counts, strict=True)
                ],
            }
        manifest["dropped"] = {
            row["name"]: row["count"] for row in findings.to_json() if row["action"] == "drop"
        }
        chunks = [count | {"left": rows} for count, rows in zip(counts, lefts, strict=True)]
        return manifest, part_report(inputs, chunks, findings, survey, tokens, duplicates)

    def examples(
        self, tokenizers: tuple[Tokenizer, Tokenizer], shards: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the first prepared pairs, piece by piece."""
        file = next(shard["file"] for shard in shards if shard["rows"])
        rows = pa.ipc.open_file(str(self.part / file)).get_batch(0).slice(0, 5)
        return [
            {
                "line": row["line"],
                "src": row["src_text"],
                "tgt": row["tgt_text"],
                "src_pieces": tokenizers[0].pieces(row["src"]),
                "tgt_pieces": tokenizers[1].pieces(row["tgt"]),
                "src_ids": row["src"],
                "tgt_ids": row["tgt"],
            }
            for row in rows.to_pylist()
        ]

    def gather_dropped(self) -> None:
        """Write every pair that was left out to one table."""
        with appearing(self.part / DROPPED) as beside, open(beside, "wb") as table:
            table.write(b"part\treason\tfile\tline\tsource\ttarget\n")
            for name in self.inputs:
                found = [f"{chunk}.dropped" for chunk in self.chunks[name]]
                found += ["train.compared"] if name == "train" else []
                found += [f"{chunk}.long" for chunk in self.chunks[name]] if name == "train" else []
                for file in found:
                    with open(self.work / file, "rb") as lines:
                        table.writelines(name.encode() + b"\t" + line for line in lines)


def absolute_paths(source: Source) -> list[str]:
    """Return the paths of a source from the root, where they name something on disk."""
    return [
        path
        if path == STDIN or is_url(path) or source.format == "huggingface"
        else os.path.abspath(path)
        for path in paths_of(source)
    ]


def _pretty(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _recipe(asked: Settings) -> Settings:
    """Return what was asked for as TOML can hold it: without what says nothing of the corpus."""
    recipe: Settings = _without_open(asked)
    for key in ("corpus", "workers"):
        recipe.get("data", {}).pop(key, None)
    return recipe


def _without_open(settings: Any) -> Any:
    """Return settings without the keys that are open."""
    if isinstance(settings, dict):
        return {k: _without_open(value) for k, value in settings.items() if value is not None}
    return [_without_open(value) for value in settings] if isinstance(settings, list) else settings
