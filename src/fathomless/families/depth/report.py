"""Page section and findings of a posterior over depth."""

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

import torch

from fathomless.estimators.findings import Finding, FitSummary
from fathomless.families.depth import plots
from fathomless.families.depth.convergence import depth_drift, law_drift
from fathomless.families.depth.estimator import LayeredNetwork
from fathomless.families.depth.hamiltonian import UNRELIABLE_SHARE, describe_nonconvergence
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.depth.sampled import SampledDepth
from fathomless.plots.page import Figure, Group, StructureSection, TextTable, number, percent, picture
from fathomless.plots.traces import traces
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, StructureWeights
from fathomless.posterior.laws import FixedDepth, FreeCategorical

__all__ = ["findings", "page"]


_STILL = 0.1  # layers: total variation of the mean depth below which the posterior did not change
_ABOUT = "Depth is the number of layers; 0 is a linear model."
_WEIGHTS = (
    "The weights are stacking weights: the mixture of all depths with these weights has the best log-likelihood on "
    "out-of-fold rows, penalised by the prior. A weight is not the probability of a number of layers. Depths with "
    "similar predictions share their weight at random, so compare the weights with their standard errors and with the "
    "Poisson law. Single: pseudo-BMA+ weight of each depth used alone. Log density: nats per out-of-fold row."
)
_NOTE = (
    "This posterior is an approximation by a parametric family. It follows the complexity of the data, but it need not "
    "find the best single depth. It also depends on the length of the training and on the learning rate of the law."
)
_CHAINS = (
    "The weights of a network are not identified, so chains are compared by their predictions at 100 of the rows and "
    "at 100 random points in their range. R-hat above 1.1 means that chains have not mixed, for instance as they are "
    "near different modes; the predictive uncertainty may then be too small or too large. R-hat: 95th percentile over "
    "predictions; Median: their median. ESS: median effective sample size. k-hat > 0.7: share of rows with an "
    "unreliable leave-one-out density."
)


def page(estimator: LayeredNetwork) -> StructureSection:
    """Return the posterior over depth as a picture and a table, and the path of the mean depth in training."""
    structure = estimator.structure_
    if isinstance(estimator.model_, SampledDepth):
        return _sampling_section(estimator)
    stacked = estimator.fit_diagnostics_.structure
    if stacked is not None:
        return _weights_section(estimator, stacked)
    if len(structure.names) < 2:
        return StructureSection(about=_ABOUT)
    posterior = estimator.depth_posterior_
    prior = _prior(estimator)
    bars = ", ".join(f"{depth}: {percent(p)}" for depth, p in posterior.items() if p >= 5e-3)
    figure = picture(
        "depth",
        partial(plots.depth_posterior, posterior, prior=prior),
        says=f"Posterior probability of each number of layers as bars. {bars}. Summary: {structure.summary}.",
        caption="Prior and posterior probability of each number of layers.",
    )
    rows = [(str(depth), percent(p), percent(prior[depth])) for depth, p in posterior.items()]
    table = TextTable("Probability of each depth", ("Layers", "Posterior", "Prior"), rows, text=0)
    about = f"{_ABOUT} Predictions are averages over all depths with the weights below."
    return StructureSection([Group("", [figure], table)], [_path_figure(estimator)], about, _NOTE)


def _sampling_section(estimator: LayeredNetwork) -> StructureSection:
    """Return the weights of the depths, the relevance of the columns and the diagnostics of the chains."""
    stacked = estimator.fit_diagnostics_.structure
    several = stacked is not None and len(estimator.structure_.names) > 1
    groups = [_weights_group(estimator, stacked)] if stacked is not None and several else []
    if estimator.relevance_:
        groups.append(_relevance_group(estimator.relevance_))
    score = estimator.validation_score_
    if score is None:
        loo = "The leave-one-out log-likelihood cannot be estimated"
    else:
        loo = f"Leave-one-out log-likelihood: {number(score)} nats per row"
    rows = [
        (
            str(depth),
            f"{len(record['chains'])}",
            f"{record['rhat']:.2f}",
            f"{record['rhat_median']:.2f}",
            f"{record['ess']:,.0f}",
            percent(record["doubtful"]),
        )
        for depth, record in estimator.sampling_.items()
    ]
    head = ("Layers", "Chains", "R-hat", "Median", "ESS", "k-hat > 0.7")
    caption = "Chains of each depth"
    figures = [_trace_figure(depth, record, estimator.n_iter_) for depth, record in estimator.sampling_.items()]
    return StructureSection(
        [*groups, Group("Chains", [], TextTable(caption, head, rows, text=0))],
        figures,
        f"{_ABOUT} Within each depth, the weights, their scales and the noise are draws from their joint posterior "
        f"given all rows. {loo}." + (f" {_WEIGHTS}" if several else ""),
        _CHAINS,
        objective="Networks were fitted first; they give the weights of the depths and the initial states of the "
        "chains. Hamiltonian chains then sampled weights, scales and noise jointly, without further optimisation.",
    )


def _relevance_group(relevance: dict[str, dict[str, float]]) -> Group:
    ordered = sorted(relevance.items(), key=lambda item: -item[1]["median"])
    largest = ", ".join(f"{name} {number(interval['median'])}" for name, interval in ordered[:5])
    figure = picture(
        "relevance",
        partial(plots.relevance, relevance),
        says="Root mean square of the first-layer weights of each column, posterior medians and 90 % intervals; the "
        f"largest medians: {largest}.",
        caption="Root mean square of the first-layer weights of each standardised column, with 90 % credible "
        "intervals. The prior median is 0.85 (0.41 to 3.12); a column far below it has little influence.",
        height=max(2.0, 0.6 + 0.22 * min(len(relevance), plots.MOST_COLUMNS)),
    )
    rows = [(name, *(number(interval[key]) for key in ("median", "low", "high"))) for name, interval in ordered]
    head = ("Column", "Median", "5 %", "95 %")
    return Group("Relevance of columns", [figure], TextTable("First-layer weights of each column, RMS", head, rows))


def _trace_figure(depth: int, record: dict[str, Any], sweeps: int) -> Figure:
    values = record["traces"]
    ends = [trace[-1] for trace in values if len(trace)]
    return picture(
        f"chains-{depth}",
        partial(traces, values, sweeps, sweeps // 2, [True] * len(values), "log-likelihood per row"),
        says=f"Log-likelihood of {len(values)} chains of depth {depth} over {sweeps:,} sweeps; at the end between "
        f"{number(min(ends))} and {number(max(ends))} nats per row.",
        caption=f"Chains of depth {depth}: log-likelihood per row. Left of the line: warm-up; right: retained states.",
    )


def _weights_group(estimator: LayeredNetwork, stacked: StructureWeights) -> Group:
    """Return the stacking weights of the depths with their standard errors, the prior and the Poisson law."""
    prior = _prior(estimator)
    columns = (stacked.numbers, stacked.weights, stacked.errors, stacked.single, stacked.log_density)
    rows = [
        (str(depth), f"{percent(weight)} ± {percent(error)}", percent(single), f"{density:.3f}")
        for depth, weight, error, single, density in zip(*columns, strict=True)
    ]
    weights = dict(zip(stacked.numbers, stacked.weights, strict=True))
    bars = ", ".join(f"{row[0]}: {row[1]}" for row in rows)
    figure = picture(
        "depth",
        partial(
            plots.depth_posterior,
            weights,
            prior=prior,
            errors=estimator.depth_posterior_error_,
            poisson=dict(zip(stacked.numbers, stacked.poisson, strict=True)),
        ),
        says=f"Weight of each number of layers as bars, with standard errors. {bars}. Summary: "
        f"{estimator.structure_.summary}.",
        caption=f"The best-fitting Poisson law has a mean of {stacked.poisson_rate:.2f} layers; its total "
        f"log-likelihood on out-of-fold rows is {stacked.poisson_loss:.1f} nats lower.",
    )
    head = ("Layers", "Weight", "Single", "Log density")
    return Group("", [figure], TextTable("Weight of each depth", head, rows, text=0))


def _weights_section(estimator: LayeredNetwork, stacked: StructureWeights) -> StructureSection:
    """Return the weights of the depths and of the candidate architectures."""
    groups = [_weights_group(estimator, stacked)]
    if estimator.kinds_:
        rows = [(_show_options(kind["options"]), percent(kind["weight"])) for kind in estimator.kinds_]
        table = TextTable("Weight of each candidate", ("Candidate", "Weight"), rows)
        groups.append(Group("Candidate architectures", [], table))
    if estimator.trials_:
        trials = [
            (
                _show_trial(trial),
                f"{trial['gain']:+.3f} ± {trial['error']:.3f}",
                "yes" if trial["chosen"] else "no",
            )
            for trial in estimator.trials_
        ]
        table = TextTable("Gain in out-of-fold log-likelihood, in nats per row", ("Option", "Gain", "Used"), trials)
        groups.append(Group("Options chosen by a short training", [], table))
    if estimator.columns_used_:
        shares = sorted(estimator.columns_used_.items(), key=lambda pair: -pair[1])
        used = [(name, percent(share)) for name, share in shares if share > 0.0]
        caption = f"{len(used)} of {len(shares)} columns are used by at least one network"
        groups.append(Group("Selected columns", [], TextTable(caption, ("Column", "Networks"), used)))
    return StructureSection(groups, [_path_figure(estimator)], f"{_ABOUT} {_WEIGHTS}")


def _show_trial(trial: Mapping[str, Any]) -> str:
    """Return the options of a trial, and its number of columns if they were selected, as text."""
    options, columns = _show_options(trial["options"]), trial.get("columns")
    return f"{options}; {columns} columns" if columns else options


def _show_options(options: Mapping[str, Any]) -> str:
    """Return options with their values as text."""
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _prior(estimator: LayeredNetwork) -> dict[int, float]:
    """Return the prior probability of each depth in the support; renormalised to the sampled depths under HMC."""
    if estimator.fit_diagnostics_.sampling:
        return dict(zip(estimator.depth_posterior_, estimator.fit_diagnostics_.prior, strict=True))
    model = next(part for part in estimator.model_.modules() if isinstance(part, UnboundedDepth))
    depths = list(estimator.depth_posterior_)
    offsets = torch.tensor([depth - model.min_depth for depth in depths], dtype=torch.float64, device="cpu")
    return dict(zip(depths, model.prior.log_prob(offsets).exp().tolist(), strict=True))


def _path_figure(estimator: LayeredNetwork) -> Figure:
    """Return a picture of the mean depth during training."""
    history = estimator.history_
    path = [row["mean_depth"] for row in history]
    if estimator.fit_diagnostics_.structure is not None:
        caption = "Mean depth under the out-of-fold weights at each evaluation."
    else:
        caption = "Mean depth by epoch. A trend at the end means that the posterior over depth has not converged."
    return picture(
        "path",
        partial(plots.depth_path, history),
        says=f"Mean depth by epoch: from {number(path[0])} to {number(path[-1])} layers, with a minimum of "
        f"{number(min(path))} and a maximum of {number(max(path))}.",
        caption=caption,
    )


def findings(summary: FitSummary) -> Iterator[Finding]:
    """Yield the findings about a posterior over depth."""
    model = summary.estimator.model_
    if isinstance(model, SampledDepth):
        yield from _check_mixing(summary)
        return
    if cast(CrossFitDiagnostics, summary.estimator.fit_diagnostics_).structure is not None:
        yield from _check_bounds(summary, next(part for part in model.modules() if isinstance(part, UnboundedDepth)))
    if isinstance(model, UnboundedDepth) and not isinstance(model.law, FixedDepth):
        yield from _check_drift(summary)
        yield from list(_check_movement(summary)) or _check_start(summary, model)
        yield from _check_bounds(summary, model)


def _check_mixing(summary: FitSummary) -> Iterator[Finding]:
    # the remedy after "; raise" is given with the present values of the options instead
    for text in describe_nonconvergence(summary.estimator.fit_diagnostics_):
        yield Finding(
            "problem",
            "Chains have not mixed",
            text[0].upper() + text.partition("; raise")[0][1:] + ".",
            f"Raise {summary.show('weights__sweeps')} or {summary.show('weights__leapfrogs')}.",
        )
    sampling = cast(CrossFitDiagnostics, summary.estimator.fit_diagnostics_).sampling.values()
    doubtful = max(record["doubtful"] for record in sampling)
    if doubtful > UNRELIABLE_SHARE and len(sampling) > 1 and summary.given["weights__structure_weights"] == "stacking":
        yield Finding(
            "advice",
            "Leave-one-out densities are not reliable",
            f"Pareto k-hat is above 0.7 on up to {doubtful:.0%} of the rows, so that single draws dominate their "
            "estimates. The weights of the depths depend on these estimates.",
            "Compare with weights__structure_weights='fit' on test rows, or raise weights__sweeps and weights__states.",
        )


def _check_drift(summary: FitSummary) -> Iterator[Finding]:
    drift = depth_drift(summary.history)
    if not drift:
        return
    trend = (
        f"The final mean depth is {summary.history[-1]['mean_depth']:.1f} layers, after an almost monotone second half "
        f"of the training. At that pace it would change by {drift:+.1f} layers in another training."
    )
    if summary.stopped:
        natural = (
            f" or set {summary.law_option('optimizer')}='natural' (now 'adam')"
            if summary.law["optimizer"] == "adam"
            else ""
        )
        yield Finding(
            "advice",
            "Depth posterior had not converged at early stopping",
            f"{trend} The validation score had stopped improving.",
            f"If the depth itself matters, raise {summary.show(summary.law_option('rate'))}{natural}.",
        )
    else:
        yield Finding(
            "problem",
            "Depth posterior has not converged",
            f"{trend} The reported depth reflects the learning rate of the law rather than the data.",
            f"Raise {summary.show('epochs')} or {summary.show(summary.law_option('rate'))}.",
        )


def _check_start(summary: FitSummary, model: UnboundedDepth) -> Iterator[Finding]:
    if summary.law["optimizer"] != "adam":
        return
    rates = {"learning_rate": summary.given["learning_rate"], "structure_rate": summary.structure_rate}
    law_change = law_drift(model.law, model.prior, summary.history, **rates)
    if law_change is not None and law_change.travel < law_change.distance:
        start = summary.show(summary.law_option("initial_depth"))
        rate = summary.show(summary.law_option("rate"))
        mean = summary.estimator.structure_.statistics["mean_depth"]
        yield Finding(
            "problem" if law_change.start_dominates(summary.stopped) else "advice",
            "Depth posterior stayed near its initial value",
            f"The parameter of the law could change by {law_change.travel:.2g} in this training; the mean of the "
            f"prior, {law_change.prior_mean:.2g}, is {law_change.distance:.2g} away from the initial value. The mean "
            f"depth of {mean:.1f} layers depends on the initial value more than on the data.",
            f"If the depth itself matters, compare with another initial value, {start}, or raise {rate}.",
        )


def _check_movement(summary: FitSummary) -> Iterator[Finding]:
    depths = [row["mean_depth"] for row in summary.history]
    path = sum(abs(b - a) for a, b in itertools.pairwise(depths))
    if path < _STILL:
        yield Finding(
            "problem",
            "Depth posterior did not change in training",
            f"The mean depth changed by at most {path:.2g} layers from its initial value of {depths[0]:.2g}.",
            f"Raise {summary.show(summary.law_option('rate'))} or {summary.show('epochs')}.",
        )


def _check_bounds(summary: FitSummary, model: UnboundedDepth) -> Iterator[Finding]:
    posterior = model.depth_posterior()
    likely = max(posterior, key=lambda depth: posterior[depth])
    ends = [] if model.max_depth is None else [(model.max_depth, f"Raise {summary.show('max_depth')}.")]
    if isinstance(model.law, FreeCategorical):
        end = model.min_depth + model.law.size - 1
        ends.append((end, f"Choose another depth_law, such as 'poisson' (now one that ends at {end})."))
    end, remedy = min(ends, default=(-1, ""))
    if likely == end and posterior[end] > 0.3:
        yield Finding(
            "problem",
            "Depth is at its upper bound",
            f"{posterior[end]:.0%} of the posterior mass is on {end} layers, the largest depth allowed. Deeper "
            "networks may predict better.",
            remedy,
        )
    least = posterior.get(model.min_depth, 0.0)
    if model.min_depth > 0 and least > 0.9:
        yield Finding(
            "advice",
            "Depth is at its lower bound",
            f"{least:.0%} of the posterior mass is on {model.min_depth}, the smallest depth allowed.",
            f"Lower {summary.show('min_depth')}.",
        )
