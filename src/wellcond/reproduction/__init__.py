"""`wellcond reproduce CLAIM`: a claim of the papers, measured over seeds → results/CLAIM.json with a verdict.

    claim      what a claim is: what the paper says, variants × seeds of runs, a judgement of all runs
    assembling runs → file; finished runs are kept, so a long claim can be gathered in portions
    statistics rank correlation, and intervals over seeds
    models     small models on procedural pictures, with the weights of their initialization or trained for a moment
    proxy      asa-proxy: κ of a sub-block's output as a proxy for κ of its Jacobian; with proxy_verdict
    kappa      asa-kappa: κ of the attention's output against κ of the sums; with kappa_bounds, kappa_page

A claim is a module here with a `CLAIM`, named in `CLAIMS`; nothing of it is imported before it is asked for.
"""

from importlib import import_module

from ..config import ReproduceConfig

CLAIMS = {"asa-proxy": "proxy", "asa-kappa": "kappa"}  # those of ReproduceConfig.claim


def run(config: ReproduceConfig) -> None:
    """Measure what is missing, write the file, print the table; and the page where one was asked for."""
    from . import assembling

    assembling.assemble(import_module(f"{__name__}.{CLAIMS[config.claim]}").CLAIM, config)
