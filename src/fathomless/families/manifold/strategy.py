"""A weight manifold as a strategy of inference: stages on all rows, after trials of several numbers of dimensions."""

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
from fathomless.families.manifold.dimensions import Dimensions
from fathomless.families.manifold.fit import Manifold, ManifoldConfig
from fathomless.families.manifold.network import Flat
from fathomless.families.manifold.networks import ManifoldDiagnostics, ManifoldNetworks
from fathomless.families.manifold.sampling import sample_latent, stands_still
from fathomless.families.manifold.stages import Begin, StagedRun, run_stages
from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.run import Fitted
from fathomless.nn.flat import flatten
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system import memory
from fathomless.system.errors import DataError
from fathomless.system.rng import building, fold_in

__all__ = ["COLLAPSED", "ManifoldStages"]

#: Reconstruction error beyond which the decoder has made one function of several.
COLLAPSED = 0.3


@dataclass(frozen=True)
class ManifoldStages:
    """Stages of a weight manifold: candidates, decoder and posterior over the latent space.

    Attributes
    ----------
    recipe : Recipe
        Options of the stages, with the largest number of dimensions that is tried.
    tried : sequence of int
        Numbers of dimensions.
    sampled : bool
        True if chains sample the posterior over the latent space at last.
    free_noise : bool
        True if rows choose the law of the noise.
    architecture : callable, optional
        Builds networks of the user's own, whose trajectories begin as they were built.
    """

    recipe: ManifoldConfig
    tried: Sequence[int]
    sampled: bool = False
    free_noise: bool = False
    architecture: Callable[[int, int], Any] | None = None

    def infer(self, problem: Problem, table: Prepared, session: Session) -> Fitted:
        """Run the stages."""
        assert isinstance(table.train, Rows)
        if ranks().count > 1:
            raise DataError(f"{ranks().count} processes were started; a weight manifold is fitted by one")
        with building(table.seed):
            likelihood = problem.task.likelihood(table.target).to(table.device, table.dtype)
            network = cast(ManifoldNetworks, problem.networks)._network(table.inputs, likelihood.outputs)
        self._require_memory(network, table)
        manifold_of = partial(self._manifold, network, likelihood, table, self._start(table, likelihood.outputs))
        several = self._several(manifold_of, table)
        only = manifold_of(torch.ones_like(table.train.x[:, 0], dtype=torch.bool), self.tried[0])
        run = self._run((several or only).plan(), table, session)
        manifold = several.chosen(run.found) if several else only
        found_score = float(run.found["decoder/score"])
        score = None if math.isnan(found_score) else found_score
        kept, gate = run.found["decoder/kept"].tolist(), vars(manifold.gate_of(run.found))
        model, likelihood = manifold.model_of(run.found), manifold.likelihood_of(run.found)
        diagnostics = ManifoldDiagnostics(
            kept=tuple(kept), score=score, gate=gate, average=tuple(table.train.average.tolist())
        )
        if several:
            tried_all = {str(number): vars(one) for number, one in several.told(run.found).items()}
            diagnostics = replace(diagnostics, latent_dims=tried_all)
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
            warnings=tuple(_unconverged(diagnostics)),
        )

    def _manifold(
        self,
        network: Flat,
        likelihood: Likelihood,
        table: Prepared,
        start: Tensor | None,
        used: Tensor,
        dimensions: int,
    ) -> Manifold:
        """Return the stages of some rows (bool of shape (N,)) and a number of dimensions."""
        rows, folds = cast(Rows, table.train), table.folds
        return Manifold(
            network,
            likelihood,
            rows if bool(used.all()) else rows.take(used),
            folds if folds is None or bool(used.all()) else folds[:, used.to(folds.device)],
            replace(self.recipe, autoencoder=replace(self.recipe.autoencoder, dimensions=dimensions)),
            table.seed,
            free_noise=self.free_noise,
            start=start,
        )

    def _several(self, manifold_of: Callable[[Tensor, int], Manifold], table: Prepared) -> Dimensions | None:
        """Return the plan that tries several numbers of dimensions, if there are several."""
        if len(self.tried) < 2:
            return None
        if table.folds is None:
            raise DataError(
                f"latent_dim={tuple(self.tried)} was given without rows that are held out; set holdout, or give one "
                "number"
            )
        return Dimensions(manifold_of, cast(Rows, table.train), table.folds[0] == 0, self.tried, table.seed)

    def _start(self, table: Prepared, outputs: int) -> Tensor | None:
        """Return the weights of networks of the user's own as they were built, one for each trajectory, (R, P)."""
        if self.architecture is None:
            return None
        found = []
        for k in range(math.ceil(self.recipe.candidates / self.recipe.snapshots)):
            with building(fold_in(table.seed, "network", k)):
                found.append(flatten(self.architecture(table.inputs, outputs)))
        return torch.stack(found)

    def _run(self, plan: Mapping[str, Begin], table: Prepared, session: Session) -> StagedRun:
        """Run stages, from their last checkpoint if there is one."""

        def fingerprint() -> str:
            dealt = None if table.folds is None else table.folds.tolist()
            facts = {**session.lasting, "seed": table.seed, "dealt": dealt}
            return saving.fingerprint(cast(Rows, table.train), None, (), self.recipe, facts)

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
        """Refuse a decoder, or candidates, that do not fit: weights, gradients and two moments of each."""
        own, candidates = self.recipe.autoencoder, self.recipe.candidates
        with building(0), torch.device("meta"):
            decoder = Decoder(own.dimensions, own.hidden, network.size, own.last, network.blocks)
        numbers = 4.0 * (network.size * candidates + sum(p.numel() for p in decoder.parameters()))
        memory.require(
            numbers * torch.empty((), dtype=table.dtype, device="cpu").element_size(),
            f"a manifold of {network.size:,} weights, learned from {candidates} candidates",
            lambda share: (
                f"networks of about {int(share * network.size):,} weights fit: lower width, or use chunks (decoder_map)"
            ),
        )


def _unconverged(told: ManifoldDiagnostics) -> list[str]:
    """Return the warnings of a decoder that has collapsed and of chains that never moved."""
    found = [text] if (text := stands_still(told.sampling)) else []
    error = told.gate["reconstruction"]
    if error > COLLAPSED:
        found.append(
            f"the decoder leaves {100.0 * error:.0f} % of the variance of the candidates' weights, and may have "
            "made one function of several: what is not seen looks too sure. Raise latent_dim, decoder_width or "
            "decoder_steps"
        )
    return found
