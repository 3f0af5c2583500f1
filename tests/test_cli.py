"""The command: its options, exit statuses and messages; no traceback for anybody's mistake."""

import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from transduce import cli
from transduce.config import Config
from transduce.experiment import train

Write = Callable[[str, str | bytes], Path]

SCORE = ["evaluate", "MODEL", "--test", "T"]
SHORT = ["translate", "MODEL", "--set", "decoding.shortlist=true"]
ALIGN = ["align", "MODEL", "--pairs", "T"]
LINES = ["translate", "MODEL", "--input", "T"]
TRAIN = ["train", "--train", "T", "--valid", "T", "--out", "OUT"]
OPTIONS = {
    "quickstart": {"--out", "--minutes"},
    "train": {
        "RECIPE", "--out", "--train", "--valid", "--preset", "--resume", "--dry-run",
        "--deterministic", "--set",
    },
    "translate": {
        "MODEL", "--input", "--output", "--beam-size", "--alpha", "--n-best", "--format",
        "--input-format", "--prefix", "--require", "--forbid", "--engine",
        "--ensemble", "--set",
    },
    "augment": {"MODEL", "--out", "--distill", "--back", "--beam-size", "--engine", "--set"},
    "shortlist": {"MODEL", "--pairs", "--each", "--always", "--test", "--set"},
    "export": {"MODEL", "--to", "--out", "--quantization", "--test", "--sentences", "--set"},
    "score": {"MODEL", "--pairs", "--format", "--set"},
    "align": {
        "MODEL", "--pairs", "--layer", "--heads", "--later", "--threshold", "--units", "--gold",
        "--json", "--set",
    },
    "evaluate": {
        "MODEL", "--test", "--references", "--baseline", "--metrics", "--bleu-tokenize",
        "--ensemble", "--examples", "--output", "--json", "--set",
    },
    "ablate": {
        "RECIPE", "--out", "--rows", "--seeds", "--jobs", "--test", "--dry-run", "--set",
    },
    "average": {"RUN", "--last", "--best", "--out"},
    "report": {"RUN", "--out", "--pages", "--json", "--sentences"},
    "prepare": {"RECIPE", "--out", "--set"},
    "import": {"FOLDER", "--out"},
    "inspect": {
        "MODEL", "TEXT", "OTHER", "--numbers", "--target", "--baseline", "--encoder-layer",
        "--decoder-layer", "--head", "--out", "--json", "--set",
    },
    "explain": {"RECIPE", "--out", "--json", "--set"},
    "compare layers": {"--lengths", "--d", "--out", "--json"},
    "compare positions": {"--updates", "--seed", "--out", "--json"},
    "compare norms": {"--updates", "--seed", "--out", "--json"},
    "data report": {
        "PAIRS", "--valid", "--test", "--format", "--columns", "--languages", "--out", "--json",
        "--set",
    },
    "data show": {"PAIRS", "--format", "--columns", "--languages", "--first"},
    "data sample": {"PAIRS", "--count", "--seed", "--format", "--columns", "--languages"},
    "data split": {
        "PAIRS", "--out", "--valid", "--test", "--seed", "--format", "--columns", "--languages",
    },
}  # fmt: skip


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process, with a user's arguments, input and eyes."""

    def run(*arguments: object, stdin: str | bytes = b"") -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "argv", ["transduce", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        with pytest.raises(SystemExit) as exited:
            cli.main()
        out, err = capfd.readouterr()
        assert isinstance(exited.value.code, int)
        return subprocess.CompletedProcess(words, exited.value.code, out, err)

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few updates on letters: not good at anything, but complete."""
    folder = tmp_path_factory.mktemp("model")
    rows = [f"{w}\t{' '.join(w.upper())}\n" for w in ("ab", "bc", "abc", "cab", "bca", "a", "b")]
    (folder / "t.tsv").write_text("".join(rows * 5))
    recipe = {
        "data": {"train": str(folder / "t.tsv"), "valid": str(folder / "t.tsv")},
        "tokenizer": {"joint": False, "source": {"kind": "char"}, "target": {"kind": "word"}},
        "model": {"N": 1, "d_model": 16, "d_ff": 16, "h": 2},
        "training": {"steps": 6, "tokens": 64, "checkpoint_every": 2, "validate_every": 6},
        "decoding": {"max_extra": 3},
    }
    assert train(recipe, folder / "run") == "finished"
    return folder / "run"


def options_of(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if found := re.match(r"│ \*?\s*(--[a-z-]+|[A-Z]{2,})\b", line):
            yield found[1]


@pytest.mark.parametrize("verb", OPTIONS)
def test_the_options_of_each_verb(run: Run, verb: str) -> None:
    """There is no flag per knob; a new option is a decision."""
    assert set(options_of(run(*verb.split(), "--help").stdout)) == OPTIONS[verb]


def test_help_is_quick_and_does_not_import_torch(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(verb.split()[0] in done.stdout for verb in OPTIONS)
    before = time.monotonic()
    module = [sys.executable, "-m", "transduce"]
    assert (
        b"quickstart" in subprocess.run([*module, "--help"], check=True, capture_output=True).stdout
    )
    assert time.monotonic() - before < 10
    code = "import sys; from transduce import cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert run("--version").stdout.strip() == __import__("transduce").__version__


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["trian"], 2, ["train"]),
        (["translate"], 2, ["MODEL"]),
        (["translate", "nowhere"], 1, ["nowhere does not exist"]),
        (["translate", "MODEL", "--beam-szie", "3"], 2, ["beam-szie"]),
        (["translate", "MODEL", "--beam-size", "0"], 2, ["beam_size"]),
        (["translate", "MODEL", "--beam-size", "-1"], 2, ["-1"]),
        (["translate", "MODEL", "--beam-size", "wide"], 2, ["wide"]),
        (["translate", "MODEL", "--n-best", "9"], 2, ["n-best 9", "beam-size"]),
        (["translate", "MODEL", "--n-best", "0"], 2, ["n-best 0"]),
        (["translate", "MODEL", "--beam-size", "0"], 2, ["decoding.beam_size", "0"]),
        (["translate", "MODEL", "--set", "decoding.placeholders=['(']"], 2, ["regular expression"]),
        (["translate", "MODEL", "--ensemble", "nowhere"], 1, ["nowhere does not exist"]),
        ([*LINES, "--prefix", "A A A A A A A A A A A A"], 2, ["line 1", "max_extra"]),
        ([*LINES, "--require", "Z"], 2, ["line 1", "'Z'", "vocabulary"]),
        ([*LINES, "--prefix", "A B", "--forbid", "B"], 2, ["forbidden"]),
        ([*LINES, "--input-format", "jsonl"], 2, ["line 1", "JSON"]),
        (["translate", "MODEL", "--alpha", "-1"], 2, ["alpha"]),
        (["translate", "MODEL", "--format", "xml"], 2, ["xml"]),
        (["translate", "MODEL", "--input", "nowhere.txt"], 1, ["nowhere.txt"]),
        (["translate", "MODEL", "--output", "no/where.txt"], 1, ["no/where.txt"]),
        (["translate", "MODEL", "--set", "decoding.beam=3"], 2, ["decoding.beam_size"]),
        (["translate", "MODEL", "--beam-size", "9" * 20], 2, ["beam_size", "too large"]),
        (["translate", "MODEL", "--alpha", "inf"], 2, ["decoding.alpha", "inf"]),
        (["translate", "MODEL", "--set", "model.N=3"], 2, ["keeps its [model]", "[decoding]"]),
        (["translate", "MODEL", "--input", "T", "--output", "T"], 2, ["t.tsv is what is read"]),
        (["evaluate", "MODEL", "--test", "T", "--json", "T"], 2, ["t.tsv is what is read"]),
        (["augment", "MODEL", "--distill", "T", "--out", "T"], 2, ["t.tsv", ".jsonl"]),
        (SHORT, 2, ["`transduce shortlist"]),
        ([*SHORT, "--engine", "torch"], 2, ["decoding.shortlist", "torch is asked for"]),
        (["shortlist", "MODEL", "--pairs", "nowhere.tsv"], 1, ["nowhere.tsv"]),
        (["shortlist", "nowhere", "--pairs", "T"], 1, ["nowhere"]),
        (["shortlist", "MODEL", "--pairs", "T", "--each", "0"], 2, ["--each 0"]),
        (["shortlist", "MODEL", "--pairs", "EMPTY"], 2, ["no pair to learn"]),
        (["score", "MODEL", "--pairs", "T", "--set", "data.workers=3"], 2, ["data.columns"]),
        (["score", "MODEL", "--pairs", "nowhere.tsv"], 1, ["nowhere.tsv"]),
        (["align", "MODEL", "--pairs", "nowhere.tsv"], 1, ["nowhere.tsv"]),
        ([*ALIGN, "--layer", "2"], 2, ["--layer 2", "1 layers", "counted from 1"]),
        ([*ALIGN, "--heads", "1", "3"], 2, ["--heads 3", "2 heads"]),
        ([*ALIGN, "--threshold", "0"], 2, ["--threshold 0"]),
        ([*ALIGN, "--threshold", "nan"], 2, ["--threshold nan"]),
        ([*ALIGN, "--units", "letters"], 2, ["letters"]),
        ([*ALIGN, "--json", "OUT"], 2, ["--gold"]),
        ([*ALIGN, "--gold", "nowhere"], 1, ["nowhere"]),
        ([*ALIGN, "--gold", "EMPTY"], 1, ["0 lines", "35 pairs"]),
        ([*ALIGN, "--gold", "T"], 1, ["t.tsv, line 1: 'ab' is no link"]),
        ([*ALIGN, "--gold", "EMPTY", "--json", "no/where"], 2, ["no/where"]),
        ([*ALIGN, "--gold", "EMPTY", "--json", "T"], 2, ["t.tsv is what is read"]),
        ([*ALIGN, "--set", "decoding.engine=ctranslate2"], 2, ["decoding.engine=torch"]),
        (["evaluate", "MODEL", "--test", "nowhere.tsv"], 1, ["nowhere.tsv"]),
        (["evaluate", "MODEL", "--test", "T", "--metrics", "blue"], 2, ["'blue'"]),
        (["evaluate", "MODEL", "--test", "a", "b", "c"], 2, ["not 3 files"]),
        ([*SCORE, "--metrics", "blue"], 2, ["evaluation.metrics"]),
        ([*SCORE, "--bleu-tokenize", "jamecab"], 2, ["did you mean 'ja-mecab'"]),
        ([*SCORE, "--baseline", "nowhere"], 1, ["nowhere does not exist"]),
        ([*SCORE, "--references", "nowhere"], 1, ["nowhere"]),
        (["evaluate", "EMPTY", "--test", "T"], 1, ["0 lines", "35 sources"]),
        (["average", "nowhere"], 1, ["nowhere"]),
        (["average", "RUN", "--last", "50"], 1, ["not 50"]),
        (["average", "RUN", "--last", "0"], 2, ["--last 0"]),
        (["average", "RUN", "--best", "50"], 1, ["not 50"]),
        (["average", "RUN", "--best", "2", "--last", "2"], 2, ["--last", "--best"]),
        (["train", "--out", "OUT"], 2, ["--train"]),
        (["train", "--train", "T", "--out", "OUT"], 2, ["--valid"]),
        (["train", "--train", "T", "--valid", "T", "--out", "RUN"], 2, ["--resume", "--out"]),
        (["train", "nowhere.toml", "--out", "OUT"], 1, ["nowhere.toml"]),
        (["train", "--train", "nowhere.tsv", "--valid", "T", "--out", "OUT"], 1, ["nowhere.tsv"]),
        ([*TRAIN, "--preset", "smal"], 2, ["small"]),
        ([*TRAIN, "--set", "model.h=3", "--set", "model.d_model=16"], 2, ["d_model (16)", "h (3)"]),
        ([*TRAIN, "--set", "model.d_model=9999992"], 2, ["GiB"]),
        ([*TRAIN, "--set", "model.d_model=9999992", "--dry-run"], 1, ["GiB", "[model] smaller"]),
        (["quickstart", "--minutes", "0", "--out", "OUT"], 2, ["minutes"]),
        (["inspect"], 2, ["--numbers"]),
        (["inspect", "MODEL"], 2, ["a model and a text"]),
        (["inspect", "MODEL", " "], 2, ["blank"]),
        (["inspect", "nowhere", "a"], 1, ["nowhere does not exist"]),
        (["inspect", "MODEL", "a", "--encoder-layer", "2"], 2, ["layer 2", "has 1"]),
        (["inspect", "MODEL", "a", "--decoder-layer", "0"], 2, ["--decoder-layer 0", "from 1"]),
        (["inspect", "MODEL", "a", "--head", "3"], 2, ["head 3", "2"]),
        (["inspect", "MODEL", "a", "b", "--baseline", "MODEL"], 2, ["not both"]),
        (["inspect", "MODEL", "a", "--out", "no/where.html"], 2, ["there is no folder"]),
        (["inspect", "MODEL", "a", "--set", "model.h=1"], 2, ["keeps its [model]"]),
        (["inspect", "--numbers", "nowhere.toml"], 1, ["nowhere.toml"]),
        (["inspect", "--numbers", "T"], 2, ["t.tsv"]),
        (["inspect", "MODEL", "--numbers", "T"], 2, ["needs no model"]),
        (["inspect", "MODEL", "--outt", "a"], 2, ["no option --outt"]),
        (["data", "show", "--frist", "T"], 2, ["no option --frist"]),
        (["report", "nowhere"], 1, ["nowhere does not exist"]),
        (["report", "MODEL"], 1, ["is a model folder", "give the run"]),
        (["report", "EMPTY"], 1, ["empty is no run"]),
        (["report", "RUN", "--pages"], 2, ["--out"]),
        (["report", "RUN", "--sentences", "-1"], 2, ["--sentences -1"]),
        (["report", "RUN", "--out", "no/where.html"], 2, ["no/where.html", "no folder"]),
        (["ablate", "nowhere.toml", "--out", "OUT"], 1, ["nowhere.toml"]),
        (["ablate", "nowhere.toml", "--out", "OUT", "--rows", "layer"], 2, ["'layers'"]),
        (["ablate", "nowhere.toml", "--out", "OUT", "--seeds", "0"], 2, ["--seeds 0"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)  # fmt: skip
def test_mistakes(
    run: Run, model: Path, tmp_path: Path, arguments: list[str], status: int, words: list[str]
) -> None:
    places = {
        "MODEL": model / "model", "RUN": model, "T": model.parent / "t.tsv", "OUT": tmp_path / "o",
        "EMPTY": tmp_path / "empty",
    }  # fmt: skip
    (tmp_path / "empty").touch()
    done = run(*(places.get(argument, argument) for argument in arguments))
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr


def test_unequal_files_leave_nothing_behind(run: Run, write: Write, tmp_path: Path) -> None:
    """A04, through the command."""
    src, tgt = write("s.txt", "x\n" * 3), write("t.txt", "y\n" * 4)
    done = run("train", "--train", src, tgt, "--valid", src, src, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert f"{src} has 3 lines but {tgt} has 4" in done.stderr
    assert not (tmp_path / "run" / "config.toml").exists()
    assert not (tmp_path / "run" / "corpus").exists()


@pytest.mark.parametrize(
    ("content", "blank"),
    [
        (b"", []),
        (b"\n", [0]),
        (b"ab\n\ncb\n", [1]),
        (b"\nab", [0]),
        (b"ab\n\n", [1]),
        (b"ab\r\ncb\r\n", []),
        ("a\u2028b\u2029c\u0085\x0b\x0c\n\u2028\nb\rc\n".encode(), [1]),
        ("жжж\n日本 😀\n".encode(), []),
        (b"abc" * 3334 + b"\nab\n", []),
        (b"\xef\xbb\xbfab\n\x00\n", []),
    ],
    ids=range(10),
)
def test_as_many_lines_out_as_in(run: Run, model: Path, content: bytes, blank: list[int]) -> None:
    """A01, A02, A03, through the command."""
    done = run("translate", model, stdin=content)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")[:-1]
    assert len(lines) == content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
    assert all(lines[i] == "" for i in blank)
    assert ("cut to 1000 pieces" in done.stderr) == (len(content) > 9000)


def test_a_line_that_is_not_utf8(run: Run, model: Path) -> None:
    done = run("translate", model, stdin=b"ab\n\xff\n")
    assert done.returncode == 1
    assert "line 2: not UTF-8" in done.stderr


def test_jsonl(run: Run, model: Path, write: Write, tmp_path: Path) -> None:
    source = write("in.txt", "ab\n\nbc\n")
    done = run("translate", model, "--input", source, "--format", "jsonl", "--n-best", "2",
               "--output", tmp_path / "out.jsonl")  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["source"] for row in rows] == ["ab", "", "bc"]
    assert rows[1] == {
        "source": "", "flags": ["empty"],
        "hypotheses": [{"text": "", "tokens": [], "log_probabilities": [], "log_probability": 0.0,
                        "score": 0.0, "finished": True}],
    }  # fmt: skip
    for hypothesis in rows[0]["hypotheses"]:
        assert list(hypothesis) == [
            "text", "tokens", "log_probabilities", "log_probability", "score", "finished",
        ]  # fmt: skip
        assert sum(hypothesis["log_probabilities"]) == pytest.approx(hypothesis["log_probability"])
    text = run("translate", model, "--n-best", "2", stdin="ab\n").stdout
    assert text == " ||| ".join(h["text"] for h in rows[0]["hypotheses"]) + "\n"


def test_requests(run: Run, model: Path, write: Write) -> None:
    """Prefixes, required and forbidden text, lengths, draws, ensembles."""
    asked = write("in.jsonl", '{"source": "ab", "require": ["C"]}\n{"source": "bc"}\n')
    done = run("translate", model, "--input", asked, "--prefix", "A", "--forbid", "B")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("A") and "C" in first.split() and second.startswith("A")
    assert "B" not in done.stdout
    long = run(
        "translate", model, "--set", "decoding.min_length=5", "--format", "jsonl", stdin="ab\n"
    )
    assert len(json.loads(long.stdout)["hypotheses"][0]["tokens"]) >= 5
    draw = ["translate", model, "--n-best", "9", "--set", "decoding.method=sample"]
    drawn = run(*draw, "--set", "decoding.temperature=5.0", stdin="ab\n")
    texts = drawn.stdout.rstrip("\n").split(" ||| ")
    assert 1 < len(texts) == len(set(texts)) <= 9
    both = run("translate", model, "--ensemble", model / "model", stdin="ab\nbc\n")
    assert both.stdout == run("translate", model, stdin="ab\nbc\n").stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("score M --pairs -", "score M --pairs=-"),
        ("score M --pairs - b --format text", "score M --pairs=- --pairs b --format text"),
        ("score M --pairs a - --format text", "score M --pairs a --pairs=- --format text"),
        ("translate --input - M", "translate --input=- M"),
        ("translate M --input=- --n-best 2", "translate M --input=- --n-best 2"),
        ("translate M --n-best 2 -", "translate M --n-best 2 -"),
        ("data show - b", "data show - b"),
        ("score M --pairs a b", "score M --pairs a b"),
    ],
)
def test_standard_input_is_named_as_users_do(words: str, expected: str) -> None:
    assert " ".join(cli.with_standard_input(words.split())) == expected


def test_score(run: Run, model: Path, write: Write) -> None:
    pairs = write("p.tsv", "ab\tA B\nbc\tB\n")
    done = run("score", model, "--pairs", pairs)
    assert done.returncode == 0
    numbers = [float(line) for line in done.stdout.splitlines()]
    lines = run("score", model, "--pairs", pairs, "--format", "jsonl").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["log_probability"] for row in rows] == pytest.approx(numbers, abs=1e-6)
    assert list(rows[0]) == ["source", "target", "tokens", "log_probabilities", "log_probability"]
    assert rows[0]["tokens"] == ["▁A", "▁B", "</s>"]
    assert all(len(line.partition(".")[2]) == 6 for line in done.stdout.splitlines())
    assert done.stderr == ""
    done = run("score", model, "--pairs", write("q.tsv", "ab\tA B\nbc\n"))
    assert len(done.stdout.splitlines()) == 2
    assert "pairs without a target: 1" in done.stderr


def test_align(run: Run, model: Path, write: Write) -> None:
    src, tgt = write("s.txt", "ab c\n\nbc\nb\n"), write("t.txt", "A B\nB\n\nA B C\n")
    done = run("align", model, "--pairs", src, tgt)
    assert done.returncode == 0
    assert done.stderr == "links: layer 1, mean of all heads\n"
    lines = done.stdout.split("\n")
    assert len(lines) == 5 and lines[1] == lines[2] == lines[4] == ""
    assert re.fullmatch("[01]-0 [01]-1|[01]-1 [01]-0", lines[0])
    assert lines[3] == "0-0 0-1 0-2"
    piped = run("align", model, "--pairs", "-", stdin="ab c\tA B\n\tB\nbc\t\nb\tA B C\n")
    assert piped.stdout == done.stdout
    columns = ["--set", "data.columns=[2,1]"]
    turned = run("align", model, "--pairs", "-", *columns, stdin="A B\tab c\n")
    assert turned.stdout == lines[0] + "\n"
    every = run("align", model, "--pairs", src, tgt, "--threshold", "1e-9")
    assert every.stdout.split("\n")[0] == "0-0 0-1 1-0 1-1"
    letters = run("align", model, "--pairs", src, tgt, "--units", "pieces", "--threshold", "1e-9")
    assert letters.stdout.split("\n")[0] == "0-0 0-1 1-0 1-1 2-0 2-1"
    short = run("align", model, "--pairs", src, tgt, "--set", "decoding.max_source=2")
    warned = [line for line in short.stderr.split("\n") if "cut" in line]
    assert warned == [
        "warning: pair 1: the source is cut to 2 pieces",
        "warning: pair 3: the source is cut to 2 pieces",
        "warning: pair 4: the target is cut to 2 pieces",
    ]
    assert short.stdout.split("\n")[0] == "0-0 0-1"


def test_align_with_gold_links(run: Run, model: Path, write: Write, tmp_path: Path) -> None:
    """Links that one head made are gold: that head is found, unless another is asked for."""
    pairs = write("p.tsv", "ab c a b\tA B C A\nbc a c b\tB A C\nb a c\tA B C\nc b\tA\n")
    own = run("align", model, "--pairs", pairs, "--heads", "2", "--later")
    assert own.stderr == "links: layer 1, head 2, one step later\n"
    gold = write("gold", own.stdout)
    found = run("align", model, "--pairs", pairs, "--gold", gold, "--json", tmp_path / "f.json")
    assert found.returncode == 0, found.stderr
    assert found.stdout == own.stdout
    assert "error rate 0.0 [0.0, 0.0], precision 100.0, recall 100.0" in found.stderr
    record = json.loads((tmp_path / "f.json").read_text())
    assert record["best"]["error"] == 0.0
    assert {"layer": 1, "heads": [2], "later": True, "error": 0.0}.items() <= next(
        one for one in record["choices"] if one["heads"] == [2] and one["later"]
    ).items()  # fmt: skip
    for asked in (["--layer", "1"], ["--heads", "1"]):
        chosen = run("align", model, "--pairs", pairs, "--gold", gold, *asked)
        assert chosen.stdout == run("align", model, "--pairs", pairs, *asked).stdout
        assert "Best: " in chosen.stderr
    vague = run("align", model, "--pairs", pairs, "--gold", write("vague", "1-1\n\n\n\n"))
    assert "vague says whether words count from 0 or 1" in vague.stderr
    beyond = run("align", model, "--pairs", pairs, "--gold", write("far", "0-0\n0-3\n\n\n"))
    assert beyond.returncode == 1
    assert "far, line 2: link 0-3, but the pair has 4 and 3 words" in beyond.stderr


def test_evaluate(run: Run, model: Path, tmp_path: Path) -> None:
    test = model.parent / "t.tsv"
    options = ["--metrics", "wer,per,bleu", "--set", "evaluation.references=by_source"]
    done = run("evaluate", model, "--test", test, "--json", tmp_path / "s.json", *options,
               "--output", tmp_path / "out.txt", "--examples", "1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["wer", "per", "bleu"]
    assert "beam_size 4" in done.stderr
    assert done.stderr.count("worst, item") == done.stderr.count("best, item") == 1
    record = json.loads((tmp_path / "s.json").read_text())
    assert record["sentences"] == 7 == len((tmp_path / "out.txt").read_text().splitlines())
    assert record["settings"]["decoding"]["max_extra"] == 3
    assert "tok:13a" in record["metrics"]["bleu"]["signature"]
    assert len(record["metrics"]["wer"]["interval"]) == 2
    again = run("evaluate", tmp_path / "out.txt", "--test", test, *options, "--baseline", model,
                "--bleu-tokenize", "none")  # fmt: skip
    assert again.returncode == 0, again.stderr
    lines = again.stdout.splitlines()
    assert lines[:2] == done.stdout.splitlines()[:2]
    assert "tok:none" in lines[2] and "wer +0.00" in lines[3] and "chance" in lines[3]


def test_too_little_memory(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*arguments: object) -> NoReturn:
        raise errors.pop()

    monkeypatch.setattr("transduce.decoding.engines.TorchEngine.search", fail)
    words = ["translate", model, "--engine", "torch", "--output", tmp_path / "out"]
    errors = [MemoryError(), RuntimeError("CPUAllocator: can't allocate memory: 9 bytes")]
    while errors:
        done = run(*words, stdin="ab\n")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("transduce: not enough memory")
        assert list(tmp_path.iterdir()) == []


def test_ctrl_c(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("transduce.decoding.engines.TorchEngine.search", stop)
    done = run("translate", model, "--engine", "torch", stdin="ab\n")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines()[-1] == "transduce: interrupted"


def test_help_fills_its_lines(run: Run) -> None:
    """The source's ends of lines are none on a terminal of another width."""
    text = run("export", "--help").stdout
    assert "What the engine cannot compute is refused by its name. The export is loaded" in text
    assert "again and compared with the torch engine: log-probabilities of given pairs," in text
    lists = [line for verb in OPTIONS for line in run(*verb.split(), "--help").stdout.split("\n")]
    assert not any("•" in line for line in [*lists, *run("--help").stdout.split("\n")])


def test_pairs_from_standard_input(run: Run) -> None:
    assert run("data", "show", "-", stdin="a\tb\n").stdout == "a\tb\n"
    assert "1" in run("data", "report", "-", stdin="a\tb\n").stdout


def test_inspect(run: Run, model: Path, tmp_path: Path) -> None:
    """In the terminal, as JSON, as a page; a line from standard input; two of them."""
    done = run("inspect", model, "abc")
    assert done.returncode == 0 and "cross-attention" in done.stdout
    piped = run("inspect", model, "-", stdin="abc\r\nnot this\n")
    assert piped.stdout == done.stdout
    data = json.loads(run("inspect", model, "abc", "--target", "A B", "--json").stdout)
    assert data["format"] == "transduce trace" and data["target"]["given"]
    both = json.loads(run("inspect", model, "abc", "ab", "--json").stdout)
    assert [one["source"]["text"] for one in both] == ["abc", "ab"]
    page = tmp_path / "page.html"
    done = run("inspect", model, "abc", "--baseline", model / "model", "--out", page)
    assert done.returncode == 0 and done.stdout == "" and str(page) in done.stderr
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_report(run: Run, model: Path, tmp_path: Path) -> None:
    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    done = run("report", model, "--out", page, "--json", numbers, "--sentences", "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The training of run\n")
    for word in ("all updates are done", "Samples over time", "translated 7 validation sentences"):
        assert word in done.stdout
    assert str(page) in done.stderr
    assert "The training of run" in page.read_text()
    assert json.loads(numbers.read_text())["worst"]["sentences"] == 7


def test_average(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("average", model, "--last", "2", "--out", tmp_path / "mean")
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "mean"))
    assert run("translate", tmp_path / "mean", stdin="ab\n").returncode == 0


def test_a_model_folder_stands_alone(run: Run, model: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(model / "model", tmp_path / "alone")
    shutil.rmtree(alone / "ctranslate2", ignore_errors=True)  # made from the rest, where it is used
    assert {path.name for path in alone.iterdir()} == {
        "config.toml", "model.safetensors", "source.spm", "target.spm", "README.md", "int8.json",
    }  # fmt: skip
    expected = run("translate", model, stdin="ab\n").stdout
    assert run("translate", alone, stdin="ab\n").stdout == expected
    config = (alone / "config.toml").read_bytes()
    for name, content, words in [
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("model.safetensors", (alone / "model.safetensors").read_bytes()[:-1], "model.safetensors"),
        ("source.spm", b"nonsense", "source.spm"),
        ("config.toml", b"[model]\nd_modle = 3\n", "d_model"),
        ("config.toml", config.replace(b"d_ff = 16", b"d_ff = 2000000000"), "does not fit"),
        ("config.toml", config.replace(b"d_ff = 16", b"d_ff = 2000000000000"), "too large"),
        ("config.toml", config.replace(b" = 16\n", b" = 2147483647\n"), "as large as"),
        ("config.toml", config.replace(b"N_encoder = 1", b"N_encoder = 2000000000"), "too few"),
        ("config.toml", b"tokenizer = '../../secret'\n", "config.toml"),
        ("config.toml", b"\xff", "UTF-8"),
    ]:
        broken = shutil.copytree(alone, tmp_path / "broken", dirs_exist_ok=True)
        (broken / name).write_bytes(content)
        done = run("translate", broken, stdin="ab\n")
        assert done.returncode in (1, 2)
        assert words in done.stderr
        shutil.rmtree(broken)


def test_a_dry_run_and_the_real_one(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.pricing.SECONDS", 0.05)
    table, out = model.parent / "t.tsv", tmp_path / "run"
    sizes = ("N=1", "d_model=16", "d_ff=16", "h=2")
    words = ["train", "--train", table, "--valid", table, "--out", out, "--set", "training.steps=3"]
    for size in sizes:
        words += ["--set", f"model.{size}"]
    done = run(*words, "--dry-run")
    assert done.returncode == 0, done.stderr
    data = dict(line.split() for line in done.stdout.splitlines())
    assert data["updates"] == "3"
    assert int(data["parameters"]) == sum(
        int(count) for key, count in data.items() if key.startswith("parameters_")
    )
    for word in ("memory: ", "time: 3 updates", "disk: ", "note: ", "chosen: "):
        assert word in done.stderr
    assert {path.name for path in out.iterdir()} == {".lock", "corpus"}
    real = run(*words)
    assert real.returncode == 0, real.stderr
    assert "note: " in real.stderr and "using it" in real.stderr
    assert run(*words, "--dry-run").returncode == 2  # as without: a run is there
    left = run(*words, "--dry-run", "--resume", "--set", "training.steps=5")
    assert "updates 2\n" in left.stdout


def test_two_trainings_refuse_each_other(run: Run, model: Path) -> None:
    from transduce.assembly import lock

    with lock(model):
        done = run("train", "--resume", "--out", model)
    assert done.returncode == 1
    assert "another process" in done.stderr


def test_resuming_keeps_what_the_run_was_built_on(run: Run, model: Path) -> None:
    done = run("train", "--resume", "--out", model, "--set", "model.d_model=32")
    assert done.returncode == 2
    assert "[model] cannot change" in done.stderr
    done = run("train", "--resume", "--out", model)
    assert done.returncode == 0
    assert "all updates are done" in done.stderr


def test_the_written_configuration_is_complete(model: Path) -> None:
    import tomllib

    written = tomllib.loads((model / "config.toml").read_text())
    for section in (
        "data", "cleaning", "tokenizer", "model", "training", "decoding", "evaluation",
    ):  # fmt: skip
        fields = set(type(getattr(Config(), section)).model_fields)
        optional = {
            "data": {"format", "columns", "header", "languages"},
            "tokenizer": {"source", "target", "character_coverage"},
            "training": {"minutes", "stop_at_score"},
        }
        assert fields - set(written[section]) <= optional.get(section, set())
    assert written["training"]["precision"] in ("float32", "bfloat16")


def test_a_full_disk(run: Run, model: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    done = run("translate", model, "--output", "/dev/full", stdin="ab\n")
    assert done.returncode == 1
    assert "No space left" in done.stderr


def test_command_name() -> None:
    assert cli.command_name()
