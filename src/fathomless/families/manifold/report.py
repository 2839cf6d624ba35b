"""Page section and findings of weight manifolds."""

from collections.abc import Iterator
from functools import partial
from typing import cast

import numpy as np

from fathomless.estimators.findings import Finding, FitSummary
from fathomless.families.manifold import plots
from fathomless.families.manifold.estimator import (
    ProjectedBayesClassifier,
    ProjectedBayesRegressor,
)
from fathomless.families.manifold.fit import UNEXPLAINED
from fathomless.families.manifold.networks import ManifoldDiagnostics
from fathomless.families.manifold.sampling import warn_if_stuck
from fathomless.families.manifold.strategy import COLLAPSED
from fathomless.plots.page import Figure, Group, StructureSection, TextTable, join_words, number, percent, picture

__all__ = ["findings", "page"]

Estimator = ProjectedBayesClassifier | ProjectedBayesRegressor

_COLUMNS = 4  # columns along which modes are drawn, at most
_SPARE = 2  # candidates per latent dimension below which a finding is due


def page(estimator: Estimator) -> StructureSection:
    """Return the section: components of the latent posterior, predictions at their centres, and decoder quality."""
    posterior = estimator.latent_posterior_
    shares = join_words([percent(weight) for weight in posterior.weights], 12)
    figure = picture(
        "latent",
        partial(plots.latent, posterior),
        says=f"{posterior.summary}; weights {shares}.",
        caption="Components of the latent posterior: one standard deviation around each centre, in the plane of their "
        "first two principal components. The dashed circle is the prior.",
    )
    gate = estimator.decoder_gate_
    rows = [
        ("Unexplained variance of the candidates' weights", percent(gate["reconstruction"])),
        ("Mean log-likelihood of the candidates, nats per training row", number(gate["of_candidates"], 4)),
        ("Mean log-likelihood after decoding, nats per training row", number(gate["log_likelihood"], 4)),
        ("Root mean squared change of the outputs, standardised", number(gate["apart"])),
        ("Candidates kept", f"{len(estimator.candidates_['kept'])} of {estimator.candidates}"),
    ]
    if estimator.candidates_["score"] is not None:
        rows.append(
            (
                "Log-likelihood of the candidates, nats per out-of-fold row, standardised targets",
                number(estimator.candidates_["score"], 4),
            )
        )
    return StructureSection(
        [
            Group("Latent space", [figure], _tabulate_components(estimator)),
            Group("Modes of functions", _draw_modes(estimator)),
            Group("Decoder", [], TextTable("Candidates compared with their decoded reconstructions", ("", ""), rows)),
        ],
        about="Predictions average networks decoded from draws of all components"
        + (
            ", including uncertainty about the decoder."
            if estimator.model_.decoder_law is not None
            else "; the decoder is a point estimate."
        ),
        note="The latent space was learned from networks trained on the same rows. The ELBO is therefore conditional "
        "on the decoder: do not compare it with that of other families. The score on out-of-fold rows is that of the "
        "first stage.",
        objective="ELBO of the last two stages: the expected log-likelihood of decoded networks, minus the divergences "
        "of the latent posterior and of the decoder's posterior from their priors.",
    )


def _tabulate_components(estimator: Estimator) -> TextTable:
    posterior = estimator.latent_posterior_
    rows = [
        (
            str(place + 1),
            percent(weight),
            number(float(np.linalg.norm(mean))),
            number(float(np.exp(np.log(scale).mean()))),
        )
        for place, (weight, mean, scale) in enumerate(
            zip(posterior.weights, posterior.means, posterior.scales, strict=True)
        )
    ]
    head = ("Component", "Weight", "Distance from 0", "Spread")
    return TextTable(
        "Components of the latent posterior: distance of the centre from 0 and geometric mean of the standard "
        "deviations, in standard deviations of the prior",
        head,
        rows,
    )


def _draw_modes(estimator: Estimator) -> list[Figure]:
    """Draw the modes along the columns where they disagree most."""
    weights = np.asarray(estimator.latent_posterior_.weights)
    drawn = []
    for column in estimator.schema_.columns:
        if column.kind != "numeric":
            continue
        grid, values = estimator.modes_along(column.name)
        if values.ndim == 3:  # show the target, or the class, where the modes disagree most
            values = values[:, :, int(values.std(0).mean(0).argmax())]
        drawn.append((float((weights @ (values - weights @ values) ** 2).mean()), column.name, grid, values))
    drawn.sort(key=lambda entry: -entry[0])
    return [
        picture(
            f"modes-{place}",
            partial(plots.modes, grid, values, weights, name),
            says=f"{len(values)} functions of {name}, from {number(values.min())} to {number(values.max())}.",
            caption=f"Prediction at the centre of each component along {name}, other columns at their average.",
        )
        for place, (_, name, grid, values) in enumerate(drawn[:_COLUMNS])
    ]


def findings(summary: FitSummary) -> Iterator[Finding]:
    """Yield findings: stuck chains, a collapsed or deterministic decoder, and too few candidates per dimension."""
    diagnostics = cast(ManifoldDiagnostics, summary.estimator.fit_diagnostics_)
    if text := warn_if_stuck(diagnostics.sampling):
        yield Finding(
            "problem",
            "Convergence of the chains is unknown",
            text[0].upper() + text.partition(";")[0][1:] + ".",
            "Use latent_posterior='mixture'.",
        )
    error = diagnostics.gate["reconstruction"]
    kept = len(diagnostics.kept)
    if error > COLLAPSED:
        yield Finding(
            "problem",
            "The decoder has collapsed",
            f"The decoder leaves {percent(error)} of the variance of the candidates' weights unexplained. It may map "
            "different candidates to the same function, so predictions away from the data may be overconfident.",
            f"Raise {summary.show('latent_dim')}, {summary.show('decoder_width')} or {summary.show('decoder_steps')}.",
        )
    elif error > UNEXPLAINED and summary.given["decoder_law"] != "none":
        yield Finding(
            "advice",
            "The decoder is a point estimate",
            f"The decoder leaves {percent(error)} of the variance of the candidates' weights unexplained. That is too "
            "much for independent noise on single weights, so no posterior over the decoder was fitted.",
            f"Raise {summary.show('latent_dim')} or {summary.show('decoder_steps')}.",
        )
    if kept <= _SPARE * summary.estimator.latent_dim_:
        yield Finding(
            "advice",
            "Too few candidates for the latent dimensions",
            f"{kept} candidates were kept for {summary.estimator.latent_dim_} latent dimensions; four per dimension "
            "are recommended.",
            f"Lower {summary.show('latent_dim')}, or raise {summary.show('candidates')}.",
        )
