"""Summary of a fit below scikit-learn's display of an estimator in notebooks."""

import html

from fathomless.posterior.structure import Structure

__all__ = ["add_summary"]


def add_summary(display: str, structure: Structure, score: float | None, *, mass: bool) -> str:
    """Return a display as HTML, followed by the structure of a fit and its score.

    Parameters
    ----------
    display : str
        HTML of scikit-learn.
    structure : Structure
        Posterior over structure.
    score : float, optional
        Log-likelihood of rows that a network was not fitted to, in nats per row.
    mass : bool
        True if the score is a log probability, and False if it is a log density.
    """
    lines = [f"{structure.kind}: {structure.summary}"]
    if score is not None:
        kind = "mass" if mass else "density"
        lines.append(f"log-likelihood on held-out rows: {score:.4g} nats per row (mean log predictive {kind})")
    text = "<br>".join(map(html.escape, lines))
    return f'{display}<div style="font: 0.9em/1.4 sans-serif; margin: 0.2em 0.5em">{text}</div>'
