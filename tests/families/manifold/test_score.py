"""The score of a weight manifold: of rows that chose neither its candidates nor its noise."""

import numpy as np
import pytest
import torch

import fathomless.families.manifold.fit as module
from fathomless.families.manifold.candidates import gather_out_of_fold, select_candidates
from fathomless.families.manifold.estimator import ProjectedBayesRegressor
from fathomless.inference.out_of_fold.noise import choose_noise, sum_log_density

SHORT = {"candidate_steps": 60, "decoder_steps": 30, "latent_steps": 20, "latent_dim": 2, "width": 8}


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
def test_a_row_has_no_part_in_its_own_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over ten parts of what candidates and a noise that the other parts chose say of each, by hand."""
    seen: dict[str, torch.Tensor] = {}
    fitting = module.Manifold.select

    def selected(self: module.Manifold, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        chosen = fitting(self, found)
        own = self.collect_candidates(found)
        f, rows = self._outputs(own["weights"], len(self.rows)), self.rows
        part, summed, rows_scored = torch.arange(len(rows)) % 10, 0.0, 0.0
        for k in range(10):
            used = part != k
            rest = self.unseen & used
            squared = (f - rows.y).square().sum(-1)
            errors = (rest * squared).sum(1) / rest.sum(1)
            kept = select_candidates(own["log_joint"], errors, len(rows), least=10)
            likelihood = self._set_trained_noise(own, kept)
            held = gather_out_of_fold(f[kept], self.unseen[kept], rows)
            own_part = part[held.rows] == k  # rows are missing whose candidates are all left out
            of_part, count = sum_log_density(held.take(own_part), choose_noise(held.take(~own_part), likelihood))
            summed, rows_scored = summed + of_part, rows_scored + count
        seen.update(expected=torch.tensor(summed / rows_scored), found=chosen["score"])
        return chosen

    monkeypatch.setattr(module.Manifold, "select", selected)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = X[:, 0] + 0.5 * rng.standard_t(4, size=40)
    fitted = ProjectedBayesRegressor(candidates=20, random_state=0, **SHORT).fit(X, y)
    assert float(seen["found"]) == pytest.approx(float(seen["expected"]), abs=1e-6)
    assert fitted.validation_score_ == pytest.approx(float(seen["expected"]) - fitted.target_.log_unit, abs=1e-6)
