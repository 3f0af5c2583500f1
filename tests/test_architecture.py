"""The house: a module imports only from those to its left."""

import ast
from pathlib import Path

import pytest

import transduce

ROOT = Path(transduce.__file__).parent
ORDER = [
    "errors", "config", "model", "data", "model_folder", "training", "marian", "exporting",
    "decoding", "importing", "evaluation", "evaluating", "choices", "fine_tuning", "preparing",
    "translating", "augmenting", "shortlisting", "delivering", "advice", "fitting", "pricing",
    "assembly", "experiment", "inspection", "quickstart", "cli", "__main__",
]  # fmt: skip
DATA = [
    "text", "files", "exchange", "readers", "statistics", "cleaning", "comparison", "sampling",
    "tokenizer", "marian", "corpus", "report", "page", "progress", "workers", "chunks", "building",
    "preparation", "splitting", "batches", "cmudict",
]  # fmt: skip
WITHIN = {
    "data": DATA,
    "training": [
        "distributed",
        "loss",
        "machine",
        "gradients",
        "optimizer",
        "checkpoint",
        "log",
        "progress",
        "watch",
        "trainer",
    ],
    "exporting": [
        "standalone",
        "shortlist",
        "ctranslate2",
        "onnx_nodes",
        "onnx_model",
        "onnx_graphs",
        "onnx",
        "huggingface",
    ],
    "decoding": [
        "constraints",
        "search",
        "recording",
        "engines",
        "ctranslate2",
        "choosing",
        "onnx_engine",
        "outputs",
        "requests",
        "translator",
    ],
    "evaluation": ["error_rates", "metrics", "parity"],
    "inspection": [
        "study",
        "layer_costs",
        "explanation",
        "layers",
        "toy",
        "positions",
        "norms",
        "ablation_rows",
        "ablation_runs",
        "ablation_verdicts",
        "ablation_study",
        "ablation",
        "attention",
        "words",
        "alignment",
        "alignment_error",
        "alignment_search",
        "stations",
        "badges",
        "tracing",
        "numbers",
        "pages",
        "terminal",
        "inspecting",
        "history",
        "curves",
        "worst",
        "report",
    ],
    "cli": ["arguments", "data", "training", "using", "studies"],
    "model": ["transformer"],
}
FILES = sorted(path for path in ROOT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("transduce.") for name in found if name.startswith("transduce.")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_come_from_the_left(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts == ("__init__",):
        return
    place = ORDER.index(parts[0])
    for name in imported(path):
        first, *rest = name.split(".")
        if first not in ORDER:
            continue  # a name of the package itself: its version
        assert ORDER.index(first) <= place, f"{path} imports {name}"
        if first == parts[0] and len(parts) == 2 and parts[1] != "__init__":
            order = WITHIN[first]
            if rest and rest[0] in order:
                assert order.index(rest[0]) < order.index(parts[1]), f"{path} imports {name}"


def test_the_model_knows_nothing_but_ids() -> None:
    for path in (ROOT / "model").glob("*.py"):
        outside = {name.split(".")[0] for name in imported(path)} - {"model"}
        assert outside <= {"config", "errors"}
    assert not any("transformer" in name for name in imported(ROOT / "model" / "layer_types.py"))


def test_search_knows_neither_model_nor_text() -> None:
    for name in ("constraints", "search"):
        found = imported(ROOT / "decoding" / f"{name}.py")
        assert {module for module in found if not module.startswith("decoding.")} <= {
            f"config.{id_}" for id_ in ("BOS", "EOS", "PAD", "UNK")
        }
