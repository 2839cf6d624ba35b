"""Lattices and atoms of columns: whole, in parts, and against planted steps."""

import math

import numpy as np
import pytest

from fathomless.data.lattices import NO_LATTICE, AtomTally, Lattice, LatticeTally, find_atoms, find_hurdle, find_lattice
from fathomless.data.targets import TargetScale, TargetTally, fit_target
from fathomless.system.errors import DataError

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(3.0, 500).astype(float)
LADDER = [digit * 10.0**exponent for exponent in (-3, -1, 0, 2) for digit in (1, 2, 5)]


@pytest.mark.parametrize("step", LADDER)
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_planted_step_is_found_whatever_the_rounding(step, share):
    values = (RNG.integers(-40, 40, 400) + share) * step
    for given in (values, values * 3.0 / 3.0, values.astype(np.float32).astype(float)):
        lattice = find_lattice(given)
        assert lattice.step == pytest.approx(step, rel=1e-12)
        assert lattice.offset == pytest.approx(share * step, abs=1e-5 * step)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.1, 0.1 * 3, 0.7], Lattice(0.2, 0.1)),
        ([3.0, 5.0, 9.0, 1.0], Lattice(2.0, 1.0)),
        ([9.99, 19.99, 24.99], Lattice(5.0, 4.99)),
        ([0.0, 1.0], Lattice(1.0)),
        ([1e6 + 2, 1e6 + 7, 1e6 + 8], Lattice(1.0)),
        ([5.0, 5.0], NO_LATTICE),
        ([0.0, math.pi, math.e], NO_LATTICE),
        ([0.0, 1e-7, 1.0], NO_LATTICE),  # far below the spread
        ([0.0, 5.56268465e-309], NO_LATTICE),  # steps below and above the range of double precision
        ([0.0, 5e-324], NO_LATTICE),
    ],
)
def test_lattices_of_small_columns(values, expected):
    found = find_lattice(np.array(values))
    assert (found.step, found.offset) == pytest.approx((expected.step, expected.offset))


def test_continuous_columns_have_no_lattice_and_recorded_decimals_a_fine_one():
    values = RNG.normal(size=300)
    assert find_lattice(values) == NO_LATTICE
    assert find_lattice(values[:12]) == NO_LATTICE
    assert find_lattice(values.round(5)) == NO_LATTICE
    assert find_lattice(values.round(2)).step == 0.01


def test_parts_of_a_column_have_the_lattice_of_the_whole():
    """Also where early parts suggest larger steps, of which later ones are no divisors."""
    for values in (COUNTS, np.array([5.0, 10, 20, 25, 7, 2]), np.array([0.0, 20, 10, 40, 4, 6]), np.array([1.0, 1, 2])):
        tally = LatticeTally()
        for part in np.array_split(values, 4):
            tally.add(part)
        assert tally.finish(float(values.min()), float(values.std())) == find_lattice(values)


def test_an_atom_has_a_twentieth_of_the_rows_and_ten_of_them():
    zeros = np.concatenate([np.zeros(20), RNG.normal(size=380)])
    assert find_atoms(zeros) == (0.0,)
    assert find_atoms(zeros[1:]) == ()  # 19 of 399
    assert find_atoms(np.concatenate([np.zeros(9), RNG.normal(size=30)])) == ()
    assert find_atoms(np.repeat([2.0, -1.0], 10)) == (-1.0, 2.0)


def test_an_atom_apart_from_other_values_stands_out_of_its_lattice():
    rng = np.random.default_rng(0)
    amounts = np.concatenate([np.zeros(60), rng.gamma(2.0, 3.0, 200)])
    for values, expected in (
        (amounts, (0.0,)),
        (amounts.round(2), (0.0,)),
        (np.concatenate([amounts, np.full(40, 20.0)]), (0.0, 20.0)),  # capped values
        (rng.poisson(0.5, 300).astype(float), ()),  # many zeros, as a law of counts has
        (np.concatenate([np.zeros(200), rng.poisson(9.0, 300)]), (0.0,)),
        (np.concatenate([np.zeros(200), amounts[60:89]]), ()),  # 29 other values
        (rng.integers(0, 6, 300).astype(float), ()),  # grades
        (np.repeat([0.0, 1.0], [270, 30]), ()),
    ):
        assert find_hurdle(values, find_lattice(values)) == expected


def test_atoms_are_found_in_bounded_memory():
    values = RNG.permutation(np.concatenate([np.zeros(700), np.full(400, 3.5), RNG.normal(size=8900)]))
    tally = AtomTally()
    for part in np.array_split(values, 9):
        tally.add(part)
        assert len(tally.counts) <= 2000
    assert tally.finish() == (0.0,) == find_atoms(values)


def test_targets_know_their_lattices_and_atoms_and_keep_them_in_json():
    y = np.column_stack([COUNTS, RNG.normal(size=500)])
    scale = fit_target(y, np.arange(500) % 7.0 + 0.5)  # weights have no effect on them
    assert scale.lattice == (Lattice(1.0), NO_LATTICE)
    assert scale.steps == (1.0 / scale.scale[0], 0.0)
    assert scale.atoms == (find_atoms(COUNTS), ())
    again = TargetScale.from_json(scale.to_json())
    assert (again, again.lattice, again.atoms) == (scale, scale.lattice, scale.atoms)
    tally = TargetTally()
    for part in np.array_split(y, 3):
        tally.add(part)
    assert (tally.finish().lattice, tally.finish().atoms) == (scale.lattice, scale.atoms)


def test_encodings_of_earlier_versions_have_no_lattice():
    plain = {"mean": [0.0], "scale": [2.0], "ndim": 1}
    assert TargetScale.from_json(plain).steps == (0.0,)
    assert TargetScale((0.0,), (2.0,), 1).to_json() == plain
    assert fit_target(RNG.normal(size=50)).to_json().keys() == plain.keys()


@pytest.mark.parametrize(
    "changed", [{"lattice": []}, {"lattice": [[1.0]]}, {"lattice": [[1.0, 2.0]]}, {"atoms": [["0"]]}, {"atoms": 3}]
)
def test_altered_lattices_are_refused(changed):
    with pytest.raises(DataError):
        TargetScale.from_json({"mean": [0.0], "scale": [2.0], "ndim": 1, **changed})
