"""A corpus at its place: when it may be used again, and how it is made without half of it showing.

It is made in a folder beside its place (`.NAME.part`), where a preparation that was killed goes on
from what it finds (the steps are in `building`), and renamed when it is whole. Memory does not grow
with the corpus.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from transduce import __version__
from transduce.config import STDIN, CleaningConfig, DataConfig, Settings, Source, is_url
from transduce.data.building import Build, Choose, Given, Parts, Say, absolute_paths
from transduce.data.chunks import write
from transduce.data.corpus import FORMAT, MANIFEST, OWN_FILE, Corpus, load_tokenizers
from transduce.data.files import BUFFER, fingerprint, in_archive, open_bytes
from transduce.data.readers import from_copy, paths_of, sources
from transduce.data.workers import Workers
from transduce.errors import TransduceError, UsageError

PARTS = ("train", "valid", "test")


def prepare(
    data: DataConfig,
    cleaning: CleaningConfig,
    asked: Settings,
    choose: Choose,
    out: Path,
    say: Say = lambda line: None,
    given: Given | None = None,
) -> Corpus:
    """Prepare a corpus in `out`, go on preparing it, or find it there.

    Args:
        data: where the pairs are.
        cleaning: what is left out.
        asked: all that was asked for, as a recipe has it; `asked["tokenizer"]` together with the
            text decides what `choose` returns.
        choose: settles the [tokenizer] table when the training text has been seen.
        out: the corpus folder.
        say: is told what happens.
        given: tokenizers that take the place of new ones.

    Raises:
        TransduceError: if a file cannot be read or written, no usable pair is left, or another
            process prepares the same corpus.
        UsageError: if the settings are wrong, or `out` holds something else.
    """
    try:
        place = _Place(out)
        request = _Request(data, cleaning, asked, place.part / "stdin", given)
        if not request.piped:
            found, why = _look(place, request)
            if found:
                say(f"{out}: {why}")
                shutil.rmtree(place.old, ignore_errors=True)
                return found
        with place.locked():
            place.heal()
        with place.locked():  # again: the folder that was locked may be the corpus now
            if request.piped:
                request.spool()
            found, why = _look(place, request)
            if found:
                say(f"{out}: {why}")
                return found
            if why:
                say(f"{out}: {why}; preparing it anew")
            place.refuse_loss()
            place.begin(request.made_of, say)
            with Workers(data.workers) as workers:
                symbols = asked.get("tokenizer", {}).get("symbols", [])
                inputs, files = request.inputs, request.files
                build = Build(
                    place.part, data, cleaning, inputs, files, symbols, workers, say, given
                )
                build.run(request.made_of, asked, choose)
            place.put_in_place()
    except BrokenPipeError:  # whoever listened to what is said has left
        raise
    except OSError as error:
        name = f" ({error.filename})" if error.filename else ""
        raise TransduceError(f"cannot prepare {out}: {error.strerror or error}{name}") from None
    return Corpus(out)


class _Request:
    """What is asked for: where the pairs are, and all that decides what comes of them.

    Raises:
        UsageError: if a part is given in a way that cannot be read.
    """

    def __init__(
        self,
        data: DataConfig,
        cleaning: CleaningConfig,
        asked: Settings,
        spooled: Path,
        given: Given | None,
    ) -> None:
        self.inputs: Parts = {
            name: sources(getattr(data, name), data) for name in PARTS if getattr(data, name)
        }
        self.spooled = spooled
        tokenizer = asked.get("tokenizer", {})
        self.settings: dict[str, Any] = {
            "inputs": {
                name: [source.model_dump(exclude={"path"}) for source in found]
                for name, found in self.inputs.items()
            },
            "data": {"max_length": data.max_length, "normalization": data.normalization},
            "cleaning": cleaning.model_dump(),
            # Sampling is done in training, on the texts.
            "tokenizer": {key: tokenizer[key] for key in tokenizer if key != "sampling"},
        }
        if given:
            self.settings["tokenizer"]["given"] = given.made_of
        paths = [path for found in self.inputs.values() for one in found for path in paths_of(one)]
        for path in paths:
            if path.encode("utf-8", "replace").decode("utf-8") != path:
                raise UsageError(f"{path!r}: the file's name is not UTF-8; give it another one")
        if paths.count(STDIN) > 1:
            raise UsageError("only one file can come from standard input")
        self.piped = STDIN in paths

    def spool(self) -> None:
        """Copy standard input to a file, since it is read more than once."""
        with open_bytes(STDIN) as file, open(self.spooled, "wb") as copy:
            shutil.copyfileobj(file, copy, BUFFER)

    @property
    def files(self) -> Parts:
        """The files to read: those that are given, the copy in the place of standard input."""
        return {
            name: [from_copy(one, self.spooled) for one in found]
            for name, found in self.inputs.items()
        }

    @cached_property
    def made_of(self) -> dict[str, Any]:
        """All that decides what the corpus looks like."""
        hashed = {
            name: [
                settings | {"sha256": [_content(source, path) for path in paths_of(source)]}
                for settings, source in zip(self.settings["inputs"][name], found, strict=True)
            ]
            for name, found in self.files.items()
        }
        made_of = {"transduce": __version__, "format": FORMAT} | self.settings
        return made_of | {"inputs": hashed}

    def gone(self, manifest: dict[str, Any]) -> bool:
        """Say whether none of the files is there, and a corpus was made from files so named."""
        known = {
            name: [source["path"] for source in manifest[name]["inputs"]]
            for name in PARTS
            if name in manifest
        }
        asked = {
            name: [absolute_paths(one) for one in found] for name, found in self.inputs.items()
        }
        if asked != known:
            return False
        if self.piped:
            return self.spooled.stat().st_size == 0
        files = [
            local
            for found in self.inputs.values()
            for source in found
            for path in paths_of(source)
            if (local := _local(source, path)) is not None
        ]
        return bool(files) and not any(map(os.path.exists, files))


def _local(source: Source, path: str) -> str | None:
    """Return the file or folder on disk that a path needs; None for what lies elsewhere."""
    if source.format == "huggingface":
        folder = path.partition("#")[0]
        return folder if os.path.isdir(folder) else None
    archive = in_archive(path)
    return None if is_url(path) else archive[0] if archive else path


def _content(source: Source, path: str) -> str:
    """Return what stands for the content of a path: a hash, and which part of a whole is meant."""
    if source.format == "huggingface":
        folder, hash_, split = path.partition("#")
        return f"{fingerprint(folder)}{hash_}{split}" if os.path.isdir(folder) else path
    archive = in_archive(path)
    return fingerprint(path) + (f"/{archive[1]}" if archive and archive[1] else "")


def _look(place: "_Place", request: _Request) -> tuple[Corpus | None, str]:
    """Return the corpus that is there, if it is what is asked for; and why or why not.

    Raises:
        TransduceError: if it is not what is asked for, but its files are gone.
    """
    if not (place.out / MANIFEST).exists():
        return None, ""
    try:
        corpus = Corpus(place.given)
        corpus.report()
        load_tokenizers(corpus.folder, corpus.tokenizer(), "none")
        made_of = corpus.manifest["made_of"]
        gone = request.gone(corpus.manifest)
        without_hashes = {
            name: [{key: one[key] for key in one if key != "sha256"} for one in found]
            for name, found in made_of["inputs"].items()
        }
    except TransduceError as error:
        return None, str(error)
    except (KeyError, TypeError, AttributeError):
        return None, f"{MANIFEST} is damaged"
    if gone:
        changed = _differences(made_of | {"inputs": without_hashes}, request.settings)
        if changed:
            raise TransduceError(
                f"{place.given}: {changed} changed, but the files it was made from are not here"
            )
        return corpus, "used as it is; the files it was made from are not here"
    changed = _differences(made_of, request.made_of)
    if changed:
        return None, f"{changed} changed"
    return corpus, "files and settings are as they were; using it"


def _differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Say which inputs and settings are not as they were."""
    changed = []
    for key, value in new.items():
        before = old.get(key)
        if before == value:
            continue
        if key == "inputs" and isinstance(before, dict):
            parts = [name for name in PARTS if before.get(name) != value.get(name)]
            changed += [f"the {name} pairs" for name in parts]
        elif isinstance(value, dict) and isinstance(before, dict):
            names = sorted(before.keys() | value.keys())
            changed += [f"{key}.{name}" for name in names if before.get(name) != value.get(name)]
        else:
            changed.append("the version of transduce" if key == "transduce" else key)
    return ", ".join(changed)


class _Place:
    """Where a corpus lies, and where it is made.

    Args:
        given: the folder as the user gave it; if it is a link, the folder behind it is meant.

    Raises:
        UsageError: if something else is there.
    """

    def __init__(self, given: Path) -> None:
        self.given = given
        self.out = Path(os.path.realpath(given))
        if not self.out.name or (self.out.exists() and not self.out.is_dir()):
            raise UsageError(f"{given} is no place for a corpus: give another folder")
        self.part = self.out.with_name(f".{self.out.name}.part")
        self.old = self.out.with_name(f".{self.out.name}.old")
        names = self._names()
        if names and (MANIFEST not in names or names == [MANIFEST]):
            raise UsageError(
                f"{given} holds something that is no prepared corpus: give another folder"
            )

    def _names(self) -> list[str]:
        return sorted(os.listdir(self.out)) if self.out.exists() else []

    def refuse_loss(self) -> None:
        """Refuse to replace the current folder, or a corpus that someone keeps other files with."""
        if self.out.exists() and Path.cwd().is_relative_to(self.out):
            raise UsageError(f"{self.given} is the current folder: call this from another one")
        others = [name for name in self._names() if not re.fullmatch(OWN_FILE, name)]
        if others:
            raise UsageError(
                f"{self.given} holds {others[0]}, which is not part of a corpus and would be "
                "lost: move it, or give another folder"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the place for this process alone; the lock dies with the process.

        Raises:
            TransduceError: if another process holds it.
        """
        folder = self._lock()
        try:
            yield
        finally:
            with suppress(OSError):
                if os.path.samestat(os.fstat(folder), os.stat(self.part)):
                    if not (self.part / "work").exists():
                        (self.part / "stdin").unlink(missing_ok=True)
                    self.part.rmdir()  # if nothing is in it
            os.close(folder)

    def _lock(self) -> int:
        while True:
            self.part.mkdir(parents=True, exist_ok=True)
            try:
                folder = os.open(self.part, os.O_RDONLY)
            except FileNotFoundError:  # removed just now, by a process that ended
                continue
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(folder), os.stat(self.part)):
                    return folder
            except BlockingIOError:
                os.close(folder)
                raise TransduceError(f"another process is preparing {self.given}") from None
            except FileNotFoundError:
                pass
            os.close(folder)

    def heal(self) -> None:
        """Do what was left to do if the end of a preparation was interrupted."""
        if (self.part / MANIFEST).exists():
            self.put_in_place()
        elif self.old.exists() and not self.out.exists():
            self.old.rename(self.out)
        else:
            shutil.rmtree(self.old, ignore_errors=True)

    def begin(self, made_of: dict[str, Any], say: Say) -> None:
        """Keep what an interrupted preparation of the same left; remove anything else."""
        plan = self.part / "work" / "plan.json"
        if plan.exists():
            with suppress(ValueError):  # cut short when the power failed
                if json.loads(plan.read_text("utf-8")) == made_of:
                    say("going on with the preparation that was interrupted")
                    for leftover in self.part.rglob("*.tmp-*"):
                        leftover.unlink(missing_ok=True)
                    return
            say("an interrupted preparation of other files or settings is removed")
            plan.unlink()  # first, lest what is left be taken for a whole
        for entry in self.part.iterdir():
            if entry.name != "stdin":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        plan.parent.mkdir()
        write(plan, json.dumps(made_of, indent=1).encode())

    def put_in_place(self) -> None:
        """Rename a whole corpus to its place; an older one goes only when the new one is there.

        Raises:
            UsageError: if something would be lost.
        """
        self.refuse_loss()
        shutil.rmtree(self.part / "work", ignore_errors=True)
        for name in os.listdir(self.part):
            if not re.fullmatch(OWN_FILE, name):
                (self.part / name).unlink()
        shutil.rmtree(self.old, ignore_errors=True)
        if self.out.exists():
            self.out.rename(self.old)
        try:
            self.part.rename(self.out)
        except OSError:
            if self.old.exists():
                self.old.rename(self.out)
            raise
        shutil.rmtree(self.old, ignore_errors=True)
