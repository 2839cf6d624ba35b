r"""A weight manifold from rows: candidates, one order of their units, a decoder, and the posterior over its codes.

The stages are those of :mod:`~fathomless.families.manifold.stages`: "candidates", "decoder", "latent" (q(z) with the
decoder a point) and "joint" (q(z) and q(φ), from there on; q(z) alone where the decoder leaves so much of the weights
that :math:`\psi` is no local doubt). Between the first two, rows that candidates have not seen say which of them are
kept, and how large the noise is.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.estimators.finalize import fit_likelihood
from fathomless.families.manifold.autoencoder import AutoencoderOptions, AutoencoderStage, Decoder, Gate
from fathomless.families.manifold.candidates import (
    CandidateStage,
    kept_from,
    out_of_fold,
    squared_errors,
    worth_keeping,
)
from fathomless.families.manifold.latent import WEIGHTS, DecoderLaw, LatentLaw, farthest, shares
from fathomless.families.manifold.matching import balance, match
from fathomless.families.manifold.model import LatentStage, ProjectedNetwork
from fathomless.families.manifold.network import Flat, FlatModule, FlatNetwork
from fathomless.families.manifold.stages import Begin, Stage
from fathomless.inference.out_of_fold.crossfit import OutOfFold
from fathomless.inference.out_of_fold.noise import KAPPA, sum_log_density, to_student_t
from fathomless.inference.runs.run import under
from fathomless.inference.variational.svi import assign_parts
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.likelihoods import Categorical, LearnedNoise, Likelihood, LocationScale, StatedNoise
from fathomless.system import checks
from fathomless.system.draws import normal
from fathomless.system.rng import as_generator, fold_in

__all__ = ["STEPS", "UNEXPLAINED", "Manifold", "ManifoldConfig"]

#: Reconstruction error beyond which the decoder stays a point.
UNEXPLAINED = 0.1
#: Steps of a cycle, at least.
STEPS = 10
_LEAST = 10  # candidates that are kept, and two for each latent dimension
_JUDGED = 20_000  # rows by which noise is fitted
_COMPARED = 500  # rows by which candidates are compared
_CHUNK = 4096  # rows evaluated at once
_ALONE, _AMONG = -2.0, -1.5  # log of the initial scales of one component, and of several


@dataclass(frozen=True)
class ManifoldConfig:
    """How a weight manifold is found.

    Attributes
    ----------
    prior : WeightPrior
        Of the weights of candidates.
    candidates : int
        R.
    snapshots : int
        Candidates that are taken from each trajectory, at the ends of as many cycles of the rate, which share the steps
        (G. Huang et al., "Snapshot ensembles: train 1, get M for free", ICLR 2017). R is divided by it.
    anchored : bool
        Whether each candidate is drawn towards a draw from the prior, or towards 0.
    candidate_steps, candidate_rate
        Of stage 1.
    strict : bool
        Whether candidates with a log joint far below the best are left out whatever their errors on unseen rows.
    matching : bool
        Whether hidden units of perceptrons are brought into one order.
    autoencoder : AutoencoderOptions
        Of stage 2.
    components : int
        Of q(z), at most.
    covariance : {"diagonal", "full"}
        Of each component.
    weights : {"counted", "equal", "learned"}
        Of the components: the share of candidates that each is nearest to, the same, or what maximises the bound.
    random : {"bias", "last", "none"}
        What of the decoder's last layer is random.
    latent_steps, draws : int
        Steps of each phase of stage 3, and points in each of them.
    """

    prior: WeightPrior = field(default_factory=lambda: WeightPrior(0.5**0.5, fan_in=True))
    candidates: int = 40
    snapshots: int = 1
    anchored: bool = False
    candidate_steps: int = 1200
    candidate_rate: float = 1e-2
    strict: bool = False
    matching: bool = True
    autoencoder: AutoencoderOptions = field(default_factory=AutoencoderOptions)
    components: int = 10
    covariance: str = "diagonal"
    weights: str = "counted"
    random: str = "bias"
    latent_steps: int = 800
    draws: int = 8


class Manifold:
    """The stages of one fit.

    Parameters
    ----------
    network : FlatNetwork or FlatModule
        What weights are of.
    likelihood : Likelihood
        p(y | f), before it has seen rows.
    rows : Rows
        The table.
    folds : Tensor of int64, shape (Q, N), optional
        Folds of the rows in as many partitions as candidates need; without them every candidate sees all rows, and the
        noise is that of the training.
    recipe : Recipe
        How.
    seed : int
        Of everything that is drawn.
    free_noise : bool
        Whether Student's law may take the place of Gauss's.
    start : Tensor, shape (R, P), optional
        Initial weights; drawn from the prior by default.
    """

    def __init__(
        self,
        network: Flat,
        likelihood: Likelihood,
        rows: Rows,
        folds: Tensor | None,
        recipe: ManifoldConfig,
        seed: int,
        *,
        free_noise: bool = False,
        start: Tensor | None = None,
    ) -> None:
        self.network, self.likelihood, self.rows, self.recipe, self.seed = network, likelihood, rows, recipe, seed
        self.free_noise, self.start = free_noise, start
        self.trajectories = math.ceil(recipe.candidates / recipe.snapshots)
        none = torch.zeros(self.trajectories, len(rows), dtype=torch.bool, device=rows.x.device)
        self.unseen = none if folds is None else kept_from(folds.to(rows.x.device), self.trajectories)
        self.cycles = ["candidates", *(f"candidates {k}" for k in range(2, recipe.snapshots + 1))]

    def plan(self) -> dict[str, Begin]:
        """Return the stages by name."""
        joint: dict[str, Begin] = {} if self.recipe.random == "none" else {"joint": self._joint}
        cycles: dict[str, Begin] = {
            name: partial(self._candidates, before=before)
            for before, name in zip([None, *self.cycles], self.cycles, strict=False)
        }
        return {**cycles, "decoder": self._decoder, "latent": self._latent, **joint}

    # ---- stage 1

    def _candidates(self, found: Mapping[str, Tensor], before: str | None) -> Stage:
        scale = self.network.prior_scale(self.recipe.prior).to(self.rows.x)
        start, anchor = (self._from_prior(name, scale) for name in ("start", "anchor"))
        if self.recipe.anchored:
            start = anchor
        start = start if self.start is None else self.start.to(start)
        last = {} if before is None else under(before, found)
        law, log_noise = self.likelihood, None
        noise = self._learned()
        if noise is not None:
            law = copy.deepcopy(law)
            law.noise = StatedNoise(len(noise.raw))
            log_noise = last.get("log_noise", noise.log_scale().detach().to(start).expand(len(start), -1))
        return CandidateStage(
            self.network,
            law,
            self.rows,
            self.unseen,
            last.get("weights", start),
            anchor if self.recipe.anchored else torch.zeros_like(anchor),
            scale,
            log_noise,
            steps=max(STEPS, self.recipe.candidate_steps // self.recipe.snapshots),
            rate=self.recipe.candidate_rate,
        )

    def _from_prior(self, name: str, scale: Tensor) -> Tensor:
        noise = as_generator(fold_in(self.seed, "candidates", name))
        shape = (self.trajectories, len(scale))
        drawn = normal(scale, noise, shape)
        if isinstance(self.network, FlatModule):  # what has no prior stays where it is
            return torch.where(scale.isfinite(), scale * drawn, self.network.start.to(scale))
        return scale * drawn

    def found_candidates(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what all cycles have found: weights (R, P), log joints (R,), log scales of the noise (R, T)."""
        each = [under(name, found) for name in self.cycles]
        return {key: torch.cat([one[key] for one in each]) for key in each[0]}

    def _learned(self) -> LearnedNoise | None:
        """Return the scale of the noise if it is one that is learned."""
        learned = isinstance(self.likelihood, LocationScale) and isinstance(self.likelihood.noise, LearnedNoise)
        return self.likelihood.noise if learned else None  # type: ignore[return-value]

    @torch.no_grad()
    def _outputs(self, weights: Tensor, most: int) -> Tensor:
        """Evaluate networks on the first rows, (R, N, K)."""
        parts = self.rows.take(slice(0, most)).parts(_CHUNK)
        return torch.cat([self.network(weights, part.x) for part in parts], 1)

    def selected(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Keep candidates, bring their units into one order, fit the noise.

        Returns
        -------
        dict of str to Tensor
            "weights" (R', P), the best first; "kept" (R',), their numbers; "score", nats per unseen row under the
            candidates, NaN if there are none; and the state of the likelihood under "likelihood/".
        """
        recipe, own = self.recipe, self.found_candidates(found)
        rows = self.rows.take(slice(0, _JUDGED))
        f = self._outputs(own["weights"], _JUDGED)
        unseen = self.unseen[:, :_JUDGED].repeat(recipe.snapshots, 1)
        centre = f.softmax(-1) if self.likelihood.discrete else f[..., : rows.y.shape[-1]]
        errors = squared_errors(centre, rows.y, unseen, rows.weight)
        kept = self._kept(own, errors)
        ordered = own["weights"][kept]
        if isinstance(self.network, FlatNetwork):
            ordered = match(self.network, ordered) if recipe.matching else balance(self.network, ordered)
        likelihood, score = self._trained(own, kept), float("nan")
        if bool(unseen[kept].any()):
            score = self._score(own, f, centre, unseen, rows)
            likelihood = self._settled(out_of_fold(f[kept], unseen[kept], rows), likelihood)
        state = {f"likelihood/{name}": value.detach() for name, value in likelihood.state_dict().items()}
        return {
            "weights": ordered,
            "kept": kept,
            "score": torch.tensor(score, dtype=torch.float64, device="cpu"),
            **state,
        }

    def _kept(self, own: Mapping[str, Tensor], errors: Tensor) -> Tensor:
        """Return the numbers of the candidates that are kept, given their errors (R,) on unseen rows."""
        least = max(_LEAST, 2 * self.recipe.autoencoder.dimensions)
        return worth_keeping(own["log_joint"], errors, self.rows.count, least, strict=self.recipe.strict)

    def _trained(self, own: Mapping[str, Tensor], kept: Tensor) -> Likelihood:
        """Return the likelihood with the noise of some candidates, as their training left it."""
        likelihood = copy.deepcopy(self.likelihood)
        if isinstance(likelihood, LocationScale) and isinstance(likelihood.noise, LearnedNoise):
            noise = likelihood.noise
            noise.rescale((own["log_noise"][kept].mean(0) - noise.log_scale()).exp())  # the geometric mean
        return likelihood

    def _settled(self, held: OutOfFold, likelihood: Likelihood) -> Likelihood:
        """Fit the noise, and choose its law, by rows under candidates that have not seen them."""
        return fit_likelihood(held, likelihood, KAPPA, free_noise=self.free_noise and self._learned() is not None)[1]

    def _score(self, own: Mapping[str, Tensor], f: Tensor, centre: Tensor, unseen: Tensor, rows: Rows) -> float:
        """Mean log density of a row under candidates that have not seen it, in nats.

        The rows are divided into parts. Candidates and noise are chosen by the other parts alone.
        """
        summed = count = 0.0
        numbers = unseen.any(0).nonzero()[:, 0]
        part = torch.full((len(rows),), -1, device=unseen.device)
        part[numbers] = assign_parts(len(numbers)).to(part)
        for k in range(int(part.max()) + 1):
            rest = unseen & (part != k)
            kept = self._kept(own, squared_errors(centre, rows.y, rest, rows.weight))
            likelihood = self._trained(own, kept)
            held = out_of_fold(f[kept], unseen[kept], rows)
            apart = (part == k).cpu()[held.rows]
            if not bool(apart.all()):
                likelihood = self._settled(held.take(~apart), likelihood)
            of_part, weight = sum_log_density(held.take(apart), likelihood)
            summed, count = summed + of_part, count + weight
        return summed / count if count else float("nan")

    def likelihood_of(self, found: Mapping[str, Tensor]) -> Likelihood:
        """Return the likelihood that unseen rows have chosen, from what was found."""
        state = under("decoder/likelihood", found)
        likelihood = copy.deepcopy(self.likelihood)
        if "log_temperature" in state and isinstance(likelihood, Categorical):
            likelihood = Categorical(likelihood.classes, temperature=True).to(self.rows.x)
        if "raw_df" in state and isinstance(likelihood, LocationScale):
            likelihood = to_student_t(likelihood)
        likelihood.load_state_dict(state)
        return likelihood.eval()

    # ---- stages 2 and 3

    def _decoder(self, found: Mapping[str, Tensor]) -> Stage:
        chosen = self.selected(found)
        likelihood = self.likelihood_of({f"decoder/{name}": value for name, value in chosen.items()})
        seed = fold_in(self.seed, "decoder", "maps")
        options = self.recipe.autoencoder
        return AutoencoderStage(self.network, likelihood, self.rows, chosen["weights"], options, seed, beside=chosen)

    def decoder_of(self, found: Mapping[str, Tensor]) -> Decoder:
        """Return the decoder, from what was found."""
        return AutoencoderStage.decoder_of(under("decoder", found), self.recipe.autoencoder, self.network)

    @staticmethod
    def gate_of(found: Mapping[str, Tensor]) -> Gate:
        """Return what the decoder keeps of the candidates, from what was found."""
        return Gate(*found["decoder/gate"].tolist())

    def _latent(self, found: Mapping[str, Tensor]) -> Stage:
        f = self._outputs(found["decoder/weights"], _COMPARED)
        far = farthest(f, self.recipe.components)
        scale = _ALONE if len(far) == 1 else _AMONG
        chosen = checks.choice("weights", self.recipe.weights, WEIGHTS)
        counted = shares(f, far) if chosen == "counted" else None
        law = LatentLaw(
            found["decoder/codes"][far], scale, self.recipe.covariance, weights=counted, learned=chosen == "learned"
        )
        return self._stage(ProjectedNetwork(self.network, self.decoder_of(found), law), found)

    def _joint(self, found: Mapping[str, Tensor]) -> Stage:
        model = self._untrained(found)
        model.load_state_dict(under("latent", found))
        if self.gate_of(found).reconstruction <= UNEXPLAINED:
            model.decoder_law = DecoderLaw(model.decoder, self.recipe.random)
        return self._stage(model, found)

    def _stage(self, model: ProjectedNetwork, found: Mapping[str, Tensor]) -> Stage:
        likelihood = self.likelihood_of(found)
        return LatentStage(model, likelihood, self.rows, steps=self.recipe.latent_steps, draws=self.recipe.draws)

    def _untrained(self, found: Mapping[str, Tensor]) -> ProjectedNetwork:
        centres = torch.zeros_like(found["latent/law.means"])
        law = LatentLaw(centres, covariance=self.recipe.covariance, learned=self.recipe.weights == "learned")
        return ProjectedNetwork(self.network, self.decoder_of(found), law)

    def model_of(self, found: Mapping[str, Tensor], phase: str = "") -> ProjectedNetwork:
        """Return the posterior after a phase of stage 3, "latent" or "joint"; by default after the last one."""
        phase = phase or ("joint" if "joint/law.means" in found else "latent")
        model, state = self._untrained(found), under(phase, found)
        if "decoder_law.offset" in state:
            model.decoder_law = DecoderLaw(model.decoder, self.recipe.random)
        model.load_state_dict(state)
        return model.eval()
