"""What is shown while training: plain lines where no terminal is, nothing on stdout."""

import pytest

from transduce.training.progress import Display

ROW = {"loss": 2.5, "learning_rate": 1e-3, "target_tokens_per_second": 12345.6}


def test_plain_lines_go_to_stderr_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    with Display(steps=100, quiet_seconds=0.0) as display:
        display.update(10, ROW)
        display.show_score("wer", 42.0)
        display.update(20, ROW)
        display.quiet_seconds = 1000.0
        display.update(30, ROW)
        display.say("[a] line :smile: as it is")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "update 10 of 100  loss 2.500  rate 1.00e-03  12,346 tokens/s",
        "update 20 of 100  wer 42.00  loss 2.500  rate 1.00e-03  12,346 tokens/s",
        "[a] line :smile: as it is",
    ]
