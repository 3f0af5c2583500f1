"""The cookbook's walk, as it is written, on a small stand-in for the model."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("transformers", "ctranslate2"):
    pytest.importorskip(package)

from tests.conftest import VNNI  # noqa: E402
from tests.marian_folder import SOURCE, TARGET, write_marian  # noqa: E402

TEXT = (Path(__file__).parents[1] / "docs" / "cookbook.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
SMALLER = {
    "python -m tests.marian_folder opus-mt-en-de\n": "",  # made here, with fewer numbers
    " --set fine_tuning.init_from=model": " --set fine_tuning.init_from=model"
    " --set training.steps=6 --set training.validate_every=3 --set training.tokens=256",
    "transduce train deep-shallow": "transduce train deep-shallow --set training.steps=4"
    " --set model.d_model=16 --set model.d_ff=16 --set model.h=2 --set training.tokens=256",
}
"""What is changed so that it takes seconds: sizes and the length of training."""
if not VNNI:  # int8 would be refused there: the stand-in's matrices are too small for it
    SMALLER["transduce export tuned --to ctranslate2 --quantization int8"] = "#"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walk")
    write_marian(folder / "opus-mt-en-de", generation={"num_beams": 4})
    pairs = [
        (" ".join(SOURCE[(i * k) % len(SOURCE)] for k in range(2, 7)),
         " ".join(TARGET[(i * k) % len(TARGET)] for k in range(2, 7)))
        for i in range(240)
    ]  # fmt: skip
    rows = [f"{src} {i}\t{tgt} {i}\n" for i, (src, tgt) in enumerate(pairs)]
    (folder / "mine.tsv").write_text("".join(rows), encoding="utf-8")
    (folder / "old-test.tsv").write_text("".join(rows[:9]), encoding="utf-8")
    (folder / "mono.txt").write_text("das haus ist grün\nder garten\n", encoding="utf-8")
    return folder


def test_the_walk(folder: Path) -> None:
    """Every command, in order; what it leaves is what the text says."""
    assert len(BLOCKS) > 8
    scripts = Path(sys.executable).parent
    env = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for language, code in BLOCKS:
        if language == "python":
            command = [sys.executable, "-c", code]
        else:
            for words, others in SMALLER.items():
                code = code.replace(words, others)
            command = ["bash", "-euc", code]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{code}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        if language == "python":
            assert done.stdout.strip()
    assert len((folder / "output.txt").read_text("utf-8").splitlines()) == 2
    assert (folder / "service-int8" / "parity.json").exists() == VNNI
    assert (folder / "tuned" / "fine_tuning.json").exists()
    assert len((folder / "distilled.jsonl").read_text("utf-8").splitlines()) == 40
    assert (folder / "back.jsonl.provenance.json").exists()
