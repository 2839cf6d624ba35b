"""Unbounded depth: the number of layers is inferred. This folder imports no other family."""

from fathomless.families.depth.options import PRESETS, DepthOptions
from fathomless.families.family import Family
from fathomless.system.citations import ICML, Reference

__all__ = ["FAMILY"]

#: Entry of this family in the registry.
FAMILY = Family(
    name="depth",
    title="unbounded depth: the number of layers is inferred",
    options=DepthOptions,
    classifier="fathomless.families.depth.estimator:UnboundedDepthClassifier",
    regressor="fathomless.families.depth.estimator:UnboundedDepthRegressor",
    networks="fathomless.families.depth.networks:DepthNetworks",
    papers=(
        Reference(
            "nazaret2022variational",
            "inproceedings",
            ("Achille Nazaret", "David Blei"),
            "Variational Inference for Infinitely Deep Neural Networks",
            2022,
            "booktitle",
            ICML,
        ),
    ),
    report="fathomless.families.depth.report:page",
    findings="fathomless.families.depth.report:findings",
    progress={"mean_depth": "depth"},
    presets=PRESETS,
)
