"""What a page shows of a weight manifold, and what the doctor says of its decoder."""

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
from fathomless.families.manifold.sampling import stands_still
from fathomless.families.manifold.strategy import COLLAPSED
from fathomless.plots.page import Figure, Group, StructureSection, TextTable, join_words, number, percent, picture

__all__ = ["findings", "page"]

Estimator = ProjectedBayesClassifier | ProjectedBayesRegressor

_COLUMNS = 4  # along which modes are drawn
_SPARE = 2  # candidates for each dimension, at least


def page(estimator: Estimator) -> StructureSection:
    """Return the laws over the latent space, what their centres say, and what the decoder keeps."""
    posterior = estimator.latent_posterior_
    shares = join_words([percent(weight) for weight in posterior.weights], 12)
    figure = picture(
        "latent",
        partial(plots.latent, posterior),
        says=f"{posterior.summary}; weights {shares}.",
        caption="Laws over the latent space, one standard deviation around each centre, in the plane that spreads them "
        "most; the dashed circle is the prior.",
    )
    gate = estimator.decoder_gate_
    rows = [
        ("Weights that the decoder leaves unexplained", percent(gate["reconstruction"])),
        ("Log-likelihood per training row of the candidates, mean", number(gate["of_candidates"], 4)),
        ("The same of their decoded networks", number(gate["log_likelihood"], 4)),
        ("Root mean square between their outputs, standardised", number(gate["apart"])),
        ("Candidates that were kept", f"{len(estimator.candidates_['kept'])} of {estimator.candidates}"),
    ]
    if estimator.candidates_["score"] is not None:
        rows.append(
            (
                "Log density of rows that candidates had not seen, standardised",
                number(estimator.candidates_["score"], 4),
            )
        )
    return StructureSection(
        [
            Group("Latent space", [figure], _laws(estimator)),
            Group("Modes of functions", _modes(estimator)),
            Group(
                "Decoder", [], TextTable("What the decoder keeps of the networks it was learned from", ("", ""), rows)
            ),
        ],
        about="Predictions average networks decoded from points of all laws"
        + (
            ", with doubt about the decoder."
            if estimator.model_.decoder_law is not None
            else "; the decoder is a point."
        ),
        note="The latent space was learned from networks trained on the same rows, so the bound is one given the "
        "decoder and must not be compared with that of another family. Rows that no candidate saw judge the first "
        "stage.",
        objective="The bound of the last two stages: the expected log-likelihood of decoded networks, less what the "
        "laws over the latent space and over the decoder cost.",
    )


def _laws(estimator: Estimator) -> TextTable:
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
    head = ("Law", "Weight", "Centre, from 0", "Spread")
    return TextTable(
        "Laws over the latent space: distances and (mean) standard deviations, in those of the prior",
        head,
        rows,
    )


def _modes(estimator: Estimator) -> list[Figure]:
    """Draw the modes along the columns on which they disagree most."""
    weights = np.asarray(estimator.latent_posterior_.weights)
    drawn = []
    for column in estimator.schema_.columns:
        if column.kind != "numeric":
            continue
        grid, values = estimator.modes_along(column.name)
        if values.ndim == 3:  # the target, or the class, on which they disagree most
            values = values[:, :, int(values.std(0).mean(0).argmax())]
        drawn.append((float((weights @ (values - weights @ values) ** 2).mean()), column.name, grid, values))
    drawn.sort(key=lambda one: -one[0])
    return [
        picture(
            f"modes-{place}",
            partial(plots.modes, grid, values, weights, name),
            says=f"{len(values)} functions of {name}, from {number(values.min())} to {number(values.max())}.",
            caption=f"What the centre of each law predicts along {name}, all other columns at their average.",
        )
        for place, (_, name, grid, values) in enumerate(drawn[:_COLUMNS])
    ]


def findings(summary: FitSummary) -> Iterator[Finding]:
    """Say if the decoder has collapsed, if its law was left out, and if candidates are few for the dimensions."""
    told = cast(ManifoldDiagnostics, summary.estimator.fit_diagnostics_)
    if text := stands_still(told.sampling):
        yield Finding(
            "problem",
            "Chains say nothing of their convergence",
            text[0].upper() + text.partition(";")[0][1:] + ".",
            "Use latent_posterior='mixture'.",
        )
    error, kept = told.gate["reconstruction"], len(told.kept)
    if error > COLLAPSED:
        yield Finding(
            "problem",
            "The decoder has collapsed",
            f"It leaves {percent(error)} of the variance of the candidates' weights, and may have made one function of "
            "several: what is not seen looks too sure.",
            f"Raise {summary.show('latent_dim')}, {summary.show('decoder_width')} or {summary.show('decoder_steps')}.",
        )
    elif error > UNEXPLAINED and summary.given["decoder_law"] != "none":
        yield Finding(
            "advice",
            "The decoder was held",
            f"It leaves {percent(error)} of the variance of the candidates' weights, too much to be doubt about single "
            "weights; so the decoder is a point.",
            f"Raise {summary.show('latent_dim')} or {summary.show('decoder_steps')}.",
        )
    if kept <= _SPARE * summary.estimator.latent_dim_:
        yield Finding(
            "advice",
            "Few candidates for so many dimensions",
            f"{kept} networks span a latent space of {summary.estimator.latent_dim_} dimensions; use four for each.",
            f"Lower {summary.now('latent_dim')}, or raise {summary.now('candidates')}.",
        )
