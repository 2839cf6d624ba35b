"""Table of all families: ranks, remaining work, and single parts."""

import json
import math
from pathlib import Path

import all_families
import numpy as np
import pytest
from family_summary import Results, fill, find_dominated, grid, rank_with_published, ranks
from scipy.stats import friedmanchisquare


def part(table: str, method: str, score: float, seconds: float, split: int = 0) -> dict[str, object]:
    scores = {"log_likelihood": score, "coverage_90": 0.9}
    return {
        "table": table,
        "split": split,
        "method": method,
        "scores": scores,
        "processor_seconds": seconds,
        "mib": 400.0,
    }


def test_ranks_are_those_of_scipy_and_the_critical_difference_that_of_demsar() -> None:
    # four methods on fourteen tables, as in section 3.2.5 of Demšar (2006): a critical difference of 1.25
    scores = np.random.default_rng(0).normal(size=(14, 4)) + np.array([0.0, 0.5, 1.0, 1.5])
    found = ranks("abcd", [str(i) for i in range(14)], scores)
    assert found.difference == pytest.approx(1.25, abs=0.005)
    assert found.p == friedmanchisquare(*scores.T).pvalue
    by_hand = [np.mean([1 + sum(row > row[j]) for row in scores]) for j in range(4)]
    assert found.mean == pytest.approx(by_hand)
    assert [found.methods[i] for i in found.order()] == [m for _, m in sorted(zip(by_hand, "abcd", strict=True))]


def test_a_method_that_failed_comes_last_and_splits_are_those_that_all_have() -> None:
    parts = [part("yacht", "depth", 1.0, 1.0), part("yacht", "depth", -9.0, 1.0, split=1)]
    parts += [part("yacht", "finite", 0.0, 1.0), {**part("yacht", "sparse", 0.0, 1.0), "failed": "no"}]
    found = Results(parts).rank(["depth", "finite", "sparse"], ["yacht"])
    assert found.mean.tolist() == [1.0, 2.0, 3.0]


def test_means_are_of_the_splits_that_all_methods_of_a_table_have() -> None:
    parts = [part("yacht", "depth", float(s), 1.0, split=s) for s in (0, 1, 2)]
    parts += [part("yacht", "finite", 0.0, 1.0, split=s) for s in (0, 2)] + [
        part("boston", "finite", 5.0, 1.0, split=1)
    ]
    found = Results([*parts, part("yacht", "gp", 0.0, 1.0)]).restrict(["depth", "finite"])
    assert found.values("yacht", "depth", "log_likelihood") == [0.0, 2.0]
    assert found.values("boston", "finite", "log_likelihood") == [5.0]
    assert list(found.cell("yacht", "gp")) == [0]


def test_a_method_is_dominated_by_what_is_better_and_cheaper_on_every_table() -> None:
    tables = ("yacht", "boston", "energy")
    parts = [part(t, m, *told) for t in tables for m, told in {"depth": (1.0, 9.0), "swag": (0.0, 10.0)}.items()]
    assert find_dominated(Results(parts)) == {"swag": ["depth"]}
    parts.append(part("spambase", "swag", 0.0, 1.0))
    parts.append(part("spambase", "depth", 1.0, 2.0))  # better, not cheaper
    assert find_dominated(Results(parts)) == {}


def test_published_columns_are_ranked_beside_those_of_here() -> None:
    tables = ("yacht", "boston")
    found = rank_with_published(Results([part(t, "depth", 9.0, 1.0) for t in tables]), tables)
    assert found.mean[found.methods.index("depth")] == 1.0
    assert len(found.methods) == 23
    assert "PBP (S1)" in found.methods


def test_what_is_in_the_file_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    done = [part("yacht", "linear", 0.0, 1.0), {**part("yacht", "gp", 0.0, 1.0), "failed": "no"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in [{"machine": "here"}, *done]))
    machines, parts = all_families.read(path)
    assert machines == [{"machine": "here"}]
    assert len(parts) == 2
    left = all_families.parts(("yacht", "energy"), (0, 1), ("linear", "gp", "depth-hmc"), parts)
    assert left[0] == ("yacht", 0, "depth-hmc")
    assert len(left) == 8


def test_a_part_has_every_score_its_seconds_and_its_memory(tmp_path: Path) -> None:
    (tmp_path / "uci_regression").mkdir()
    generator = np.random.default_rng(0)
    X = generator.normal(size=(60, 2))
    rows = np.arange(60)[None]
    y = 30.0 + 7.0 * X[:, 0] + generator.normal(size=60)
    np.savez(tmp_path / "uci_regression" / "yacht.npz", X=X, y=y, train_idx=rows[:, :50], test_idx=rows[:, 50:])
    for method in ("linear", "gp"):
        found = all_families.part("yacht", 0, method, tmp_path)
        assert {"log_likelihood", "rmse", "crps", "coverage_90", "worst"} <= set(found["scores"])
        assert found["scores"]["log_likelihood"] > -3.0
        assert found["mib"] > 10.0
        assert math.isfinite(found["processor_seconds"])
    assert "failed" in all_families.part("yacht", 0, "catboost", tmp_path) or all_families.version("catboost")


def test_a_grid_is_a_table_of_markdown() -> None:
    assert grid(["", "a"], [["b", "1"]]) == "|  | a |\n|:--|--:|\n| b | 1 |"


def test_a_page_is_filled_twice_to_the_same_text_and_keeps_its_prose() -> None:
    page = "# A\n<!-- begin b -->\n<!-- end b -->\nprose\n"
    once = fill(page, {"b": "table"})
    assert fill(once, {"b": "table"}) == once
    assert once.endswith("\nprose\n")
    with pytest.raises(ValueError, match="lacks <!-- begin c -->"):
        fill(page, {"c": "table"})
