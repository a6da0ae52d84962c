"""`wellcond reproduce CLAIM`: a claim of the papers, measured over seeds → results/CLAIM.json with a verdict.

    claim          what a claim is: what the paper says, variants × seeds of runs, a judgement of all runs
    assembling     runs → file; portions: finished runs are kept and taken over, so a claim is gathered in pieces;
                   abreast: several at once, each in a worker
    statistics     rank correlation, and intervals over seeds; comparing: rows of means and of differences
    models         small models on procedural pictures, with the weights of their initialization or trained a moment
    proxy          asa-proxy: κ of a sub-block's output as a proxy for κ of its Jacobian; with proxy_verdict
    kappa          asa-kappa: κ of the attention's output against κ of the sums; with kappa_bounds, kappa_page
    experiments    a claim that trains: recipes with something changed; pictures: where --data has them;
                   training_runs: one run; training_page: its figures
    skip_claim     asa-fig1c: what is lost without a skip; loss_claim: asa-fig2; mixer_claim: asa-fig6, ConvMixer
    graying_claim  asa-table2: what graying adds; sweep_claim: asa-table3, by ε; family_claim: asa-table4
    layer_claims   asa-fig1b, asa-fig3-5: κ by block and epoch of trained models; with layer_page
    jacobian_claim asa-fig7-8: spectra of a trained block's Jacobian by ε
    step_time      asa-table1: what graying costs, from bench-graying.json
    skipless_cells the six cells of Cutting the Skip; rates_claim: cts-rates, their learning rates
    skipless_claim cts-table1: without skips against with them; skipless_losses: cts-fig1
    mae_claim      asa-table5: MAE with and without graying, fine-tuned
    dino_cells     DINO with and without skips; dino_judged: everything that is asked of one; dino_page: figures
    dense_claim    cts-dense: their features; layers_claim: cts-depth, by layer; pca_claim: cts-pca, as colours
    along_claims   cts-fig2, cts-fig3: along pre-training and at two thirds of it
    depth_claim    cts-init-depth: attention and tokens by depth, with depth_page
    beyond_claim   cts-beyond: extensions of the initialization; gap_claim: cts-gap, what is still missing

A claim is a module here with a `CLAIM`, or with `claim(options)` where the options decide more than which pictures are
there; it is named in `CLAIMS`, and nothing of it is imported before it is asked for.
"""

import dataclasses
from importlib import import_module
from types import ModuleType

from ..config import ReproduceConfig
from .claim import Claim

CLAIMS = {  # those of ReproduceConfig.claim
    "asa-proxy": "proxy",
    "asa-kappa": "kappa",
    "asa-fig1c": "skip_claim",
    "asa-fig2": "loss_claim",
    "asa-fig6": "mixer_claim",
    "asa-table2": "graying_claim",
    "asa-table3": "sweep_claim",
    "asa-table4": "family_claim",
    "asa-fig1b": "layer_claims",
    "asa-fig3-5": "layer_claims",
    "asa-fig7-8": "jacobian_claim",
    "asa-table1": "step_time",
    "asa-table5": "mae_claim",
    "cts-rates": "rates_claim",
    "cts-table1": "skipless_claim",
    "cts-fig1": "skipless_losses",
    "cts-fig2": "along_claims",
    "cts-fig3": "along_claims",
    "cts-dense": "dense_claim",
    "cts-depth": "layers_claim",
    "cts-pca": "pca_claim",
    "cts-init-depth": "depth_claim",
    "cts-beyond": "beyond_claim",
    "cts-gap": "gap_claim",
}


def run(config: ReproduceConfig) -> None:
    """Measure what is missing, write the file, print the table; and the page where one was asked for."""
    from . import assembling

    if seeds := getattr(_module(config), "SEEDS", 0):  # of a claim that is not measured over seeds
        config = dataclasses.replace(config, seeds=seeds)
    assembling.assemble(claim_of(config), config)


def claim_of(config: ReproduceConfig) -> Claim:
    """The claim with the user's options."""
    module = _module(config)
    if hasattr(module, "claim"):
        return module.claim(config)
    if not isinstance(module.CLAIM, Claim):  # it trains
        return module.CLAIM.claim(config)
    if config.data or config.epochs:
        raise ValueError(f"{config.claim} trains no recipe, so --data and --epochs mean nothing to it; leave them out")
    return module.CLAIM


def _module(config: ReproduceConfig) -> ModuleType:
    return import_module(f"{__name__}.{CLAIMS[config.claim]}")
