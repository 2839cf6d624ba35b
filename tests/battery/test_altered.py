"""A saved model with an altered manifest is refused by a named error, or predicts numbers; see tests/altered.py."""

import json
import sys
from pathlib import Path
from random import Random

import pytest

from altered import altered, apart, places, used, write_altered
from battery.cases import CASES, Case, fitted, named
from toy_family import FAMILY

# fits are short on purpose, and alterations may be warned of
pytestmark = pytest.mark.filterwarnings("ignore")
#: Each family as it comes.
PLAIN = [case for case in CASES if case.plain and case.family is not FAMILY]
SHARE = 3  # alterations of each; the campaign makes thousands


@pytest.mark.skipif(sys.platform != "linux", reason="children are forked, with limits")
@pytest.mark.parametrize(**named(PLAIN))
def test_altered_models_are_refused_or_predict(case: Case, tmp_path: Path) -> None:
    X = case.table()[0][:7]
    base = fitted(case).save(tmp_path / "base")
    manifest = json.loads((base / "manifest.json").read_text())
    every = [place for place in places(manifest["meta"]) if place]
    for number in range(SHARE):
        random = Random(f"{case.name} {number}")
        meta, done = altered(manifest["meta"], random.choice(every), random)
        write_altered(base, tmp_path / "altered", {**manifest, "meta": meta})
        said, _ = apart(lambda: used(base, tmp_path / "altered", X, tmp_path / "again"), tmp_path, 30)
        assert not said.startswith("wrong"), f"{done}: {said}"
