"""Inference strategy of weight manifolds: stages on all rows, after trials of several numbers of latent dimensions."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.estimators import saving
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem, Session
from fathomless.families.manifold.autoencoder import Decoder
from fathomless.families.manifold.dimensions import DimensionSearch
from fathomless.families.manifold.fit import Manifold, ManifoldConfig
from fathomless.families.manifold.network import Flat
from fathomless.families.manifold.networks import ManifoldDiagnostics, ManifoldNetworks
from fathomless.families.manifold.sampling import sample_latent, warn_if_stuck
from fathomless.families.manifold.stages import Begin, StagedRun, run_stages
from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.run import Fitted
from fathomless.nn.flat import flatten
from fathomless.posterior.likelihoods import CumulativeLogit, Likelihood
from fathomless.system import memory
from fathomless.system.errors import DataError
from fathomless.system.rng import building, fold_in

__all__ = ["COLLAPSED", "ManifoldStages"]

#: Reconstruction error above which the decoder maps different candidates to one function.
COLLAPSED = 0.3


@dataclass(frozen=True)
class ManifoldStages:
    """Inference in stages: candidates, decoder and posterior over the latent space.

    Attributes
    ----------
    config : ManifoldConfig
        Options of the stages, with the largest candidate number of latent dimensions.
    tried : sequence of int
        Candidate numbers of latent dimensions.
    sampled : bool
        True to sample the posterior over the latent space after the stages.
    free_noise : bool
        True to choose the noise distribution on out-of-fold rows.
    architecture : callable, optional
        Builds user-defined networks. Their trajectories start from their own initial weights.
    """

    config: ManifoldConfig
    tried: Sequence[int]
    sampled: bool = False
    free_noise: bool = False
    architecture: Callable[[int, int], Any] | None = None

    def infer(self, problem: Problem, table: Prepared, session: Session) -> Fitted:
        """Run the stages, and the chains if the posterior is sampled."""
        assert isinstance(table.train, Rows)
        if ranks().count > 1:
            raise DataError(f"{ranks().count} processes were started; a weight manifold is fitted by one process")
        with building(table.seed):
            likelihood = problem.task.likelihood(table.target).to(table.device, table.dtype)
            if isinstance(likelihood, CumulativeLogit):
                raise DataError(
                    "ordinal was given, but a weight manifold does not learn the thresholds of ordered classes; leave "
                    "it out, or use another structure"
                )
            network = cast(ManifoldNetworks, problem.networks)._network(table.inputs, likelihood.outputs)
        self._require_memory(network, table)
        manifold_of = partial(
            self._build_manifold, network, likelihood, table, self._initial_weights(table, likelihood.outputs)
        )
        several = self._plan_trials(manifold_of, table)
        only = manifold_of(torch.ones_like(table.train.x[:, 0], dtype=torch.bool), self.tried[0])
        run = self._run_stages((several or only).plan(), table, session)
        manifold = several.choose(run.found) if several else only
        saved_score = float(run.found["decoder/score"])  # NaN without out-of-fold rows
        score = None if math.isnan(saved_score) else saved_score
        kept = run.found["decoder/kept"].tolist()
        gate = vars(manifold.gate_of(run.found))
        model = manifold.model_of(run.found)
        likelihood = manifold.likelihood_of(run.found)
        diagnostics = ManifoldDiagnostics(
            kept=tuple(kept), score=score, gate=gate, average=tuple(table.train.average.tolist())
        )
        if several:
            trials = {str(number): vars(trial) for number, trial in several.evaluate(run.found).items()}
            diagnostics = replace(diagnostics, latent_dims=trials)
        if self.sampled:
            sampling = sample_latent(model, likelihood, table.train, fold_in(table.seed, "chains"))
            diagnostics = replace(diagnostics, sampling=sampling)
        return Fitted(
            model=model,
            likelihood=likelihood,
            history=run.history,
            n_iter=run.epoch,
            score=score,
            seed=table.seed,
            diagnostics=diagnostics,
            warnings=tuple(_collect_warnings(diagnostics)),
        )

    def _build_manifold(
        self,
        network: Flat,
        likelihood: Likelihood,
        table: Prepared,
        start: Tensor | None,
        used: Tensor,
        dimensions: int,
    ) -> Manifold:
        """Return the stages for the rows in the mask `used`, (N,), and a number of latent dimensions."""
        rows = cast(Rows, table.train)
        folds = table.folds
        return Manifold(
            network,
            likelihood,
            rows if bool(used.all()) else rows.take(used),
            folds if folds is None or bool(used.all()) else folds[:, used.to(folds.device)],
            replace(self.config, autoencoder=replace(self.config.autoencoder, dimensions=dimensions)),
            table.seed,
            free_noise=self.free_noise,
            start=start,
        )

    def _plan_trials(self, manifold_of: Callable[[Tensor, int], Manifold], table: Prepared) -> DimensionSearch | None:
        """Return the search over several numbers of latent dimensions; None for a single number."""
        if len(self.tried) < 2:
            return None
        if table.folds is None:
            raise DataError(
                f"latent_dim={tuple(self.tried)} was given without held-out rows; set holdout, or give a single number"
            )
        return DimensionSearch(manifold_of, cast(Rows, table.train), table.folds[0] == 0, self.tried, table.seed)

    def _initial_weights(self, table: Prepared, outputs: int) -> Tensor | None:
        """Return the initial weights of user-defined networks, one for each trajectory, (R, P)."""
        if self.architecture is None:
            return None
        weights = []
        for k in range(math.ceil(self.config.candidates / self.config.snapshots)):
            with building(fold_in(table.seed, "network", k)):
                weights.append(flatten(self.architecture(table.inputs, outputs)))
        return torch.stack(weights)

    def _run_stages(self, plan: Mapping[str, Begin], table: Prepared, session: Session) -> StagedRun:
        """Run the stages, resuming from the last checkpoint if there is one."""

        def fingerprint() -> str:
            folds = None if table.folds is None else table.folds.tolist()
            facts = {**session.lasting, "seed": table.seed, "dealt": folds}
            return saving.fingerprint(cast(Rows, table.train), None, (), self.config, facts)

        callbacks, resume = session.with_checkpoint(table, fingerprint)
        return run_stages(
            plan,
            fold_in(table.seed, "stages"),
            device=table.device,
            callbacks=callbacks,
            progress=session.display("round"),
            resume=resume,
        )

    def _require_memory(self, network: Flat, table: Prepared) -> None:
        """Check that decoder and candidates fit into memory: weights, gradients and two moments of each."""
        options = self.config.autoencoder
        candidates = self.config.candidates
        with building(0), torch.device("meta"):
            decoder = Decoder(options.dimensions, options.hidden, network.size, options.last, network.blocks)
        numbers = 4.0 * (network.size * candidates + sum(p.numel() for p in decoder.parameters()))
        memory.require(
            numbers * torch.empty((), dtype=table.dtype, device="cpu").element_size(),
            f"a manifold of {network.size:,} weights, learned from {candidates} candidates",
            lambda share: (
                f"networks of about {int(share * network.size):,} weights fit: lower width, or set decoder_map='chunks'"
            ),
        )


def _collect_warnings(diagnostics: ManifoldDiagnostics) -> list[str]:
    """Return the warnings about a collapsed decoder and about chains that did not move."""
    warnings = [text] if (text := warn_if_stuck(diagnostics.sampling)) else []
    error = diagnostics.gate["reconstruction"]
    if error > COLLAPSED:
        warnings.append(
            f"the decoder leaves {100.0 * error:.0f} % of the variance of the candidates' weights unexplained; it may "
            "map different candidates to the same function, so predictions away from the data may be overconfident. "
            "Raise latent_dim, decoder_width or decoder_steps"
        )
    return warnings
