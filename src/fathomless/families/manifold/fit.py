r"""Fit of a weight manifold: candidates, matching of their units, a decoder, and the posterior over its codes.

The stages are those of :mod:`~fathomless.families.manifold.stages`: "candidates", "decoder", "latent" (q(z) with the
deterministic decoder) and "joint" (q(z) and q(φ), started from there; q(z) alone if the reconstruction error
:math:`\psi` is too large for a local approximation). Between the first two, out-of-fold rows select the candidates and
set the noise.
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
    gather_out_of_fold,
    mask_unseen,
    select_candidates,
    squared_errors,
    sum_log_joint,
)
from fathomless.families.manifold.latent import WEIGHTS, DecoderLaw, LatentLaw, estimate_shares, select_farthest
from fathomless.families.manifold.matching import balance, match
from fathomless.families.manifold.model import LatentStage, ProjectedNetwork
from fathomless.families.manifold.network import Flat, FlatModule, FlatNetwork
from fathomless.families.manifold.stages import Begin, Stage
from fathomless.inference.out_of_fold.crossfit import OutOfFold
from fathomless.inference.out_of_fold.noise import KAPPA, sum_log_density, to_student_t
from fathomless.inference.runs.run import under
from fathomless.inference.variational.svi import assign_parts
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.likelihoods import Categorical, Likelihood, LocationScale
from fathomless.posterior.noise import LearnedNoise, StatedNoise
from fathomless.system import checks
from fathomless.system.draws import normal
from fathomless.system.rng import as_generator, fold_in

__all__ = ["STEPS", "UNEXPLAINED", "Manifold", "ManifoldConfig"]

#: Reconstruction error above which the decoder gets no posterior.
UNEXPLAINED = 0.1
#: Least number of steps of a cycle.
STEPS = 10
_LEAST = 10  # least number of candidates kept; also at least two per latent dimension
_JUDGED = 20_000  # most rows for the selection of candidates and the fit of the noise
_COMPARED = 500  # most rows for distances between the functions of candidates
_CHUNK = 4096  # rows evaluated at once
_ALONE, _AMONG = -2.0, -1.5  # initial log scales of a single component, and of one of several


@dataclass(frozen=True)
class ManifoldConfig:
    """Options of the fit of a weight manifold.

    Attributes
    ----------
    prior : WeightPrior
        Prior of the weights of candidates.
    candidates : int
        Number of candidates R.
    snapshots : int
        Number of candidates taken from each trajectory, at the ends of cycles of the learning rate that share the steps
        (G. Huang et al., "Snapshot ensembles: train 1, get M for free", ICLR 2017). There are R / `snapshots`
        trajectories.
    anchored : bool
        True to regularise each candidate towards a draw from the prior, False towards 0.
    candidate_steps, candidate_rate
        Steps and learning rate of stage 1.
    strict : bool
        True to compare candidates by their joint densities with all rows alone, and to drop those far below the best.
        By default, a candidate is dropped if both the objective of its training and its error on held-out rows are bad:
        the density of held-out rows depends more on the rows than on the network.
    matching : bool
        True to match the hidden units of perceptrons.
    autoencoder : AutoencoderOptions
        Options of stage 2.
    components : int
        Largest number of components of q(z).
    covariance : {"diagonal", "full"}
        Covariance of each component.
    weights : {"counted", "equal", "learned"}
        Weights of the components: the share of candidates closest to each, equal, or learned with the ELBO.
    random : {"bias", "last", "none"}
        Random part of the last layer of the decoder.
    latent_steps, draws : int
        Steps of each phase of stage 3, and draws per step.
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
    """Stages of one fit.

    Parameters
    ----------
    network : FlatNetwork or FlatModule
        Network of the weights.
    likelihood : Likelihood
        p(y | f), not fitted yet.
    rows : Rows
        Training rows.
    folds : Tensor of int64, shape (Q, N), optional
        Folds of the rows in as many partitions as the candidates need. Without folds each candidate is trained on all
        rows, and the noise is that of the training.
    config : ManifoldConfig
        Options of the fit.
    seed : int
        Seed of all random draws.
    free_noise : bool
        True if Student's t noise may replace Gaussian noise.
    start : Tensor, shape (R, P), optional
        Initial weights; drawn from the prior by default.
    """

    def __init__(
        self,
        network: Flat,
        likelihood: Likelihood,
        rows: Rows,
        folds: Tensor | None,
        config: ManifoldConfig,
        seed: int,
        *,
        free_noise: bool = False,
        start: Tensor | None = None,
    ) -> None:
        self.network = network
        self.likelihood = likelihood
        self.rows = rows
        self.config = config
        self.seed = seed
        self.free_noise = free_noise
        self.start = start
        self.trajectories = math.ceil(config.candidates / config.snapshots)
        none = torch.zeros(self.trajectories, len(rows), dtype=torch.bool, device=rows.x.device)
        self.unseen = none if folds is None else mask_unseen(folds.to(rows.x.device), self.trajectories)
        self.cycles = ["candidates", *(f"candidates {k}" for k in range(2, config.snapshots + 1))]

    def plan(self) -> dict[str, Begin]:
        """Return the stages by name."""
        joint: dict[str, Begin] = {} if self.config.random == "none" else {"joint": self._begin_joint}
        cycles: dict[str, Begin] = {
            name: partial(self._begin_candidates, before=before)
            for before, name in zip([None, *self.cycles], self.cycles, strict=False)
        }
        return {**cycles, "decoder": self._begin_decoder, "latent": self._begin_latent, **joint}

    # ---- stage 1

    def _begin_candidates(self, found: Mapping[str, Tensor], before: str | None) -> Stage:
        scale = self.network.prior_scale(self.config.prior).to(self.rows.x)
        start, anchor = (self._draw_from_prior(name, scale) for name in ("start", "anchor"))
        if self.config.anchored:
            start = anchor
        start = start if self.start is None else self.start.to(start)
        last = {} if before is None else under(before, found)
        log_noise = None
        noise = self._learned_noise()
        if noise is not None:
            log_noise = last.get("log_noise", noise.log_scale().detach().to(start).expand(len(start), -1))
        return CandidateStage(
            self.network,
            self._candidate_likelihood(),
            self.rows,
            self.unseen,
            last.get("weights", start),
            anchor if self.config.anchored else torch.zeros_like(anchor),
            scale,
            log_noise,
            steps=max(STEPS, self.config.candidate_steps // self.config.snapshots),
            rate=self.config.candidate_rate,
        )

    def _draw_from_prior(self, name: str, scale: Tensor) -> Tensor:
        noise = as_generator(fold_in(self.seed, "candidates", name))
        shape = (self.trajectories, len(scale))
        drawn = normal(scale, noise, shape)
        if isinstance(self.network, FlatModule):  # weights without a prior keep their initial values
            return torch.where(scale.isfinite(), scale * drawn, self.network.start.to(scale))
        return scale * drawn

    def collect_candidates(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the candidates of all cycles; see :meth:`CandidateStage.finish`."""
        cycles = [under(name, found) for name in self.cycles]
        return {key: torch.cat([cycle[key] for cycle in cycles]) for key in cycles[0]}

    def _learned_noise(self) -> LearnedNoise | None:
        """Return the noise of the likelihood if its scale is learned, else None."""
        learned = isinstance(self.likelihood, LocationScale) and isinstance(self.likelihood.noise, LearnedNoise)
        return self.likelihood.noise if learned else None  # type: ignore[return-value]

    def _candidate_likelihood(self) -> Likelihood:
        """Return the likelihood of candidates, in which a learned scale of the noise is a further output of each."""
        noise = self._learned_noise()
        if noise is None:
            return self.likelihood
        likelihood = copy.deepcopy(self.likelihood)
        likelihood.noise = StatedNoise(len(noise.raw))
        return likelihood

    @torch.no_grad()
    def _outputs(self, weights: Tensor, most: int) -> Tensor:
        """Evaluate networks on the first rows, (R, N, K)."""
        parts = self.rows.take(slice(0, most)).parts(_CHUNK)
        return torch.cat([self.network(weights, part.x) for part in parts], 1)

    def select(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Select candidates, match their units, and fit the noise.

        Returns
        -------
        dict of str to Tensor
            "weights" (R', P), the best first; "kept" (R',), their indices; "score", the log-likelihood in nats per
            out-of-fold row, NaN without such rows; and the state of the likelihood under "likelihood/".
        """
        candidates = self.collect_candidates(found)
        rows = self.rows.take(slice(0, _JUDGED))
        f = self._outputs(candidates["weights"], _JUDGED)
        unseen = self.unseen[:, :_JUDGED].repeat(self.config.snapshots, 1)
        law = self.likelihood
        centre = f[..., : law.targets] if isinstance(law, LocationScale) else f.softmax(-1)
        kept = self._select_kept(candidates, f, centre, unseen, rows, torch.ones_like(unseen[0]))
        weights = candidates["weights"][kept]
        if isinstance(self.network, FlatNetwork):
            weights = match(self.network, weights) if self.config.matching else balance(self.network, weights)
        likelihood = self._set_trained_noise(candidates, kept)
        score = float("nan")
        if bool(unseen[kept].any()):
            score = self._score(candidates, f, centre, unseen, rows)
            likelihood = self._fit_likelihood(gather_out_of_fold(f[kept], unseen[kept], rows), likelihood)
        state = {f"likelihood/{name}": value.detach() for name, value in likelihood.state_dict().items()}
        return {
            "weights": weights,
            "kept": kept,
            "score": torch.tensor(score, dtype=torch.float64, device="cpu"),
            **state,
        }

    def _select_kept(
        self, candidates: Mapping[str, Tensor], f: Tensor, centre: Tensor, unseen: Tensor, rows: Rows, used: Tensor
    ) -> Tensor:
        """Return the indices of the candidates to keep, chosen by the rows for which `used`, (N,), is true.

        Their densities count as those of all rows of the fit.
        """
        joint = candidates["log_joint"]
        if self.config.strict:
            weight = used * (torch.ones_like(rows.x[:, 0]) if rows.weight is None else rows.weight)
            counts = weight * (self.rows.count / weight.sum().clamp(min=1e-12))
            law = self._candidate_likelihood()
            joint = sum_log_joint(law, f, candidates.get("log_noise"), candidates["log_prior"], rows.y, counts)
        errors = squared_errors(centre, rows.y, unseen & used, rows.weight)
        least = max(_LEAST, 2 * self.config.autoencoder.dimensions)
        return select_candidates(joint, errors, self.rows.count, least, strict=self.config.strict)

    def _set_trained_noise(self, candidates: Mapping[str, Tensor], kept: Tensor) -> Likelihood:
        """Return a copy of the likelihood with the geometric mean of the trained noise of some candidates."""
        likelihood = copy.deepcopy(self.likelihood)
        if isinstance(likelihood, LocationScale) and isinstance(likelihood.noise, LearnedNoise):
            noise = likelihood.noise
            noise.rescale((candidates["log_noise"][kept].mean(0) - noise.log_scale()).exp())
        return likelihood

    def _fit_likelihood(self, held: OutOfFold, likelihood: Likelihood) -> Likelihood:
        """Return the likelihood with its noise fitted to out-of-fold predictions; free noise may become Student's t."""
        return fit_likelihood(held, likelihood, KAPPA, free_noise=self.free_noise)[1]

    def _score(self, candidates: Mapping[str, Tensor], f: Tensor, centre: Tensor, unseen: Tensor, rows: Rows) -> float:
        """Return the mean out-of-fold log-likelihood under the candidates, in nats per row.

        The rows are divided into parts. For each part, candidates and noise are chosen on the other parts.
        """
        summed = count = 0.0
        numbers = unseen.any(0).nonzero()[:, 0]
        part = torch.full((len(rows),), -1, device=unseen.device)
        part[numbers] = assign_parts(len(numbers)).to(part)
        for k in range(int(part.max()) + 1):
            kept = self._select_kept(candidates, f, centre, unseen, rows, part != k)
            likelihood = self._set_trained_noise(candidates, kept)
            held = gather_out_of_fold(f[kept], unseen[kept], rows)
            scored = (part == k).cpu()[held.rows]
            if not bool(scored.all()):
                likelihood = self._fit_likelihood(held.take(~scored), likelihood)
            part_total, weight = sum_log_density(held.take(scored), likelihood)
            summed += part_total
            count += weight
        return summed / count if count else float("nan")

    def likelihood_of(self, found: Mapping[str, Tensor]) -> Likelihood:
        """Return the likelihood fitted to out-of-fold rows, from the results of the stages."""
        state = under("decoder/likelihood", found)
        likelihood = copy.deepcopy(self.likelihood)
        if "log_temperature" in state and isinstance(likelihood, Categorical):
            likelihood = Categorical(likelihood.classes, temperature=True).to(self.rows.x)
        if "noise.log_factor" in state and isinstance(likelihood, LocationScale):
            likelihood.add_factor(self.rows.y)
        if "raw_df" in state and isinstance(likelihood, LocationScale):
            likelihood = to_student_t(likelihood)
        likelihood.load_state_dict(state)
        return likelihood.eval()

    # ---- stages 2 and 3

    def _begin_decoder(self, found: Mapping[str, Tensor]) -> Stage:
        chosen = self.select(found)
        likelihood = self.likelihood_of({f"decoder/{name}": value for name, value in chosen.items()})
        seed = fold_in(self.seed, "decoder", "maps")
        options = self.config.autoencoder
        return AutoencoderStage(self.network, likelihood, self.rows, chosen["weights"], options, seed, beside=chosen)

    def decoder_of(self, found: Mapping[str, Tensor]) -> Decoder:
        """Return the decoder, from the results of the stages."""
        return AutoencoderStage.decoder_of(under("decoder", found), self.config.autoencoder, self.network)

    @staticmethod
    def gate_of(found: Mapping[str, Tensor]) -> Gate:
        """Return the reconstruction quality of the decoder, from the results of the stages."""
        return Gate(*found["decoder/gate"].tolist())

    def _begin_latent(self, found: Mapping[str, Tensor]) -> Stage:
        f = self._outputs(found["decoder/weights"], _COMPARED)
        far = select_farthest(f, self.config.components)
        scale = _ALONE if len(far) == 1 else _AMONG
        chosen = checks.choice("weights", self.config.weights, WEIGHTS)
        counted = estimate_shares(f, far) if chosen == "counted" else None
        law = LatentLaw(
            found["decoder/codes"][far], scale, self.config.covariance, weights=counted, learned=chosen == "learned"
        )
        return self._build_latent_stage(ProjectedNetwork(self.network, self.decoder_of(found), law), found)

    def _begin_joint(self, found: Mapping[str, Tensor]) -> Stage:
        model = self._build_untrained(found)
        model.load_state_dict(under("latent", found))
        if self.gate_of(found).reconstruction <= UNEXPLAINED:
            model.decoder_law = DecoderLaw(model.decoder, self.config.random)
        return self._build_latent_stage(model, found)

    def _build_latent_stage(self, model: ProjectedNetwork, found: Mapping[str, Tensor]) -> Stage:
        likelihood = self.likelihood_of(found)
        return LatentStage(model, likelihood, self.rows, steps=self.config.latent_steps, draws=self.config.draws)

    def _build_untrained(self, found: Mapping[str, Tensor]) -> ProjectedNetwork:
        centres = torch.zeros_like(found["latent/law.means"])
        law = LatentLaw(centres, covariance=self.config.covariance, learned=self.config.weights == "learned")
        return ProjectedNetwork(self.network, self.decoder_of(found), law)

    def model_of(self, found: Mapping[str, Tensor], phase: str = "") -> ProjectedNetwork:
        """Return the posterior after a phase of stage 3, "latent" or "joint"; by default after the last one."""
        phase = phase or ("joint" if "joint/law.means" in found else "latent")
        model = self._build_untrained(found)
        state = under(phase, found)
        if "decoder_law.offset" in state:
            model.decoder_law = DecoderLaw(model.decoder, self.config.random)
        model.load_state_dict(state)
        return model.eval()
