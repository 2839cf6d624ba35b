"""Progress bars in a terminal and in a notebook, whose width is not that of the terminal from which it was started."""

import io
import os
import re
import sys

import pytest

from fathomless.system.progress import Terminal

termios = pytest.importorskip("termios", reason="needs pseudo-terminals")


class Stream(io.StringIO):
    """Standard error with the file of a terminal, as in the processes of Jupyter."""

    def __init__(self, handle: int, is_terminal: bool) -> None:
        super().__init__()
        self.handle, self.is_terminal = handle, is_terminal

    def fileno(self) -> int:
        return self.handle

    def isatty(self) -> bool:
        return self.is_terminal


def drawn(columns: int, is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the last state of a bar, in a terminal of a number of columns or beside one."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (50, columns))
    stream = Stream(slave, is_terminal)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        bar = Terminal()
        bar.start(20)
        bar.advance(20, {"elbo": -123.4, "validation_log_likelihood": -1.25})
        bar.close()
    os.close(master)
    os.close(slave)
    return stream.getvalue().rstrip("\n").rpartition("\r")[2].rstrip()


@pytest.mark.parametrize("columns", [40, 230])
def test_a_notebook_shows_all_values_beside_a_short_bar(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    line = drawn(columns, False, monkeypatch)
    assert re.fullmatch(r"100%\|.{10}\| 20/20 .*ELBO=-123\.4, validation=-1\.25\]", line)


@pytest.mark.parametrize("columns", [40, 230])
def test_a_bar_has_the_width_of_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    line = drawn(columns, True, monkeypatch)
    assert 0.9 * columns < len(line) <= columns
