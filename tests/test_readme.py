"""README: its first example prints what is shown below it, and its links and pictures exist."""

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest

HOME = Path(__file__).parent.parent
README = (HOME / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("full_recalibration")
def test_the_first_example_of_readme_prints_the_output_shown_below_it() -> None:
    code, output = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.S).groups()  # type: ignore[union-attr]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README", "exec"), {"__name__": "example"})
    words, numbers = _parts(printed.getvalue())
    shown_words, shown_numbers = _parts(output)
    assert words == shown_words
    # processors round differently, and training amplifies it: between two of them, predictions differed by 12 %
    np.testing.assert_allclose(numbers, shown_numbers, rtol=0.2, atol=0.1)


def _parts(text: str) -> tuple[list[str], list[float]]:
    """Return the words and the numbers of a text."""
    pattern = r"\d+\.?\d*"
    return re.sub(pattern, " ", text).split(), [float(number) for number in re.findall(pattern, text)]


def test_links_and_pictures_of_readme_exist() -> None:
    targets = re.findall(r"\]\(([^)#\s]+)\)", README)
    assert [target for target in targets if "://" not in target and not (HOME / target).exists()] == []
    assert any(target.endswith(".png") for target in targets)
