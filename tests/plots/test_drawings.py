"""What is drawn is what was given, and what cannot be drawn is refused."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from scipy import stats

from fathomless import plots
from fathomless.families.depth import plots as depth_plots
from fathomless.plots import canvas
from fathomless.posterior.hurdle import HurdlePredictive
from fathomless.posterior.lattice import LatticePredictive
from fathomless.system.errors import DataError
from pictures import MEAN, PARTS, Y, classes, drawn, fresh, history, normal

pytestmark = pytest.mark.usefixtures("closed")


def bars(ax):
    """Middle and height of each bar, one after the other."""
    found = [(p.get_x() + p.get_width() / 2, p.get_height()) for container in ax.containers for p in container]
    return [number for bar in sorted(found) for number in bar]


def lines(ax) -> dict:
    return {line.get_label(): np.array(line.get_data()) for line in ax.lines}


def band(ax, label: str):
    """Corners of a band as {x: (low, high)}."""
    (found,) = (c for c in ax.collections if c.get_label() == label)
    corners: dict[float, list[float]] = {}
    for x, y in found.get_paths()[0].vertices.tolist():
        corners.setdefault(x, []).append(y)
    return {x: (min(ys), max(ys)) for x, ys in corners.items()}


def test_depth_posterior_draws_the_probabilities():
    ax = depth_plots.depth_posterior({4: 0.5, 2: 0.2, 3: 0.3}, prior={5: 0.1, 1: 0.4}, ax=fresh())
    assert bars(ax) == pytest.approx([2, 0.2, 3, 0.3, 4, 0.5])
    assert lines(ax)["prior"].tolist() == [[1, 5], [0.4, 0.1]]
    assert ax.get_xlim()[0] < 1
    assert ax.get_xlim()[1] > 5


@pytest.mark.parametrize("name", ["depth_posterior", "depths 0 to 40", "one depth", "two depths"])
def test_depths_have_whole_ticks(name):
    ax, _ = drawn(name)
    assert (ax.get_xticks() == np.round(ax.get_xticks())).all()


@pytest.mark.parametrize("name", ["depth_path", "depth after one epoch", "depth at rest", "spread of the depth"])
def test_layers_and_epochs_have_whole_ticks(name):
    ax, _ = drawn(name)
    ticks = np.concatenate([ax.get_xticks(), ax.get_yticks()])
    assert (ticks == np.round(ticks)).all()


def test_depth_path_draws_the_history():
    rows = [{"epoch": 2, "mean_depth": 1.5, "deepest": 3.0, "std_depth": 0.5}, {"epoch": 4, "mean_depth": 2.5}]
    ax = depth_plots.depth_path(rows, ax=fresh())
    assert lines(ax)["mean"].tolist() == [[2, 4], [1.5, 2.5]]
    np.testing.assert_array_equal(lines(ax)["deepest network"], [[2, 4], [3.0, np.nan]])
    assert band(ax, "± 1 sd")[2.0] == (1.0, 2.0)
    assert set(lines(depth_plots.depth_path(rows[1:], ax=fresh()))) == {"mean"}


def test_learning_curves_draw_the_bound_and_its_parts():
    rows = history(30)
    epoch, elbo, fit, weights, depth, valid = (
        np.array([row[name] for row in rows])
        for name in (
            "epoch",
            "elbo",
            "log_likelihood",
            "divergence_weights",
            "divergence_depth",
            "validation_log_likelihood",
        )
    )
    for scale, ax in (
        (1.0, plots.learning_curves(rows, ax=fresh())),
        (500.0, plots.learning_curves(rows, rows=500, ax=fresh())),
    ):
        np.testing.assert_allclose(lines(ax)["log-likelihood"], [epoch, fit / scale])
        np.testing.assert_allclose(lines(ax)["ELBO"], [epoch, elbo / scale])
        for label, low, high in (
            ("KL of depth", fit - depth, fit),
            ("KL of weights", fit - depth - weights, fit - depth),
        ):
            drawn_band = band(ax, label)
            np.testing.assert_allclose([drawn_band[e] for e in epoch], np.stack([low, high], 1) / scale)
        np.testing.assert_allclose([band(ax, "KL of weights")[e][0] for e in epoch], elbo / scale)
    np.testing.assert_allclose(lines(ax)["validation"], [epoch, valid])


def test_validation_rows_are_drawn_only_on_their_own_scale():
    assert "validation" not in lines(plots.learning_curves(history(3), ax=fresh()))
    assert "validation" not in lines(plots.learning_curves(history(3, valid=False), rows=9, ax=fresh()))
    gap = [*history(2), *history(3, valid=False)[2:]]
    assert np.isnan(lines(plots.learning_curves(gap, rows=9, ax=fresh()))["validation"][1]).tolist() == [
        False,
        False,
        True,
    ]


def test_only_the_first_tenth_of_a_history_may_leave_the_scale():
    rows = history(100)
    ax = plots.learning_curves(rows, ax=fresh())
    low, high = ax.get_ylim()
    late = [row[name] for row in rows[10:] for name in ("elbo", "log_likelihood")]
    assert low < min(late) < max(late) < high
    assert rows[0]["elbo"] < low


def test_reliability_draws_accuracy_counts_and_wilson_intervals():
    confidence, hits, count = np.array([0.3, 0.55, 0.9]), np.array([0, 9, 80]), np.array([4, 16, 80])
    ax = plots.reliability(confidence, hits / count, count, ax=fresh())
    assert lines(ax)["accuracy"].tolist() == [confidence.tolist(), (hits / count).tolist()]
    assert bars(ax) == pytest.approx(np.stack([confidence, count / 100], 1).ravel())
    for segment, x, k, n in zip(ax.collections[0].get_segments(), confidence, hits, count, strict=True):
        expected = stats.binomtest(int(k), int(n)).proportion_ci(0.95, "wilson")
        np.testing.assert_allclose(segment, [[x, expected.low], [x, expected.high]], atol=1e-7)
    assert lines(ax)["calibrated"].tolist() == [[0, 1], [0, 1]]


def span(ax) -> tuple[float, float]:
    (found,) = (p for p in ax.patches if "calibrated" in str(p.get_label()))
    return found.get_y(), found.get_y() + found.get_height()


@settings(max_examples=15)
@given(
    counts=st.lists(st.integers(0, 60), min_size=2, max_size=25).filter(any), level=st.sampled_from([0.5, 0.9, 0.95])
)
def test_the_band_of_a_pit_histogram_holds_binomial_quantiles(counts, level):
    n, bins = sum(counts), len(counts)
    ax = plots.pit_histogram(counts, level=level, ax=fresh())
    low, high = stats.binom.ppf([0.5 - level / 2, 0.5 + level / 2], n, 1 / bins)
    assert span(ax) == pytest.approx((low / n, high / n))
    assert bars(ax) == pytest.approx(
        [value for i, count in enumerate(counts) for value in ((i + 0.5) / bins, count / n)]
    )
    for container in ax.containers:
        for bar in container:
            inside = low <= round(bar.get_height() * n) <= high
            assert to_hex(bar.get_facecolor()) == (canvas.BLUE if inside else canvas.RUST)


@pytest.mark.parametrize("rows", [10**3, 10**6, 10**9])
def test_the_band_is_right_for_very_many_rows(rows):
    ax = plots.pit_histogram([rows // 20] * 20, ax=fresh())
    expected = stats.binom.ppf([0.025, 0.975], rows, 0.05) / rows
    assert span(ax) == pytest.approx(expected, abs=0.5 / rows)


def test_coverage_draws_shares_sorted_by_level_and_their_band():
    ax = plots.coverage([0.9, 0.5], [0.8, 0.6], rows=40, ax=fresh())
    assert lines(ax)["observed"].tolist() == [[0.5, 0.9], [0.6, 0.8]]
    drawn_band = band(ax, "95 % if calibrated")
    for level in (0.5, 0.9):
        assert drawn_band[level] == pytest.approx(stats.binom.ppf([0.025, 0.975], 40, level) / 40)
    assert drawn_band[0.0] == (0.0, 0.0)
    assert drawn_band[1.0] == (1.0, 1.0)
    assert not plots.coverage([0.5], [0.6], ax=fresh()).collections


def test_intervals_are_sorted_by_their_mean_and_coloured_by_what_they_hold():
    y, mean, low, high = [1.0, 5.0, 2.0], [3.0, 1.0, 2.0], [2.0, 0.0, 1.0], [4.0, 2.0, 2.0]
    ax = plots.intervals(y, mean, low, high, target="price ($x$)", ax=fresh())
    assert lines(ax)["inside 33.3 %"].tolist() == [[1], [2.0]]  # the ends belong to the interval
    assert lines(ax)["outside 66.7 %"].tolist() == [[0, 2], [5.0, 1.0]]
    assert lines(ax)["mean"].tolist() == [[0, 1, 2], [1.0, 2.0, 3.0]]
    segments = [np.array(s).tolist() for c in ax.collections for s in c.get_segments()]
    assert segments == [[[1, 1.0], [1, 2.0]], [[0, 0.0], [0, 2.0]], [[2, 2.0], [2, 4.0]]]
    assert ax.get_ylabel() == "price ($x$)"
    assert not ax.yaxis.label.get_parse_math()


def test_of_many_intervals_100_are_drawn_evenly_spaced():
    ax, _ = drawn("intervals")
    shown = lines(ax)["mean"][1]
    ranks = np.searchsorted(np.sort(MEAN), shown)
    assert len(shown) == 100
    assert (ranks[0], ranks[-1]) == (0, 1999)
    assert set(np.diff(ranks)) == {20, 21}
    share = 100 * np.mean(np.abs(Y - MEAN) <= 0.6)
    assert f"inside {share:.3g} %" in lines(ax)


def test_functions_draw_bands_between_paired_quantiles():
    x = [2.0, 1.0, 3.0]
    quantiles = [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]
    ax = plots.functions(x, quantiles, [0.1, 0.5, 0.8], X=[1.5], y=[2.5], feature="age", ax=fresh())
    assert band(ax, "70 %") == {1.0: (1.0, 5.0), 2.0: (0.0, 5.0), 3.0: (2.0, 5.0)}
    assert lines(ax)["median"].tolist() == [[1, 2, 3], [2, 1, 3]]
    assert lines(ax)["observed"].tolist() == [[1.5], [2.5]]
    assert ax.get_xlabel() == "age"
    assert set(lines(plots.functions(x, quantiles[:1], [0.3], ax=fresh()))) == {"30 % quantile"}


def test_confusion_draws_every_cell():
    counts = np.array([[50, 0, 0], [1, 40, 9], [0, 30, 120]])
    ax = plots.confusion(counts, ["a", "b_$c$", "d"], ax=fresh())
    numbers = {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in ax.texts}
    assert numbers == {(i, j): str(n) for (i, j), n in np.ndenumerate(counts) if n}
    opacity = {}
    for bar in ax.containers[0]:
        i, j = round(bar.get_y() + bar.get_height() / 2), round(bar.get_x() + bar.get_width() / 2)
        assert to_hex(bar.get_facecolor()) == (canvas.BLUE if i == j else canvas.RUST)
        opacity[i, j] = bar.get_facecolor()[3]
    assert sorted(opacity, key=opacity.get) == [(1, 0), (1, 2), (2, 1), (1, 1), (2, 2), (0, 0)]  # by share of the row
    assert max(opacity.values()) < 0.5  # numbers stay readable on it
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b_$c$", "d"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_numbers_are_left_out_of_many_classes_and_shortened_where_they_do_not_fit():
    assert not drawn("26 classes")[0].texts
    ax = plots.confusion(np.diag([1_234_567, 98_765, 999_999, 12, 1000, 5, 6, 7]), "abcdefgh", ax=fresh())
    assert [t.get_text() for t in ax.texts] == ["1.23M", "98.8k", "1M", "12", "1000", "5", "6", "7"]


def test_long_names_keep_both_ends():
    ax, _ = drawn("long names of classes")
    names = [t.get_text() for t in ax.get_yticklabels()]
    assert names == [f"customer …region {i}" for i in range(4)]


def stairs(ax) -> dict:
    return {p.get_label(): p.get_data() for p in ax.patches}


def test_uncertainty_is_split_into_shares_of_rows_sorted_by_total():
    ax = plots.uncertainty_split([3.0, 1.0, 0.0], [3.0, 0.0, 0.0], [6.0, 1.0, 0.0], ax=fresh())
    drawn_parts = stairs(ax)
    np.testing.assert_allclose(drawn_parts["noise"].edges, [0, 1 / 3, 2 / 3, 1])
    for name, low, high in (
        ("noise", [0, 0, 0], [0, 0.5, 0.25]),
        ("weights", [0, 0.5, 0.25], [0, 0.5, 0.5]),
        ("structure", [0, 0.5, 0.5], [0, 1, 1]),
    ):
        np.testing.assert_allclose(drawn_parts[name].baseline, low)
        np.testing.assert_allclose(drawn_parts[name].values, high)


@pytest.mark.parametrize("rows", [100, 101, 2000])
def test_many_rows_are_split_in_100_groups(rows):
    parts = PARTS[:, :rows]
    drawn_parts = stairs(plots.uncertainty_split(*parts, ax=fresh()))
    order = np.argsort(parts.sum(0))
    edges = np.rint(drawn_parts["noise"].edges * rows).astype(int)
    assert len(edges) == 101
    for i, (start, end) in enumerate(itertools.pairwise(edges)):
        sums = parts[:, order[start:end]].sum(1)
        expected = np.cumsum(sums / sums.sum())
        np.testing.assert_allclose([drawn_parts[k].values[i] for k in ("noise", "weights", "structure")], expected)


def test_uncertainty_may_be_negative_by_rounding_alone():
    ax = plots.uncertainty_split([1.0, 1.0], [-1e-12, 0.5], [0.0, 0.5], ax=fresh())
    np.testing.assert_allclose(stairs(ax)["weights"].values, [1.0, 0.75])
    with pytest.raises(DataError, match=r"weights has the value -0\.1"):
        plots.uncertainty_split([1.0], [-0.1], [0.0], ax=fresh())


def test_predicted_against_observed_draws_every_row_on_equal_scales():
    ax = plots.predicted_against_observed([1.0, 4.0], [2.0, 3.0], target="price", ax=fresh())
    assert lines(ax)["rows"].tolist() == [[2.0, 3.0], [1.0, 4.0]]
    assert lines(ax)["equal"].tolist() == [[1.0, 4.0], [1.0, 4.0]]
    assert ax.get_xlim() == ax.get_ylim()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted mean of price", "observed price")


def test_rows_far_out_are_counted_not_shown():
    y = np.append(np.linspace(0.0, 1.0, 1000), [50.0, -80.0])
    ax = plots.predicted_against_observed(y, np.append(y[:1000], [0.5, 0.5]), ax=fresh())
    assert "rows (2 beyond the edges)" in lines(ax)
    assert ax.get_xlim()[1] < 2.0
    few = plots.predicted_against_observed(y[-20:], y[-20:], ax=fresh())
    assert few.get_xlim()[0] < -80.0


def curves(ax) -> list:
    return [np.array(line.get_data()) for line in ax.lines if len(line.get_xdata()) > 100]


@pytest.mark.parametrize("several", [False, True])
def test_predictive_densities_share_a_scale_and_show_their_intervals(several):
    loc, scale, y = np.array([0.0, 3.0, 1.0]), np.array([1.0, 2.0, 0.5]), np.array([9.0, 2.0, -1.0])
    dist, more = normal(loc, scale), {}
    if several:
        dist, more = normal(np.stack([loc + 7, loc], 1), np.stack([scale, scale], 1)), {"column": 1}
        y = np.stack([y + 7, y], 1)
    ax = plots.predictive(dist, [2, 1], y=y, level=0.8, names=["first", "second"], ax=fresh(), **more)
    highest = stats.norm.pdf(0) / 0.5
    for row, ((x, height), r) in enumerate(zip(curves(ax), [2, 1], strict=True)):
        expected = 0.75 * stats.norm.pdf(x, loc[r], scale[r]) / highest
        np.testing.assert_allclose(height + row, expected, rtol=1e-4, atol=1e-12)
        assert x.min() <= ax.get_xlim()[0]
        assert x.max() >= ax.get_xlim()[1]
    filled = [c for c in ax.collections if c.get_alpha() == 0.4]
    for collection, r in zip(filled, [2, 1], strict=True):
        corners = collection.get_paths()[0].vertices[:, 0]
        assert (corners.min(), corners.max()) == pytest.approx(stats.norm.interval(0.8, loc[r], scale[r]))
    assert lines(ax)["observed"].tolist() == [[-1.0, 2.0], [0.0, -1.0]]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["first", "second"]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["density", "80 % interval", "observed"]


def test_predictive_probabilities_of_counts_are_bars_that_are_dark_inside_the_interval():
    ax = plots.predictive(LatticePredictive.of(normal([3.2], [1.5]), 1.0), target="goals", ax=fresh())
    law = stats.norm(3.2, 1.5)
    tops = {round(p.get_x() + p.get_width() / 2): p for container in ax.containers for p in container}
    mass = {k: law.cdf(k + 0.5) - law.cdf(k - 0.5) for k in tops}
    assert {k: p.get_height() for k, p in tops.items()} == pytest.approx(
        {k: 0.75 * p / max(mass.values()) for k, p in mass.items()}
    )
    assert sum(mass.values()) > 0.99
    low, high = (round(law.ppf(q)) for q in (0.05, 0.95))
    assert {k for k, p in tops.items() if p.get_alpha() > 0.5} == set(range(low, high + 1))
    assert ax.get_xlabel() == "goals"
    assert (ax.get_xticks() == np.round(ax.get_xticks())).all()


def test_many_points_of_a_lattice_are_drawn_as_a_line():
    ax, _ = drawn("counts of thousands")
    assert not ax.containers
    ((x, height),) = curves(ax)
    assert (x == np.rint(x)).all()
    np.testing.assert_allclose(height, 0.75 * np.exp(-0.5 * ((x - 3000) / 500) ** 2), atol=1e-5)


def test_predictive_probabilities_of_single_values_are_lines_beside_the_density():
    dist = HurdlePredictive.of(normal([3.0, 5.0], [1.0, 1.0]), [0.0, 8.0], np.log([[0.6, 0.3], [0.3, 0.5], [0.1, 0.2]]))
    ax = plots.predictive(dist, ax=fresh())
    (spikes,) = (c for c in ax.collections if c.get_label() == "probability of a value")
    ends = {(x, base): top for (x, base), (_, top) in (np.array(s).tolist() for s in spikes.get_segments())}
    assert ends == pytest.approx(
        {(0, 0): 0.75 * 0.3, (0, -1): 0.75 * 0.5 - 1, (8, 0): 0.75 * 0.1, (8, -1): 0.75 * 0.2 - 1}
    )
    (x, height), _ = curves(ax)
    np.testing.assert_allclose(height, 0.75 * stats.norm.pdf(x, 3) / stats.norm.pdf(0), rtol=1e-4)


def test_predictive_probabilities_of_classes_are_bars_with_the_observed_class():
    probs = [[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]
    ax = plots.predictive(classes(probs, ["a", "b_$c$", "d"]), y=np.array(["b_$c$", "a"]), ax=fresh())
    found = {}
    for container in ax.containers:
        for bar in container:
            place = (round(-bar.get_y()), round(bar.get_x() + 0.4))
            found[place] = bar.get_height(), to_hex(bar.get_facecolor())
    assert {place: height for place, (height, _) in found.items()} == pytest.approx(
        {place: 0.75 * p for place, p in np.ndenumerate(probs)}
    )
    assert {place for place, (_, colour) in found.items() if colour == canvas.RUST} == {(0, 1), (1, 0)}
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b_$c$", "d"]
    assert [t.get_text() for t in ax.texts] == ["0.10", "0.20", "0.70", "0.50", "0.30", "0.20"]


def test_of_many_classes_the_most_probable_and_the_observed_are_drawn():
    probs = np.full((1, 30), 0.2 / 18)
    probs[0, 9:21] = 0.8 / 12
    ax = plots.predictive(classes(probs, np.arange(30)), y=[2], ax=fresh())
    assert [t.get_text() for t in ax.get_xticklabels()] == ["2", *map(str, range(9, 21))]
    assert ax.get_xlabel() == "class of y (17 others are not shown)"


def test_large_numbers_have_short_ticks():
    ax, _ = drawn("large numbers")
    assert any(label.get_text().endswith("M") for label in ax.get_yticklabels())
    assert not ax.yaxis.get_offset_text().get_text()


def test_the_legend_of_widths_has_the_coverage_of_quarters():
    mean = np.arange(40.0)
    y = np.where(mean < 10, mean + 3.0, mean)  # the first quarter is outside
    ax = plots.interval_widths(y, mean, mean - 1.0, mean + 1.0, ax=fresh())
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    quarters = sorted(label for label in labels if "±" in label)
    assert quarters == ["1: 0 ± 9.5 % of 10", *(f"{k}: 100 ± 9.5 % of 10" for k in (2, 3, 4))]
    ax = plots.interval_widths(y, mean, mean - 1.0, mean + 1.0, quarters=[(900, 0.95)] * 4, ax=fresh())
    assert "4: 95 ± 1 % of 900" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_what_is_given_stays_as_it_is():
    y, mean = Y.copy(), MEAN.copy()
    plots.intervals(y, mean, mean - 1, mean + 1, ax=fresh())
    plots.predicted_against_observed(y, mean, ax=fresh())
    assert np.array_equal(y, Y)
    assert np.array_equal(mean, MEAN)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.traces([[]], 9, 3, [True]), "1 chains were given"),
        (lambda: plots.traces([["a"]], 9, 3, [True]), "not a number"),
        (lambda: depth_plots.relevance({}), "median has shape"),
        (lambda: depth_plots.relevance({"a": {"median": 1.0, "low": -1.0, "high": 2.0}}), "low has values"),
        (lambda: depth_plots.depth_posterior({}), "depths of the posterior has shape"),
        (lambda: depth_plots.depth_posterior({1: 0.5}), "sum to 0.5; whole depths and a sum of 1 are needed"),
        (lambda: depth_plots.depth_posterior({1: 1.5, 2: -0.5}), "values from -0.5 to 1.5"),
        (lambda: depth_plots.depth_posterior({1.5: 1.0}), "depths from 1.5"),
        (lambda: depth_plots.depth_posterior({1: 1.0}, prior={1: 0.7, 2: 0.7}), "at most 1"),
        (lambda: depth_plots.depth_path([]), "the history has no rows"),
        (lambda: depth_plots.depth_path([{"epoch": 1}]), "1 rows of the history have no 'mean_depth'"),
        (lambda: depth_plots.depth_path([{"epoch": 1, "mean_depth": np.nan}]), "1 NaN or infinite"),
        (lambda: plots.learning_curves([{"epoch": 1, "elbo": "high", "log_likelihood": 1.0}]), "not a number"),
        (lambda: plots.learning_curves(history(2), rows=0), "rows=0 was given"),
        (lambda: plots.learning_curves([history(1)[0] | {"divergence_depth": "high"}]), "divergence_depth has a value"),
        (lambda: plots.reliability([], [], []), r"confidence has shape \(0,\)"),
        (lambda: plots.reliability([0.5], [1.5], [1]), "accuracy has values from 1.5"),
        (lambda: plots.reliability([0.5], [0.5], [0.0]), "count has the sum 0; numbers of rows, or sums of"),
        (lambda: plots.reliability([0.5, 0.6], [0.5, 0.6], [1, 0]), "1 empty bins"),
        (lambda: plots.reliability([0.5, 0.6], [0.5], [1]), r"confidence \(2,\), accuracy \(1,\)"),
        (lambda: plots.pit_histogram([0, 0]), "not all 0"),
        (lambda: plots.pit_histogram([3, -1]), "values from -1 to 3"),
        (lambda: plots.pit_histogram([[1, 2]]), "1 dimensions"),
        (lambda: plots.pit_histogram([1, 2], level=1.0), "level=1.0"),
        (lambda: plots.coverage([0.5], [0.5, 0.6]), "different shapes"),
        (lambda: plots.coverage([5.0], [0.5]), "levels has values from 5"),
        (lambda: plots.coverage([0.5], [0.5], rows=0), "rows=0"),
        (lambda: plots.intervals([1.0], [1.0], [2.0], [0.0]), "1 intervals have low above high"),
        (lambda: plots.intervals([1.0], [1.0, 2.0], [0.0], [2.0]), "different shapes"),
        (lambda: plots.intervals([np.inf], [1.0], [0.0], [2.0]), "y has 1 NaN or infinite"),
        (lambda: plots.interval_widths([1.0], [1.0], [2.0], [0.0]), "1 intervals have low above high"),
        (lambda: plots.interval_widths([1.0], [1.0], [0.0], [2.0], level=1.0), "level=1.0"),
        (lambda: plots.interval_widths([1.0], [1.0], [0.0], [2.0], quarters=[(1, 0.9)]), "four pairs"),
        (lambda: plots.functions([1.0], [[1.0, 2.0]], [0.5]), r"quantiles have shape \(1, 2\).*\(1, 1\)"),
        (lambda: plots.functions([1.0], [[1.0], [2.0]], [0.9, 0.1]), "decrease"),
        (lambda: plots.functions([1.0], [[2.0], [1.0]], [0.1, 0.9]), "decrease"),
        (lambda: plots.functions([1.0], [[2.0]], [0.5], X=[1.0]), "give both or neither"),
        (lambda: plots.functions([1.0], [[2.0]], [0.5], X=[1.0], y=[1.0, 2.0]), "different shapes"),
        (lambda: plots.confusion([[1, 2]], ["a", "b"]), r"counts have shape \(1, 2\) for 2 labels"),
        (lambda: plots.confusion([[0]], ["a"]), "not all 0"),
        (lambda: plots.uncertainty_split([1.0], [1.0], [1.0, 2.0]), "different shapes"),
        (lambda: plots.predicted_against_observed([1.0], [1.0, 2.0]), "different shapes"),
        (lambda: plots.predicted_against_observed("high", "low"), "not a number"),
        (lambda: plots.predictive([0.5, 0.5]), "dist is a list; allowed are distributions"),
        (lambda: plots.predictive(normal([0], [1]), [1]), "rows has 1 to 1; the distribution has the rows 0 to 0"),
        (lambda: plots.predictive(normal([0], [1]), [-1]), "rows has -1 to -1"),
        (lambda: plots.predictive(normal([0], [1]), [0.0]), "1 to 12 numbers of rows"),
        (lambda: plots.predictive(normal([0], [1]), [0] * 13), "1 to 12 numbers of rows"),
        (lambda: plots.predictive(normal([0], [1]), names=["a", "b"]), "2 names were given for 1 rows"),
        (lambda: plots.predictive(normal([0], [1]), level=1.0), "level=1.0"),
        (lambda: plots.predictive(normal([0], [1]), y=[1.0, 2.0]), r"y has shape \(2,\) for 1 rows"),
        (lambda: plots.predictive(normal([0], [1]), y=["high"]), "not a number"),
        (lambda: plots.predictive(normal([0], [1]), column=1), "targets 0 to 0"),
        (lambda: plots.predictive(normal([[0, 1]], [[1, 1]]), y=[[1, 2, 3]]), "y has 3 columns; .* 2 targets"),
        (lambda: plots.predictive(classes([[1.0]], ["a"]), y=["b"]), "y has the value 'b'; allowed are the classes a"),
    ],
)
def test_bad_input_is_refused_before_a_figure_opens(call, message):
    with pytest.raises(DataError, match=message):
        call()
    assert not plt.get_fignums()
