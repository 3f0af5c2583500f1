"""A whole file translated: in bounded memory, in order, and from where an earlier try stopped.

While an output is written it lies beside its place as `.NAME.part`, and `.NAME.journal` says how
far it is certain: so many lines in, so many bytes out. It takes its place once it is complete.
"""

import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from transduce.config import STDIN, Config, Settings, is_url, merge
from transduce.data.files import open_bytes, open_text, split_lines
from transduce.data.progress import Counting
from transduce.decoding.choosing import choose
from transduce.decoding.ctranslate2 import CTranslate2Engine
from transduce.decoding.engines import Detail
from transduce.decoding.outputs import Translation
from transduce.decoding.requests import Request
from transduce.decoding.translator import CHUNK, Translator, opened
from transduce.errors import TransduceError, UsageError
from transduce.model_folder import find_model, weights_digest, write_file

MANY = 1_000
"""Lines that are worth a measurement of a few seconds."""
Show = Callable[[Translation, int], str]
"""Makes a line of output of a translation and the number of its line, from 1."""


class Destination:
    """Where outputs go; this one can only be written from the beginning, as a pipe can."""

    lines = 0
    """How many lines of it are there from an earlier try."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def left(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Return the requests that are still to be done."""
        return iter(requests)

    def note(self, lines: int) -> None:
        """Make certain what is written: the outputs of so many lines."""

    def complete(self) -> None:
        """Put the output in its place."""


class Journal(Destination):
    """What is written of an output so far; nothing of it is lost when the process dies.

    Args:
        file: `.NAME.part`, to be added to.
        output: where it will stand.
        settings: what it depends on beside its lines.

    Raises:
        UsageError: if an output that depends on something else was begun there.
        TransduceError: if another process is writing it.
    """

    def __init__(self, file: IO[str], output: Path, settings: str) -> None:
        super().__init__(file)
        self.output, self.settings = output, settings
        self.path = output.with_name(f".{output.name}.journal")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TransduceError(f"another process is writing {output}") from None
        begun = json.loads(self.path.read_bytes()) if self.path.exists() else {}
        if begun and begun["settings"] != settings:
            raise self._other("with another model or other settings")
        self.lines: int = begun.get("lines", 0)
        self.expected = begun.get("read")
        self.read = hashlib.sha256()
        file.truncate(begun.get("bytes", 0))

    def left(self, requests: Iterable[Request]) -> Iterator[Request]:
        """See `Destination.left`.

        Raises:
            UsageError: if those that are done were others.
        """

        def noted() -> Iterator[Request]:
            for request in requests:
                self.read.update(repr(request).encode())
                yield request

        stream = noted()
        done = sum(1 for _ in islice(stream, self.lines))
        if self.lines and (done < self.lines or self.read.hexdigest() != self.expected):
            raise self._other("of other lines")
        return stream

    def note(self, lines: int) -> None:
        """See `Destination.note`."""
        self.file.flush()
        os.fsync(self.file.fileno())
        record = {
            "settings": self.settings,
            "lines": lines,
            "bytes": os.fstat(self.file.fileno()).st_size,
            "read": self.read.hexdigest(),
        }
        write_file(self.path, json.dumps(record).encode())

    def complete(self) -> None:
        """See `Destination.complete`."""
        self.file.flush()
        os.fsync(self.file.fileno())
        os.replace(self.file.name, self.output)
        self.path.unlink(missing_ok=True)

    def _other(self, what: str) -> UsageError:
        return UsageError(
            f"{self.output.parent / self.file.name} holds a part of a translation {what}: move it "
            f"away together with {self.path.name}, or give the output another name"
        )


def translate_file(
    translator: Translator,
    requests: Iterable[Request],
    show: Show,
    out: Destination,
    n_best: int = 1,
    total: int | None = None,
    detail: Detail = "tokens",
) -> None:
    """Translate requests and write a line for each.

    Args:
        translator: the model.
        requests: in order.
        show: what to write.
        out: where to.
        n_best: number of alternatives.
        total: how many requests there are, if that is known.
        detail: what `show` shows of an output.
    """
    typed = total is None and sys.stdin.isatty()  # then each line is answered at once
    chunk = 1 if typed else CHUNK
    silent = typed or out.file.isatty()
    with Counting("translating", "lines", total, out.lines, silent=silent) as progress:
        stream = translator.translate_stream(
            out.left(requests),
            n_best,
            first=out.lines,
            chunk=chunk,
            tell=progress.advance,
            detail=detail,
        )
        for number, translation in enumerate(stream, start=out.lines + 1):
            out.file.write(show(translation, number) + "\n")
            if typed:
                out.file.flush()
            if number % chunk == 0:
                out.note(number)
    out.complete()


def opened_to_translate(
    models: Sequence[Path],
    settings: Settings,
    lines: int | None,
    say: Callable[[str], None],
    n_best: int = 1,
    wishes: bool = False,
) -> tuple[Config, Translator]:
    """Load what translates fastest of what can do what is asked for; say which, and why.

    Args:
        models: one, or an ensemble.
        settings: laid over those of the (first) model.
        lines: how many there are, if that is known.
        say: is told.
        n_best: number of alternatives.
        wishes: whether something is asked of single outputs.

    Raises:
        UsageError: if an engine cannot do what is asked for, or the beam is too narrow.
        TransduceError: if a model cannot be loaded.
    """
    choice = choose(models, settings, wishes)
    config, translator = opened(models, merge(settings, choice.settings))
    translator.check(n_best)
    tune(translator, lines, say)
    say(f"engine: {choice}")
    return config, translator


def tune(translator: Translator, lines: int | None, say: Callable[[str], None]) -> None:
    """Have an engine measured that has much to do and knows several ways of doing it."""
    engine = translator.engine
    if lines is not None and lines >= MANY and isinstance(engine, CTranslate2Engine):
        engine.measure(say)


def dependence(models: Iterable[Path], *settings: object) -> str:
    """Return a digest of what an output depends on beside its lines."""
    digest = hashlib.sha256(repr(settings).encode())
    for model in models:
        digest.update(weights_digest(find_model(model)).encode())
    return digest.hexdigest()


def count_lines(path: str) -> int | None:
    """Count the lines of a file; None where that would use it up or fetch it twice."""
    if path == STDIN or is_url(path) or not os.path.isfile(path):
        return None
    with open_bytes(path) as file:
        return sum(1 for _ in split_lines(file, path))


def check_output(output: Path, inputs: Iterable[str]) -> None:
    """Refuse to put an output in the place of what is read.

    Raises:
        UsageError: naming it.
    """
    if output.is_file() and any(os.path.isfile(path) and output.samefile(path) for path in inputs):
        raise UsageError(f"{output} is what is read: it would be lost")


@contextmanager
def destination(output: Path | None, settings: str) -> Iterator[Destination]:
    """Open where a translation goes: a file that can be continued, or standard output.

    Raises:
        UsageError: as `Journal` does.
        TransduceError: likewise.
    """
    if output is None or (output.exists() and not output.is_file()):
        with open_text(output) as file:  # a device or a pipe cannot be taken up again
            yield Destination(file)
    elif not output.parent.is_dir():
        raise TransduceError(f"cannot write {output}: there is no folder {output.parent}")
    else:
        part = output.with_name(f".{output.name}.part")
        with open_text(part, "a") as file:
            journal = Journal(file, output, settings)
            try:
                yield journal
            finally:
                if not journal.path.exists():  # nothing of it is certain, or it is in its place
                    part.unlink(missing_ok=True)
