"""Preparation: the same bytes whatever happens on the way, and nothing lost or left behind."""

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.test_workers import children, running
from transduce.config import read_toml
from transduce.data import building, chunks, comparison, preparation
from transduce.data import corpus as corpus_module
from transduce.data.corpus import Corpus
from transduce.data.progress import Counting
from transduce.data.report import printed
from transduce.errors import TransduceError, UsageError
from transduce.preparing import prepare_corpus

Settings = dict[str, Any]
WORDS = ["der", "die", "das", "ein", "Haus", "Hund", "Katze", "läuft", "schläft", "grün", "12 %"]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 20)


def pairs(count: int, seed: int = 1) -> str:
    """Return lines with everything that a report has something to say about."""
    draw = random.Random(seed)
    lines = []
    for i in range(count):
        src = " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))
        tgt = " ".join(draw.choices(WORDS, k=draw.randint(1, 9))).upper()
        lines.append(
            f"{src}\t{tgt}" if i % 10 else ("\tleer", "a\ta", "&amp; <b>\t12")[i // 10 % 3]
        )
    return "\n".join(lines) + "\n"


@pytest.fixture
def given(tmp_path: Path) -> Settings:
    """Settings with three parts, several origins and all that can be dropped."""
    for name, count, seed in (("a", 90, 1), ("b", 47, 2), ("v", 30, 3), ("t", 10, 4)):
        (tmp_path / f"{name}.tsv").write_text(pairs(count, seed))
    return {
        "data": {
            "train": [
                {"path": str(tmp_path / "a.tsv"), "tag": "<a>"},
                {"path": str(tmp_path / "b.tsv"), "weight": 2.0},
            ],
            "valid": str(tmp_path / "v.tsv"),
            "test": str(tmp_path / "t.tsv"),
            "workers": 1,
            "max_length": 40,
        },
        "cleaning": {"duplicates": "drop", "entities": "fix"},
        "tokenizer": {"kind": "bpe", "vocabulary": 400, "joint": False},
    }


def with_data(given: Settings, **data: Any) -> Settings:
    return given | {"data": given["data"] | data}


def contents(folder: Path) -> dict[str, bytes]:
    assert all(path.is_file() for path in folder.iterdir())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def beside(out: Path) -> set[str]:
    """Return what a preparation has left beside its corpus."""
    return {path.name for path in out.parent.iterdir() if path.name.startswith(f".{out.name}")}


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def prepared(settings: Settings, out: Path) -> Log:
    log = Log()
    assert prepare_corpus(settings, out, log).folder == out
    return log


# --- the same bytes ------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_never_change_the_result(given: Settings, tmp_path: Path, workers: int) -> None:
    """Nor does the folder; and there are many chunks."""
    prepared(given, tmp_path / "one")
    prepared(with_data(given, workers=workers), tmp_path / "some" / "where" / "else")
    one, other = contents(tmp_path / "one"), contents(tmp_path / "some" / "where" / "else")
    assert one == other
    assert sum(name.startswith("train") for name in one) == 8  # 5 of a.tsv, 3 of b.tsv
    assert set(one) >= {"manifest.json", "recipe.toml", "report.json", "report.html",
                        "dropped.tsv", "source.spm", "target.spm", "valid-00001.arrow"}  # fmt: skip
    assert not beside(tmp_path / "one") and not beside(tmp_path / "some" / "where" / "else")


def test_done_twice(given: Settings, tmp_path: Path) -> None:
    prepared(given, tmp_path / "corpus")
    before = contents(tmp_path / "corpus")
    shutil.rmtree(tmp_path / "corpus")
    prepared(given, tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == before


def test_chunks_never_change_the_pairs(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(given, tmp_path / "many")
    monkeypatch.setattr(chunks, "CHUNK", 100_000)
    prepared(given, tmp_path / "one")
    many, one = Corpus(tmp_path / "many"), Corpus(tmp_path / "one")
    for ours, theirs in ((many.train, one.train), (many.valid, one.valid)):
        assert len(ours) == len(theirs) > 20
        for i in range(len(ours)):
            assert ours.text(i) == theirs.text(i)
            assert [ids.tolist() for ids in ours[i]] == [ids.tolist() for ids in theirs[i]]
        assert ours.origins == theirs.origins
    assert many.report() == one.report()
    assert sorted((tmp_path / "many" / "dropped.tsv").read_text().split("\n")) == sorted(
        (tmp_path / "one" / "dropped.tsv").read_text().split("\n")
    )


def test_characters_end_a_chunk_too(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHARACTERS", 200)
    prepared(given, tmp_path / "corpus")
    shards = Corpus(tmp_path / "corpus").manifest["train"]["shards"]
    assert len(shards) > 20 and all(shard["rows"] <= 20 for shard in shards)


def test_the_counts_add_up(given: Settings, tmp_path: Path) -> None:
    """What was read is kept or dropped, and what was dropped stands in dropped.tsv."""
    settings = given | {"cleaning": {name: "drop" for name in (
        "ratio", "identical", "symbols", "duplicates", "near_duplicates", "leaks", "markup",
        "entities",
    )}}  # fmt: skip
    prepared(settings, tmp_path / "corpus")
    corpus = Corpus(tmp_path / "corpus")
    table = (tmp_path / "corpus" / "dropped.tsv").read_text().split("\n")[1:-1]
    report = corpus.report()
    for name, count in (("train", 137), ("valid", 30), ("test", 10)):
        part = report["parts"][name]
        rows = [line.split("\t") for line in table if line.startswith(f"{name}\t")]
        assert all(len(row) == 6 for row in rows)
        assert part["read"] == count == part["kept"] + len(rows)
        by_reason = {row["name"]: row["count"] for row in part["checks"] if row["action"] == "drop"}
        assert by_reason == {
            reason: sum(row[1] == reason for row in rows) for reason in {row[1] for row in rows}
        }
        assert corpus.manifest[name]["dropped"] == by_reason
        for row in part["checks"]:
            if row["action"] == "drop":
                files = [f"{one[2]}:{one[3]}" if one[2] else one[3] for one in rows
                         if one[1] == row["name"]]  # fmt: skip
                assert row["lines"] == files
    assert len(report["parts"]["train"]["checks"]) >= 4
    assert sum(one["kept"] for one in report["parts"]["train"]["inputs"]) == len(corpus.train)


def test_the_recipe_is_what_was_asked_for(given: Settings, tmp_path: Path) -> None:
    """Without what says nothing about the corpus; it makes the same corpus again."""
    settings = with_data(given, corpus=str(tmp_path / "corpus"), languages=None)
    settings["training"] = {"steps": 7}
    prepared(settings, tmp_path / "corpus")
    recipe = read_toml(tmp_path / "corpus" / "recipe.toml")
    data = {k: v for k, v in given["data"].items() if k != "workers"}
    assert recipe == given | {"data": data, "training": {"steps": 7}}
    prepared(recipe, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "corpus")


# --- killed --------------------------------------------------------------------------------------

SCRIPT = """
import json, os, random, shutil, signal, sys
from pathlib import Path
from transduce.data import building, chunks
from transduce.preparing import prepare_corpus
chunks.CHUNK = 40

def main(settings, out):
    prepare_corpus(settings, out, lambda line: print(line, flush=True))

def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)

def deadly(count):
    # End the process after its last but `count`th file operation; in the midst of a removal.
    left = [count]
    def wrap(module, name):
        real = getattr(module, name)
        def operation(*args, **kwargs):
            if name == "rmtree" and not Path(args[0]).is_dir():
                return real(*args, **kwargs)
            left[0] -= 1
            if name == "rmtree" and left[0] == 0:
                entries = sorted(path for path in Path(args[0]).iterdir() if path.is_file())
                for entry in entries[: len(entries) // 2]:
                    entry.unlink()
                die()
            result = real(*args, **kwargs)
            if left[0] == 0:
                die()
            return result
        setattr(module, name, operation)
    for module, name in ((os, "replace"), (os, "rename"), (shutil, "rmtree")):
        wrap(module, name)

def child(settings, out, before=lambda: None):
    # Return whether a process of its own came to its end.
    pid = os.fork()
    if pid == 0:
        try:
            before()
            main(settings, out)
        except BaseException as error:
            print("FAILED", repr(error), flush=True)
            os._exit(3)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status and not os.WIFSIGNALED(status):
        sys.exit("a run failed")
    return status == 0

def again_and_again(settings, out, seed):
    draw, runs = random.Random(seed), 1
    while not child(settings, out, lambda: deadly(draw.randint(1, 10))):
        draw.random()
        runs += 1
    print("RUNS", runs)

def at_each_end(settings, out, expected):
    # From the moment when only reports, manifest and renaming are left.
    part, old = out.with_name(f".{out.name}.part"), out.with_name(f".{out.name}.old")
    saved, older = out.with_name("saved"), out.with_name("older")
    assert not child(settings, out, lambda: setattr(building.Build, "finish", die))
    part.rename(saved)
    out.rename(older)
    expected = {path.name: path.read_bytes() for path in expected.iterdir()}
    for count in range(1, 100):
        for folder in (part, old, out):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(saved, part)
        shutil.copytree(older, out)
        ended = child(settings, out, lambda: deadly(count))
        assert child(settings, out)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == expected
        assert not part.exists() and not old.exists()
        if ended:
            break
    print("RUNS", count)

if __name__ == "__main__":
    settings, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    match sys.argv[3:]:
        case ["each", expected]:
            at_each_end(settings, out, Path(expected))
        case [seed]:
            again_and_again(settings, out, int(seed))
        case _:
            main(settings, out)
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., list[str]]:
    def command(settings: Settings, out: Path, *arguments: str) -> list[str]:
        path = tmp_path / "script.py"
        path.write_text(SCRIPT)
        return [sys.executable, str(path), json.dumps(settings), str(out), *arguments]

    return command


def make_old(settings: Settings, out: Path) -> None:
    """Put an older corpus, of other settings, in the place of a newer one."""
    prepared(settings | {"cleaning": {}}, out)


def runs_of(command: list[str]) -> int:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.rpartition("RUNS")[2])


@pytest.mark.parametrize("older", [False, True])
def test_killed_again_and_again(
    given: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[..., list[str]],
    older: bool,
) -> None:
    """Each run is killed after a few file operations, until all is done."""
    monkeypatch.setattr(chunks, "CHUNK", 40)
    out = tmp_path / "corpus"
    if older:
        make_old(given, out)
    assert runs_of(script(given, out, str(int(older)))) > 10
    prepared(given, tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")
    assert not beside(out)


def test_killed_at_each_step_of_the_end(
    given: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[..., list[str]],
) -> None:
    """Reports, manifest, removals, renames; the next run makes it whole."""
    monkeypatch.setattr(chunks, "CHUNK", 40)
    make_old(given, tmp_path / "corpus")
    prepared(given, tmp_path / "undisturbed")
    steps = runs_of(script(given, tmp_path / "corpus", "each", str(tmp_path / "undisturbed")))
    assert steps == 12  # 2 tokenizers, 5 files, work, 2 renames, the older one, and none


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_killed_at_any_moment(
    tmp_path: Path,
    given: Settings,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[..., list[str]],
) -> None:
    """With real workers, none of which may stay behind; and gone on with at once."""
    monkeypatch.setattr(chunks, "CHUNK", 40)
    for name, seed in (("a", 1), ("b", 2)):
        (tmp_path / f"{name}.tsv").write_text(pairs(1500, seed))
    settings = with_data(given, workers=2)
    out = tmp_path / "corpus"
    prepared(with_data(settings, workers=1), tmp_path / "undisturbed")
    draw = random.Random(5)
    started: set[int] = set()
    kills = 0
    for attempt in range(12):
        process = subprocess.Popen(
            script(settings, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        wait = draw.uniform(0.4, 1.4) if attempt < 8 else 60
        deadline = time.monotonic() + wait
        while process.poll() is None and time.monotonic() < deadline:
            started |= children(process.pid)
            time.sleep(0.02)
        if process.poll() is None:
            process.kill()
            kills += 1
        _, errors = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
        # A worker whose parent dies while it is being started says so, in the interpreter's name.
        assert "/transduce/" not in errors
        if out.exists():  # killed between the last rename and its own end: then it is whole
            assert contents(out) == contents(tmp_path / "undisturbed")
    else:
        pytest.fail("never finished")
    assert kills
    assert len(started) >= 2
    deadline = time.monotonic() + 10
    while any(running(pid) for pid in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(running(pid) for pid in started)
    assert contents(out) == contents(tmp_path / "undisturbed")
    assert not beside(out)


def whole_part(given: Settings, out: Path) -> Path:
    """Leave things as they are between writing the manifest and renaming."""
    prepared(given, out)
    part = out.with_name(f".{out.name}.part")
    out.rename(part)
    (part / "work").mkdir()
    (part / "work" / "plan.json").write_text("{}")
    (part / "report.json.tmp-77").write_text("cut sh")
    return part


def test_killed_before_renaming(given: Settings, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    whole_part(given, out)
    before = contents_of_own_files(tmp_path / ".corpus.part")
    log = prepared(given, out)
    assert log.lines == [f"{out}: files and settings are as they were; using it"]
    assert contents(out) == before
    assert not beside(out)


def contents_of_own_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()
            if path.is_file() and "tmp" not in path.name}  # fmt: skip


def test_killed_before_renaming_over_an_older_corpus(given: Settings, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    whole_part(given, out)
    make_old(given, tmp_path / "older")
    (tmp_path / "older").rename(out)
    log = prepared(given, out)
    assert log.lines == [f"{out}: files and settings are as they were; using it"]
    assert not beside(out)


@pytest.mark.parametrize("stale", [False, True])
def test_killed_between_the_two_renames(given: Settings, tmp_path: Path, stale: bool) -> None:
    out = tmp_path / "corpus"
    whole_part(given, out)
    make_old(given, tmp_path / "older")
    (tmp_path / "older").rename(tmp_path / ".corpus.old")
    settings = with_data(given, max_length=30) if stale else given
    log = prepared(settings, out)
    assert ("data.max_length changed; preparing it anew" in log.text) == stale
    assert not beside(out)
    prepared(settings, tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_killed_after_both_renames(given: Settings, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    shutil.copytree(out, tmp_path / ".corpus.old")
    prepared(given, out)
    assert not beside(out)


def test_an_older_corpus_alone_comes_back(given: Settings, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    before = times(out)
    out.rename(tmp_path / ".corpus.old")
    prepared(given, out)
    assert times(out) == before
    assert not beside(out)


def interrupted(given: Settings, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a preparation when all is cleaned."""
    with monkeypatch.context() as patch:
        patch.setattr(building, "compare", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare_corpus(given, out, lambda line: None)
    assert not out.exists() and beside(out) == {f".{out.name}.part"}


def test_going_on_cleans_nothing_again(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(given, tmp_path / "corpus", monkeypatch)
    (tmp_path / ".corpus.part" / "work" / "train-00001.arrow.tmp-5").write_text("cut sh")
    (tmp_path / ".corpus.part" / "train-00001.arrow.tmp-5").write_text("cut sh")
    monkeypatch.setattr(chunks, "clean", lambda job: pytest.fail("cleaned again"))
    log = prepared(given, tmp_path / "corpus")
    assert log.lines[0] == "going on with the preparation that was interrupted"
    monkeypatch.undo()
    monkeypatch.setattr(chunks, "CHUNK", 20)
    prepared(given, tmp_path / "undisturbed")
    assert contents(tmp_path / "corpus") == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize("damage", ["settings", "content", "a plan cut short"])
def test_an_interrupted_preparation_of_something_else(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    interrupted(given, tmp_path / "corpus", monkeypatch)
    if damage == "settings":
        given = with_data(given, normalization="NFKC")
    elif damage == "content":
        (tmp_path / "v.tsv").write_text("other\tpairs\n")
    else:
        plan = tmp_path / ".corpus.part" / "work" / "plan.json"
        plan.write_bytes(plan.read_bytes()[:50])
    log = prepared(given, tmp_path / "corpus")
    assert log.lines[0] == "an interrupted preparation of other files or settings is removed"
    prepared(given, tmp_path / "undisturbed")
    assert contents(tmp_path / "corpus") == contents(tmp_path / "undisturbed")
    assert not beside(tmp_path / "corpus")


# --- used again ----------------------------------------------------------------------------------


def test_unchanged(given: Settings, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    before = times(out)
    log = prepared(with_data(given, workers=2, temperature=2.0) | {"training": {"steps": 5}}, out)
    assert log.lines == [f"{out}: files and settings are as they were; using it"]
    assert times(out) == before
    assert not beside(out)


def test_sampling_is_no_matter_of_the_corpus(given: Settings, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepared(given | {"tokenizer": given["tokenizer"] | {"sampling": 0.1}}, out)
    assert "sampling" not in Corpus(out).manifest["tokenizer"]
    log = prepared(given, out)
    assert "using it" in log.text


def changed_content(given: Settings, folder: Path) -> Settings:
    (folder / "v.tsv").write_text("other\tpairs\n")
    return given


CHANGES: dict[str, Callable[[Settings, Path], Settings]] = {
    "the valid pairs changed": changed_content,
    "the train pairs, the test pairs changed": lambda given, folder: with_data(
        given, train=given["data"]["train"][:1], test=""
    ),
    "the train pairs changed": lambda given, folder: with_data(
        given, train=[given["data"]["train"][0] | {"tag": "<b>"}, given["data"]["train"][1]]
    ),
    "data.max_length changed": lambda given, folder: with_data(given, max_length=39),
    "data.normalization changed": lambda given, folder: with_data(given, normalization="NFKC"),
    "cleaning.duplicates, cleaning.ratio changed": lambda given, folder: (
        given | {"cleaning": {"entities": "fix", "ratio": "drop"}}
    ),
    "tokenizer.kind changed": lambda given, folder: (
        given | {"tokenizer": given["tokenizer"] | {"kind": "unigram"}}
    ),
    "tokenizer.vocabulary changed": lambda given, folder: (
        given | {"tokenizer": {"kind": "bpe", "joint": False}}
    ),
}


@pytest.mark.parametrize("message", CHANGES)
def test_what_changed_is_said(given: Settings, tmp_path: Path, message: str) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    settings = CHANGES[message](given, tmp_path)
    if message == "the train pairs, the test pairs changed":
        del settings["data"]["test"]
    log = prepared(settings, out)
    assert log.lines[0] == f"{out}: {message}; preparing it anew"
    prepared(settings, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh")
    assert not beside(out)


def test_another_version(given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    monkeypatch.setattr(preparation, "__version__", "99.0")
    log = prepared(given, out)
    assert log.lines[0] == f"{out}: the version of transduce changed; preparing it anew"
    assert Corpus(out).manifest["made_of"]["transduce"] == "99.0"


def test_another_format(given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    for module in (preparation, building, corpus_module):
        monkeypatch.setattr(module, "FORMAT", 99)
    log = prepared(given, out)
    assert log.lines[0].endswith("it has format 2, expected 99; preparing it anew")
    assert "using it" in prepared(given, out).text


def test_only_the_path_changed(given: Settings, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    before = times(out)
    (tmp_path / "v.tsv").rename(tmp_path / "elsewhere.tsv")
    log = prepared(with_data(given, valid=str(tmp_path / "elsewhere.tsv")), out)
    assert log.lines == [f"{out}: files and settings are as they were; using it"]
    assert times(out) == before


def delete_inputs(folder: Path) -> None:
    for name in "abvt":
        (folder / f"{name}.tsv").unlink()


def test_inputs_that_are_gone(given: Settings, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    before = times(out)
    delete_inputs(tmp_path)
    log = prepared(given, out)
    assert log.lines == [f"{out}: used as it is; the files it was made from are not here"]
    assert times(out) == before
    assert prepared(read_toml(out / "recipe.toml"), out).lines == log.lines


def test_inputs_that_are_gone_were_relative(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe of the corpus has them from the root; that names the same files."""
    monkeypatch.chdir(tmp_path)
    settings = with_data(given, train="a.tsv", valid="v.tsv")
    del settings["data"]["test"]
    prepared(settings, tmp_path / "corpus")
    delete_inputs(tmp_path)
    monkeypatch.chdir("/")
    recipe = read_toml(tmp_path / "corpus" / "recipe.toml")
    assert "used as it is" in prepared(recipe, tmp_path / "corpus").text


def test_inputs_that_are_gone_and_other_settings(given: Settings, tmp_path: Path) -> None:
    """Nothing else than what was asked for is used in silence."""
    out = tmp_path / "corpus"
    prepared(given, out)
    before = times(out)
    delete_inputs(tmp_path)
    with pytest.raises(TransduceError, match=r"data.max_length changed, but the files .* not here"):
        prepared(with_data(given, max_length=39), out)
    assert times(out) == before


def test_inputs_that_are_gone_and_another_version(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(given, tmp_path / "corpus")
    delete_inputs(tmp_path)
    monkeypatch.setattr(preparation, "__version__", "99.0")
    assert "used as it is" in prepared(given, tmp_path / "corpus").text


def test_some_inputs_are_gone(given: Settings, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    before = times(out)
    (tmp_path / "b.tsv").unlink()
    with pytest.raises(TransduceError, match=r"cannot read .*b.tsv"):
        prepared(given, out)
    assert times(out) == before
    assert not beside(out)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train-00003.arrow", "train-00003.arrow has"),
        ("valid-00000.arrow", "valid-00000.arrow has"),
        ("source.spm", "source.spm"),
        ("report.json", "report.json"),
        ("manifest.json", "not a prepared corpus"),
    ],
)
@pytest.mark.parametrize("size", [0, 100])
def test_a_damaged_corpus_is_made_anew(
    given: Settings, tmp_path: Path, name: str, said: str, size: int
) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    before = contents(out)
    (out / name).write_bytes(before[name][:size])
    log = prepared(given, out)
    assert said in log.lines[0] and log.lines[0].endswith("preparing it anew")
    assert contents(out) == before
    assert not beside(out)


@pytest.mark.parametrize("name", ["train-00003.arrow", "target.spm", "report.json"])
def test_a_corpus_that_lacks_a_file_is_made_anew(
    given: Settings, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    before = contents(out)
    (out / name).unlink()
    log = prepared(given, out)
    assert name in log.lines[0] and log.lines[0].endswith("preparing it anew")
    assert contents(out) == before


@pytest.mark.parametrize("made_of", [None, [], {}, {"inputs": 3}, {"inputs": {"train": [3]}}])
def test_a_manifest_that_says_nothing_of_its_origin(
    given: Settings, tmp_path: Path, made_of: object
) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    before = contents(out)
    manifest = json.loads(before["manifest.json"])
    (out / "manifest.json").write_text(json.dumps(manifest | {"made_of": made_of}))
    assert "preparing it anew" in prepared(given, out).lines[0]
    assert contents(out) == before


def test_members_of_one_archive_are_told_apart(given: Settings, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("one.tsv", "a\tb\n")
        archive.writestr("two.tsv", "c\td\n")

    def texts(member: str) -> tuple[str, str]:
        settings = with_data(given, valid=str(tmp_path / "all.zip" / member))
        prepared(settings, tmp_path / "corpus")
        return Corpus(tmp_path / "corpus").valid.text(0)

    assert texts("one.tsv") == ("a", "b")
    assert texts("two.tsv") == ("c", "d")
    (tmp_path / "all.zip").unlink()
    with pytest.raises(TransduceError, match=r"cannot read .*all.zip"):
        texts("two.tsv")  # the other files are still there


# --- the place -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json", ".hidden", "train-00000.arrow"])
def test_a_folder_of_something_else(given: Settings, tmp_path: Path, name: str) -> None:
    out = tmp_path / "corpus"
    out.mkdir()
    (out / name).write_text("{}")
    with pytest.raises(UsageError, match="holds something that is no prepared corpus"):
        prepared(given, out)
    assert contents(out) == {name: b"{}"}
    assert not beside(out)


def test_a_manifest_of_something_else(given: Settings, tmp_path: Path) -> None:
    """Other programs have files of that name."""
    out = tmp_path / "corpus"
    out.mkdir()
    (out / "manifest.json").write_text('{"name": "extension", "manifest_version": 3}')
    (out / "background.js").write_text("1;")
    before = contents(out)
    with pytest.raises(UsageError, match=r"holds background.js, which is not part of a corpus"):
        prepared(given, out)
    assert contents(out) == before
    assert not beside(out)


def test_other_files_in_a_corpus_are_not_lost(given: Settings, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    (out / "notes.txt").write_text("mine")
    assert "using it" in prepared(given, out).text
    with pytest.raises(UsageError, match=r"holds notes.txt, which .* would be lost: move it"):
        prepared(with_data(given, max_length=20), out)
    assert (out / "notes.txt").read_text() == "mine"
    assert "using it" in prepared(given, out).text


def test_other_files_that_came_while_it_was_made(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)
    settings = with_data(given, max_length=20)
    finish = building.Build.finish

    def slow(*args: Any) -> None:
        (out / "notes.txt").write_text("mine")
        finish(*args)

    with monkeypatch.context() as patch:
        patch.setattr(building.Build, "finish", slow)
        with pytest.raises(UsageError, match=r"holds notes.txt"):
            prepared(settings, out)
    (out / "notes.txt").rename(tmp_path / "notes.txt")
    assert "using it" in prepared(settings, out).text  # nothing was done in vain
    assert Corpus(out).manifest["made_of"]["data"]["max_length"] == 20
    assert not beside(out)


def test_a_file_and_the_root_are_no_places(given: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", Path("/")):
        with pytest.raises(UsageError, match=r"no place for a corpus|no prepared corpus"):
            prepared(given, out)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder(given: Settings, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    prepared(given, tmp_path / "corpus")
    assert len(Corpus(tmp_path / "corpus").train) > 20
    assert not beside(tmp_path / "corpus")


def test_the_current_folder(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be used, but a person in it would not see that another one is at its place."""
    (tmp_path / "corpus").mkdir()
    monkeypatch.chdir(tmp_path / "corpus")
    with pytest.raises(UsageError, match=r"\. is the current folder"):
        prepared(given, Path("."))
    monkeypatch.chdir(tmp_path)
    prepared(given, Path("corpus"))
    monkeypatch.chdir(tmp_path / "corpus")
    assert "using it" in prepared(given, Path(".")).text
    with pytest.raises(UsageError, match=r"\. is the current folder"):
        prepared(with_data(given, max_length=3), Path("."))
    assert "using it" in prepared(given, Path(".")).text
    assert not beside(tmp_path / "corpus")


def test_a_link_stays_a_link(given: Settings, tmp_path: Path) -> None:
    """A corpus on another disk; it is made there, and there it is replaced."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "corpus").symlink_to(tmp_path / "disk" / "big")
    for length in (40, 30):
        prepared(with_data(given, max_length=length), tmp_path / "corpus")
        assert (tmp_path / "corpus").is_symlink()
        assert Corpus(tmp_path / "disk" / "big").manifest["made_of"]["data"]["max_length"] == length
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["big"]


def test_two_at_once(given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while there is an older corpus; using one that is finished needs no lock."""
    out = tmp_path / "corpus"
    make_old(given, out)
    tried = []
    compare = comparison.compare

    def meanwhile(*args: Any) -> Any:
        with pytest.raises(TransduceError, match=rf"another process is preparing {out}"):
            prepared(given, out)
        assert "using it" in prepared(given | {"cleaning": {}}, out).text
        tried.append(True)
        return compare(*args)

    monkeypatch.setattr(building, "compare", meanwhile)
    prepared(given, out)
    assert tried
    assert not beside(out)


def test_two_processes_at_once(
    given: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[..., list[str]],
) -> None:
    """Of many, all that fail say why, and what comes out is right."""
    monkeypatch.setattr(chunks, "CHUNK", 40)
    out = tmp_path / "corpus"
    processes = [
        subprocess.Popen(
            script(given, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert 0 in codes
    for code, error in zip(codes, errors, strict=True):
        assert code == 0 or "another process is preparing" in error.strip().split("\n")[-1]
    prepared(given, tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")
    assert not beside(out)


# --- what cannot be written ----------------------------------------------------------------------


def test_a_place_that_cannot_be_written(given: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TransduceError, match=r"cannot prepare .*file/corpus: Not a directory"):
        prepared(given, tmp_path / "file" / "corpus")


def test_a_whole_corpus_on_a_disk_for_reading(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "corpus"
    prepared(given, out)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(30, "Read-only file system")

    for name in ("mkdir", "replace", "rename", "rmdir", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    assert "using it" in prepared(given, out).text
    with pytest.raises(TransduceError, match=r"cannot prepare .*corpus: Read-only file system"):
        prepared(with_data(given, max_length=3), out)


@pytest.mark.parametrize("at", [1, 2, 10, 41, 60, 80, 85])
def test_a_full_disk(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The older corpus stays, and when there is room again it goes on."""
    out = tmp_path / "corpus"
    make_old(given, out)
    before = contents(out)
    replace, calls = os.replace, [0]

    def full(*args: Any) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise OSError(28, "No space left on device")
        replace(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(TransduceError, match=r"cannot write .*: No space left on device"):
            prepared(given, out)
    assert contents(out) == before
    assert not list(tmp_path.rglob("*.tmp-*"))
    log = prepared(given, out)
    assert ("going on" in log.text) == (at > 1)
    prepared(given, tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")
    assert not beside(out)


@pytest.mark.parametrize("first", [True, False])
def test_a_rename_that_fails(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """The older corpus is back at its place; the newer is put there next time."""
    out = tmp_path / "corpus"
    make_old(given, out)
    before = contents(out)
    rename = os.rename

    def fail(source: Path, target: Path) -> None:
        if (Path(source) == out) == first and (first or Path(source).name.endswith(".part")):
            raise OSError(5, "Input/output error")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(TransduceError, match=r"cannot prepare .*corpus: Input/output error"):
            prepared(given, out)
    assert contents(out) == before
    log = prepared(given, out)
    assert log.lines == [f"{out}: files and settings are as they were; using it"]
    assert not beside(out)


# --- standard input ------------------------------------------------------------------------------


class Stdin:
    def __init__(self, content: str) -> None:
        self.buffer = io.BytesIO(content.encode())


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda content: monkeypatch.setattr("sys.stdin", Stdin(content))


def test_standard_input(given: Settings, tmp_path: Path, pipe: Callable[[str], None]) -> None:
    settings = with_data(given, train="-")
    content = (tmp_path / "a.tsv").read_text()
    corpora = []
    for name in ("one", "another"):
        pipe(content)
        prepared(settings, tmp_path / name)
        corpora.append(contents(tmp_path / name))
        assert not beside(tmp_path / name)
    assert corpora[0] == corpora[1]
    prepared(with_data(given, train=str(tmp_path / "a.tsv")), tmp_path / "file")
    assert contents(tmp_path / "file")["train-00000.arrow"] == corpora[0]["train-00000.arrow"]
    assert Corpus(tmp_path / "one").report()["parts"]["train"]["inputs"][0]["path"] == "-"
    pipe(content)
    before = times(tmp_path / "one")
    assert "using it" in prepared(settings, tmp_path / "one").text
    pipe("")
    assert "used as it is; the files" in prepared(settings, tmp_path / "one").text
    assert times(tmp_path / "one") == before
    pipe("x\ty\n")
    assert "the train pairs changed; preparing it anew" in prepared(settings, tmp_path / "one").text
    assert not beside(tmp_path / "one")


def test_nothing_on_standard_input(
    given: Settings, tmp_path: Path, pipe: Callable[[str], None]
) -> None:
    pipe("")
    with pytest.raises(TransduceError, match="no usable pair in -: the file is empty"):
        prepared(with_data(given, train="-"), tmp_path / "corpus")


def test_one_side_from_standard_input(
    given: Settings, tmp_path: Path, pipe: Callable[[str], None]
) -> None:
    pipe("a\nb\n")
    (tmp_path / "tgt").write_text("A\nB\n")
    prepared(with_data(given, train=["-", str(tmp_path / "tgt")]), tmp_path / "corpus")
    train = Corpus(tmp_path / "corpus").train
    assert [train.text(i) for i in range(2)] == [("a", "A"), ("b", "B")]


@pytest.mark.parametrize("data", [{"train": "-", "valid": "-"}, {"train": ["-", "-"]}])
def test_standard_input_comes_once(
    given: Settings, tmp_path: Path, pipe: Callable[[str], None], data: dict[str, Any]
) -> None:
    pipe("a\tb\n")
    with pytest.raises(UsageError, match="only one file can come from standard input"):
        prepared(with_data(given, **data), tmp_path / "corpus")


def test_standard_input_beside_a_file_that_is_missing(
    given: Settings, tmp_path: Path, pipe: Callable[[str], None]
) -> None:
    pipe("a\tb\n")
    with pytest.raises(TransduceError, match=r"cannot read .*nothing.tsv"):
        prepared(with_data(given, train="-", valid=str(tmp_path / "nothing.tsv")), tmp_path / "c")
    assert not beside(tmp_path / "c")


# --- what is said ---


def test_advice_follows_from_what_was_found(given: Settings, tmp_path: Path) -> None:
    """What is repaired, dropped or switched off needs none; what cannot be repaired, another."""
    (tmp_path / "a.tsv").write_text(
        "a b c\ta b\nfine here \ufffd\tx y\n&amp; <b>so</b>\tz z\nx\ty\n"
    )
    settings = with_data(given, train=str(tmp_path / "a.tsv"), valid="", test="")

    def advice(**cleaning: str) -> str:
        prepared(settings | {"cleaning": cleaning}, tmp_path / "corpus")
        return "\n".join(Corpus(tmp_path / "corpus").report()["advice"])

    found = advice()
    for name in ("encoding", "entities", "markup"):
        assert f'repair such pairs: [cleaning] {name} = "fix"' in found
    found = advice(encoding="fix", entities="fix", markup="drop")
    assert 'leave out such pairs: [cleaning] encoding = "drop"' in found
    assert "entities" not in found and "markup" not in found
    assert "encoding" not in advice(encoding="off")


def test_unknown_pieces_are_spoken_of(given: Settings, tmp_path: Path) -> None:
    settings = given | {"tokenizer": {"kind": "word", "vocabulary": 12, "joint": True}}
    settings["tokenizer"]["symbols"] = []
    prepared(with_data(settings, train=str(tmp_path / "b.tsv")), tmp_path / "corpus")
    corpus = Corpus(tmp_path / "corpus")
    assert corpus.manifest["train"]["unknown_tokens"] > 10
    assert any("of the source pieces are unknown" in line for line in corpus.report()["advice"])


def test_the_printed_report(given: Settings, tmp_path: Path) -> None:
    prepared(given, tmp_path / "corpus")
    lines = printed(Corpus(tmp_path / "corpus").report())
    text = "\n".join(lines)
    assert re.search(r"^train: 137 pairs read, \d+ kept, \d+ left out$", text, re.MULTILINE)
    assert re.search(r"^  .*/a.tsv \(tsv\): 90 read, \d+ kept$", text, re.MULTILINE)
    assert re.search(r"^  \d pairs left out: empty source \(lines a.tsv:1, ", text, re.MULTILINE)
    assert re.search(r"^test: 10 pairs read", text, re.MULTILINE)
    assert text.count("\n  repeated: ") == 1


def test_counting_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Counting("counting sheep", "sheep", 1000, quiet_seconds=0.0) as counting:
        counting.advance(300)
        counting.advance(600)
    said = capsys.readouterr().err.split("\n")
    assert re.match(r"counting sheep: 300 of 1,000 sheep, [\d,]+/s, 0:00:00 left$", said[0])
    assert re.match(r"counting sheep: 900 of 1,000 sheep", said[1])
    with Counting("counting sheep", "sheep") as counting:
        counting.advance(1)
    assert capsys.readouterr().err == ""


# --- other inputs --------------------------------------------------------------------------------


def test_a_name_that_is_not_utf8(given: Settings, tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xe9.tsv")
    with open(name, "w") as file:
        file.write("a\tb\n")
    with pytest.raises(UsageError, match="not UTF-8; give it another one"):
        prepared(with_data(given, valid=name), tmp_path / "corpus")


def test_a_dataset_in_a_folder(given: Settings, tmp_path: Path) -> None:
    """Its parts are told apart, and it is found again, or said to be gone."""
    datasets = pytest.importorskip("datasets")
    parts = {
        name: datasets.Dataset.from_dict({"src": [f"{name} a"], "tgt": ["b"]})
        for name in ("train", "dev")
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "set"))
    settings = with_data(given, valid=[{"path": f"{tmp_path}/set#dev", "format": "huggingface"}])
    out = tmp_path / "corpus"
    prepared(settings, out)
    assert Corpus(out).valid.text(0) == ("dev a", "b")
    assert "using it" in prepared(settings, out).text
    settings["data"]["valid"][0]["path"] = f"{tmp_path}/set#train"
    assert "the valid pairs changed" in prepared(settings, out).text
    assert Corpus(out).valid.text(0) == ("train a", "b")


def test_a_missing_file(given: Settings, tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"cannot read .*nothing.tsv: No such file"):
        prepared(with_data(given, valid=str(tmp_path / "nothing.tsv")), tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists() and not beside(tmp_path / "corpus")


def test_a_broken_line_deep_in_a_file(given: Settings, tmp_path: Path) -> None:
    """Found in the midst of the work of several processes."""
    with open(tmp_path / "b.tsv", "ab") as file:
        file.write(b"fine\tfine\nb\xe9d\tline\n")
    with pytest.raises(TransduceError, match=r"b.tsv, line 49: not UTF-8"):
        prepared(with_data(given, workers=2), tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    (tmp_path / "b.tsv").write_text(pairs(47, 2))
    log = prepared(given, tmp_path / "corpus")
    assert "an interrupted preparation of other files" in log.text
    assert not beside(tmp_path / "corpus")
