"""Glossary of the page: terms with their definitions."""

from dataclasses import dataclass

__all__ = ["TERMS", "Term"]


@dataclass(frozen=True)
class Term:
    """Entry of the glossary.

    Attributes
    ----------
    name : str
        Heading of the entry.
    definition : str
        One or two sentences.
    forms : tuple of str
        Words that are linked to the entry where they first appear in a section; empty if none is.
    """

    name: str
    definition: str
    forms: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """Identifier of the entry in the page."""
        return "term-" + "".join(c if c.isalnum() else "-" for c in self.name.lower())


#: Entries of the glossary, sorted by name.
TERMS: tuple[Term, ...] = (
    Term(
        "Area under the ROC curve",
        "Probability that a random row of the class has a higher predicted probability than a random row of the other "
        "class. 0.5 is guessing, 1 is perfect.",
        ("Area under the ROC curve",),
    ),
    Term(
        "Baseline",
        "Simple method for comparison: a constant prediction, a linear model or gradient boosting.",
        ("baseline", "baselines", "constant prediction"),
    ),
    Term(
        "Brier score",
        "Mean squared distance between the predicted class probabilities and the outcome (1 for the observed class, 0 "
        "for the others), summed over classes. 0 is best, 2 is worst.",
        ("Brier score",),
    ),
    Term(
        "Calibration",
        "Agreement between stated probabilities and observed frequencies. Of the rows with a 90 % prediction interval, "
        "90 % should lie inside; of the rows predicted with probability 0.8, 80 % should be right.",
        ("calibrated", "calibration"),
    ),
    Term(
        "Coverage",
        "Share of rows whose observed value lies inside its prediction interval. For a calibrated model it is close to "
        "the level of the interval, for instance 90 %.",
        ("coverage",),
    ),
    Term(
        "Cross-fitting",
        "Training of K networks, each without one of K folds of the rows. Each row is then predicted by the network "
        "that was not trained on it.",
        ("cross-fitting", "cross-fitted"),
    ),
    Term(
        "CRPS",
        "Continuous ranked probability score: the squared distance between the predicted distribution function and the "
        "step function at the observed value, integrated over the target. It is in units of the target; 0 is best.",
        ("CRPS",),
    ),
    Term(
        "Depth posterior",
        "Weights of the numbers of layers in the mixture of networks that makes the predictions. A weight is not the "
        "probability that the true network has this number of layers.",
        ("depth posterior", "posterior over depth", "weight of each depth", "weights of the depths"),
    ),
    Term(
        "Divergence",
        "Kullback-Leibler divergence from the prior to the posterior, in nats. It is the penalty in the evidence lower "
        "bound.",
        ("divergence", "divergences"),
    ),
    Term(
        "Early stopping",
        "End of the training before the planned number of epochs, because the score of rows outside the training no "
        "longer improves. The network of the best epoch is kept.",
        ("early stopping",),
    ),
    Term(
        "Effective sample size",
        "Number of independent draws that would estimate a quantity as precisely as the correlated draws of the Markov "
        "chains. A common minimum is 100 per quantity.",
        ("effective sample size", "effective draws"),
    ),
    Term(
        "Entropy",
        "Uncertainty of a predicted class, in nats. It is 0 if one class has probability 1, and largest if all classes "
        "are equally probable.",
        ("entropy",),
    ),
    Term(
        "Evidence lower bound (ELBO)",
        "Expected log-likelihood of the training data minus the divergence between posterior and prior, in nats. It "
        "bounds the log evidence from below only if the weights have a posterior.",
        ("ELBO", "evidence lower bound", "bound on the evidence"),
    ),
    Term(
        "Expected calibration error (ECE)",
        "Mean absolute difference between the probability of the predicted class and the accuracy, over bins of equal "
        "width. Even a calibrated model has an error above 0, and the error is larger for few rows.",
        ("expected calibration error",),
    ),
    Term(
        "Held-out rows",
        "Rows that were not used to train the weights. If they chose the epoch, the noise or the structure, their "
        "score is slightly too good.",
        ("held-out rows",),
    ),
    Term(
        "Inclusion probability",
        "In a sparse network: the posterior probability that a weight is not zero. Correlated columns share their "
        "probability.",
        ("inclusion probability", "inclusion probabilities"),
    ),
    Term(
        "Interval score",
        "Width of a prediction interval plus a penalty for an observed value outside it, 2 / (1 - level) times its "
        "distance to the interval. It is in units of the target; lower is better.",
        ("interval score",),
    ),
    Term(
        "Level",
        "Of a categorical column: one of its values. Of an interval: its nominal probability, for instance 90 %.",
        ("level", "levels"),
    ),
    Term(
        "Log-likelihood",
        "Logarithm of the probability (or probability density) that the model gives to the observed value, averaged "
        "over rows. It is in nats per row; higher is better, and it rewards accurate and calibrated predictions.",
        ("log-likelihood", "log-likelihoods", "log density"),
    ),
    Term(
        "Log mass",
        "Log-likelihood of a target on a lattice, such as a count or a grade: the logarithm of the probability of the "
        "observed value, in nats per row. It is at most 0 and has no unit, unlike a log density.",
        ("log mass",),
    ),
    Term(
        "Monte Carlo error",
        "Standard error of an estimate due to the finite number of random draws. More draws reduce it.",
        ("Monte Carlo error",),
    ),
    Term(
        "Nats",
        "Unit of log-likelihood, entropy and divergence with natural logarithms. A difference of 0.1 nats per row "
        "means that the observed values are about 10 % more probable per row.",
        ("nats",),
    ),
    Term(
        "Noise uncertainty",
        "Part of the predictive variance (or entropy, for classes) that remains when structure and weights are known. "
        "More rows do not reduce it.",
        ("noise uncertainty",),
    ),
    Term(
        "Out-of-fold rows",
        "Rows of the training table, each predicted by the networks that were not trained on it. Their score estimates "
        "that of a single network on new rows.",
        ("out-of-fold rows", "out-of-fold"),
    ),
    Term(
        "Partial dependence",
        "Mean prediction over all rows when one column is set to the same value in every row, as a function of that "
        "value. It can mislead for columns that are correlated with others.",
        ("partial dependence",),
    ),
    Term(
        "Permutation importance",
        "Decrease of the log-likelihood, in nats per row, when the values of one column are permuted among the rows. "
        "It is small for a column that other columns can replace.",
        ("permutation importance",),
    ),
    Term(
        "PIT",
        "Probability integral transform: the predicted distribution function at the observed value, between 0 and 1. "
        "Its histogram is flat for calibrated predictions.",
        ("PIT",),
    ),
    Term(
        "Precision",
        "Share of the rows predicted as a class that belong to it.",
        ("precision",),
    ),
    Term(
        "Prediction interval",
        "Interval that contains the observed value of a new row with a given probability. It includes noise, weight "
        "and structure uncertainty.",
        ("prediction interval", "prediction intervals"),
    ),
    Term(
        "R-hat",
        "Convergence diagnostic of Markov chains: the ratio of the total spread of the draws to the spread within the "
        "chains. Values above 1.1 indicate that the chains have not converged.",
        ("R-hat",),
    ),
    Term(
        "Recall",
        "Share of the rows of a class that are predicted as this class.",
        ("recall",),
    ),
    Term(
        "Residual",
        "Difference between an observed value and its prediction. For classes, rows with a low predicted probability "
        "of the observed class take the place of large residuals.",
        ("residual", "residuals"),
    ),
    Term(
        "RMSE",
        "Root mean squared error of the predicted means, in units of the target.",
        ("RMSE",),
    ),
    Term(
        "Stacking",
        "Choice of the weights of a mixture of models that maximise its log-likelihood on rows outside the training. "
        "Several models keep weight if their mixture predicts better than each of them.",
        ("stacking",),
    ),
    Term(
        "Standard error",
        "Standard deviation of an estimate over repetitions of the data, for instance over rows. A difference of less "
        "than two standard errors can be due to chance.",
        ("standard error", "standard errors"),
    ),
    Term(
        "Structure uncertainty",
        "Part of the predictive variance (or entropy, for classes) that is due to differences between structures, such "
        "as numbers of layers.",
        ("structure uncertainty",),
    ),
    Term(
        "Temperature",
        "In classification: a number that divides the outputs of the network before the softmax, fitted for "
        "calibration. In sparse networks: the factor of the divergence in the training objective.",
        ("temperature",),
    ),
    Term(
        "Weight uncertainty",
        "Part of the predictive variance (or entropy, for classes) that is due to unknown weights within a structure. "
        "More rows reduce it.",
        ("weight uncertainty",),
    ),
)
