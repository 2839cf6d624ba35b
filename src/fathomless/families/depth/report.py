"""What a page shows of a posterior over depth, and what the doctor says of it."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch

from fathomless.estimators.findings import Finding, FitSummary
from fathomless.families.depth import plots
from fathomless.families.depth.convergence import depth_drift, law_drift
from fathomless.families.depth.estimator import LayeredNetwork
from fathomless.families.depth.hamiltonian import DOUBTED, unconverged
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.depth.sampled import SampledDepth
from fathomless.plots.page import Figure, Group, StructureSection, TextTable, number, percent, picture
from fathomless.plots.traces import traces
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, StructureWeights
from fathomless.posterior.laws import FixedDepth, FreeCategorical

__all__ = ["findings", "page"]


_STILL = 0.1  # layers that the mean depth goes, back and forth, in any training that moves it at all
_ABOUT = "Depth is the number of layers; 0 is a linear model."
_WEIGHTS = (
    "A weight says how much of the prediction a depth should have, so that the mixture of all depths predicts best the "
    "rows that its networks have not seen; where rows are few, the prior stands against it. It is no probability that "
    "the network has so many layers: depths that predict alike share their weight by chance, so read the bars with "
    "their errors, and the Poisson law beside. Single: which one depth predicts best. Log density: nats per unseen row."
)
_NOTE = (
    "This posterior is an approximation by a parametric family. It follows the complexity of the data, but it need not "
    "find the best single depth, and it depends on how long and at what rate it is learned."
)
_OF_CHAINS = (
    "Weights of a network are not identified, so chains are compared by what their networks predict, at 100 of the "
    "rows and 100 random points among them. Chains near different modes need not meet: R-hat above 1.1 says that they "
    "did not, and that doubt may be told too small or too large. R-hat: 19 in 20 predictions lie below. Draws: how "
    "many independent draws they are worth. In doubt: rows whose leave-one-out density is not reliable."
)


def page(estimator: LayeredNetwork) -> StructureSection:
    """Return the posterior over depth as a picture and a table, and how it was found, if it has several."""
    structure = estimator.structure_
    if isinstance(estimator.model_, SampledDepth):
        return _sampled(estimator)
    if (found := estimator.fit_diagnostics_.structure) is not None:
        return _weighed(estimator, found)
    if len(structure.names) < 2:
        return StructureSection(about=_ABOUT)
    posterior, prior = estimator.depth_posterior_, _prior(estimator)
    bars = ", ".join(f"{depth}: {percent(p)}" for depth, p in posterior.items() if p >= 5e-3)
    figure = picture(
        "depth",
        partial(plots.depth_posterior, posterior, prior=prior),
        says=f"Bars: the posterior probability of each number of layers. {bars}. In short: {structure.summary}.",
        caption="Probability of each number of layers, before and after the data.",
    )
    rows = [(str(depth), percent(p), percent(prior[depth])) for depth, p in posterior.items()]
    table = TextTable("Probability of each depth", ("Layers", "Posterior", "Prior"), rows, text=0)
    about = f"{_ABOUT} Predictions average over all depths, weighted as below."
    return StructureSection([Group("", [figure], table)], [_path(estimator)], about, _NOTE)


def _sampled(estimator: LayeredNetwork) -> StructureSection:
    """Return the weights of the depths, the relevance of columns, and what the chains of each depth say."""
    found = estimator.fit_diagnostics_.structure
    weighed = found is not None and len(estimator.structure_.names) > 1
    groups = [_weights_of_depths(estimator, found)] if found is not None and weighed else []
    if estimator.relevance_:
        groups.append(_relevance(estimator.relevance_))
    of, score = estimator.sampling_, estimator.validation_score_
    unseen = "cannot be estimated" if score is None else f"give a new row a log-likelihood of {number(score)} nats"
    rows = [
        (
            str(depth),
            f"{len(told['chains'])}",
            f"{told['rhat']:.2f}",
            f"{told['rhat_median']:.2f}",
            f"{told['ess']:,.0f}",
            percent(told["doubtful"]),
        )
        for depth, told in of.items()
    ]
    head = ("Layers", "Chains", "R-hat", "Median", "Draws", "In doubt")
    caption = "Chains of each depth"
    drawn = [_trace(depth, told, estimator.n_iter_) for depth, told in of.items()]
    return StructureSection(
        [*groups, Group("Chains", [], TextTable(caption, head, rows, text=0))],
        drawn,
        f"{_ABOUT} Within each depth, weights, their scales and the noise are draws from their posterior. All rows "
        f"were used; leave-one-out densities {unseen}." + (f" {_WEIGHTS}" if weighed else ""),
        _OF_CHAINS,
        objective="Networks were fitted first, for the weights of the depths and for the points at which chains begin. "
        "Nothing was maximised after that: Hamiltonian chains sampled weights, scales and noise together.",
    )


def _relevance(found: dict[str, dict[str, float]]) -> Group:
    ordered = sorted(found.items(), key=lambda item: -item[1]["median"])
    told = ", ".join(f"{name} {number(one['median'])}" for name, one in ordered[:5])
    figure = picture(
        "relevance",
        partial(plots.relevance, found),
        says=f"Posterior medians and 90 % intervals of how far the weights of each column reach; the largest: {told}.",
        caption="How far the weights that leave a column reach, for columns on one scale, with 90 % intervals. Before "
        "the data it is 0.85 (0.41 to 3.12): smaller says that a column does not matter.",
        height=max(2.0, 0.6 + 0.22 * min(len(found), plots.MOST_COLUMNS)),
    )
    rows = [(name, *(number(one[key]) for key in ("median", "low", "high"))) for name, one in ordered]
    head = ("Column", "Median", "5 %", "95 %")
    return Group("Columns", [figure], TextTable("Columns, by how far their weights reach", head, rows))


def _trace(depth: int, told: dict[str, Any], sweeps: int) -> Figure:
    each, ends = told["traces"], [values[-1] for values in told["traces"] if len(values)]
    return picture(
        f"chains-{depth}",
        partial(traces, each, sweeps, sweeps // 2, [True] * len(each), "log-likelihood per row"),
        says=f"Log-likelihood of {len(each)} chains of depth {depth} over {sweeps:,} sweeps; at the end between "
        f"{number(min(ends))} and {number(max(ends))} nats per row.",
        caption=f"Chains of depth {depth}: log-likelihood per row. States are kept to the right of the line.",
    )


def _weights_of_depths(estimator: LayeredNetwork, found: StructureWeights) -> Group:
    """Return the weights of depths by out-of-fold rows, with their errors and the laws beside them."""
    prior = _prior(estimator)
    columns = (found.numbers, found.weights, found.errors, found.single, found.log_density)
    rows = [
        (str(depth), f"{percent(w)} ± {percent(e)}", percent(one), f"{density:.3f}")
        for depth, w, e, one, density in zip(*columns, strict=True)
    ]
    weights = dict(zip(found.numbers, found.weights, strict=True))
    bars = ", ".join(f"{row[0]}: {row[1]}" for row in rows)
    figure = picture(
        "depth",
        partial(
            plots.depth_posterior,
            weights,
            prior=prior,
            errors=estimator.depth_posterior_error_,
            poisson=dict(zip(found.numbers, found.poisson, strict=True)),
        ),
        says=f"Bars: the weight of each number of layers, with its standard error. {bars}. In short: "
        f"{estimator.structure_.summary}.",
        caption=f"The Poisson law that fits best has the mean {found.poisson_rate:.2f} and predicts these rows "
        f"worse by {found.poisson_loss:.1f} nats in all.",
    )
    head = ("Layers", "Weight", "Single", "Log density")
    return Group("", [figure], TextTable("Weight of each depth", head, rows, text=0))


def _weighed(estimator: LayeredNetwork, found: StructureWeights) -> StructureSection:
    """Return the weights of depths, and of kinds of network."""
    groups = [_weights_of_depths(estimator, found)]
    if estimator.kinds_:
        kinds = [
            (", ".join(f"{name} {value}" for name, value in kind["options"].items()), percent(kind["weight"]))
            for kind in estimator.kinds_
        ]
        groups.append(Group("Kinds of network", [], TextTable("Weight of each kind", ("Kind", "Weight"), kinds)))
    return StructureSection(groups, [_path(estimator)], f"{_ABOUT} {_WEIGHTS}")


def _prior(estimator: LayeredNetwork) -> dict[int, float]:
    """Return the prior probability of each depth of the posterior; of sampled depths, among these."""
    if estimator.fit_diagnostics_.sampling:
        return dict(zip(estimator.depth_posterior_, estimator.fit_diagnostics_.prior, strict=True))
    model = next(part for part in estimator.model_.modules() if isinstance(part, UnboundedDepth))
    depths = list(estimator.depth_posterior_)
    offsets = torch.tensor([depth - model.min_depth for depth in depths], dtype=torch.float64, device="cpu")
    return dict(zip(depths, model.prior.log_prob(offsets).exp().tolist(), strict=True))


def _path(estimator: LayeredNetwork) -> Figure:
    """Draw the path of the mean depth in training."""
    history = estimator.history_
    path = [row["mean_depth"] for row in history]
    return picture(
        "path",
        partial(plots.depth_path, history),
        says=f"Mean depth against the epoch. It goes from {number(path[0])} to {number(path[-1])} layers, never below "
        f"{number(min(path))} or above {number(max(path))}.",
        caption="The mean under the weights that unseen rows gave the depths, as the networks learned."
        if estimator.fit_diagnostics_.structure is not None
        else "If the mean still moves at the end, depth has not come to rest.",
    )


def findings(summary: FitSummary) -> Iterator[Finding]:
    """Say what a second pair of eyes would of a depth that was learned."""
    model = summary.estimator.model_
    if isinstance(model, SampledDepth):
        yield from _not_mixed(summary)
        return
    if cast(CrossFitDiagnostics, summary.estimator.fit_diagnostics_).structure is not None:
        yield from _at_its_bound(summary, next(part for part in model.modules() if isinstance(part, UnboundedDepth)))
    if isinstance(model, UnboundedDepth) and not isinstance(model.law, FixedDepth):
        yield from _on_its_way(summary)
        yield from list(_not_moved(summary)) or _near_its_start(summary, model)
        yield from _at_its_bound(summary, model)


def _not_mixed(summary: FitSummary) -> Iterator[Finding]:
    for text in unconverged(summary.estimator.fit_diagnostics_):
        yield Finding(
            "problem",
            "Chains have not mixed",
            text[0].upper() + text.partition("; raise")[0][1:] + ".",
            f"Raise {summary.show('weights__sweeps')} or {summary.show('weights__leapfrogs')}.",
        )
    sampling = cast(CrossFitDiagnostics, summary.estimator.fit_diagnostics_).sampling.values()
    doubtful = max(told["doubtful"] for told in sampling)
    if doubtful > DOUBTED and len(sampling) > 1 and summary.given["weights__structure_weights"] == "stacking":
        yield Finding(
            "advice",
            "Leave-one-out densities are not reliable",
            f"They weigh the depths, and k-hat is above 0.7 on up to {doubtful:.0%} of the rows, which single draws "
            "decide.",
            "Compare weights__structure_weights='fit' on unseen rows, or raise weights__sweeps and weights__states.",
        )


def _on_its_way(summary: FitSummary) -> Iterator[Finding]:
    drift = depth_drift(summary.history)
    if not drift:
        return
    pace = (
        f"Its last mean was {summary.history[-1]['mean_depth']:.1f}, and it changed almost always in one direction. At "
        f"the rate of the last half, another training would change it by {drift:+.1f} layers."
    )
    if summary.stopped:
        natural = (
            f" or set {summary.law_option('optimizer')}='natural' (now 'adam')"
            if summary.law["optimizer"] == "adam"
            else ""
        )
        yield Finding(
            "advice",
            "Depth was still on its way when the training stopped",
            f"{pace} The scores of the held-out rows no longer rose.",
            f"If the depth itself matters, raise {summary.show(summary.law_option('rate'))}{natural}.",
        )
    else:
        yield Finding(
            "problem",
            "Depth has not come to rest",
            f"{pace} What is reported says how fast it was learned, not what the data ask for.",
            f"Raise {summary.show('epochs')} or {summary.show(summary.law_option('rate'))}.",
        )


def _near_its_start(summary: FitSummary, model: UnboundedDepth) -> Iterator[Finding]:
    if summary.law["optimizer"] != "adam":
        return
    rates = {"learning_rate": summary.given["learning_rate"], "structure_rate": summary.structure_rate}
    how_far = law_drift(model.law, model.prior, summary.history, **rates)
    if how_far is not None and how_far.travel < how_far.distance:
        start, rate = summary.show(summary.law_option("initial_depth")), summary.show(summary.law_option("rate"))
        yield Finding(
            "problem" if how_far.short(summary.stopped) else "advice",
            "Depth stayed near its start",
            f"The parameter of its law could move by {how_far.travel:.2g} in this training, and {how_far.distance:.2g} "
            f"lead from its start to the mean of the prior, {how_far.prior_mean:.2g}: the mean depth of "
            f"{summary.estimator.structure_.statistics['mean_depth']:.1f} depends more on its start than on the data.",
            f"If the depth itself matters, compare with another start, {start}, or raise {rate}.",
        )


def _not_moved(summary: FitSummary) -> Iterator[Finding]:
    depths = [row["mean_depth"] for row in summary.history]
    path = sum(abs(b - a) for a, b in itertools.pairwise(depths))
    if path < _STILL:
        yield Finding(
            "problem",
            "Depth has not moved",
            f"Its mean stayed within {path:.2g} layers of {depths[0]:.2g}, where it began; the data had no say in it.",
            f"Raise {summary.show(summary.law_option('rate'))} or {summary.show('epochs')}.",
        )


def _at_its_bound(summary: FitSummary, model: UnboundedDepth) -> Iterator[Finding]:
    posterior = model.depth_posterior()
    likely = max(posterior, key=lambda depth: posterior[depth])
    ends = [] if model.max_depth is None else [(model.max_depth, f"Raise {summary.show('max_depth')}.")]
    if isinstance(model.law, FreeCategorical):
        end = model.min_depth + model.law.size - 1
        ends.append((end, f"Choose another depth_law (now one that ends at {end}), such as 'poisson'."))
    end, remedy = min(ends, default=(-1, ""))
    if likely == end and posterior[end] > 0.3:
        yield Finding(
            "problem",
            "Depth is at its upper bound",
            f"{posterior[end]:.0%} of its posterior lie on {end}, the greatest depth that is allowed; the data may ask "
            "for more.",
            remedy,
        )
    least = posterior.get(model.min_depth, 0.0)
    if model.min_depth > 0 and least > 0.9:
        yield Finding(
            "advice",
            "Depth is at its lower bound",
            f"{least:.0%} of its posterior lie on {model.min_depth}, the least depth that is allowed.",
            f"Lower {summary.show('min_depth')}.",
        )
