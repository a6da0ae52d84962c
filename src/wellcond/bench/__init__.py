"""Timings → ``results/bench-*.json``: what our parts cost, and how exact they were.

Every number is a median of interleaved repeats in one run (:mod:`~wellcond.bench.timing`), taken on real
photographs (:mod:`~wellcond.bench.images`), with the error against float64 of the very same path beside it
(:mod:`~wellcond.bench.oracle`). ``graying``, ``spectral``, ``diagnose``, ``train``, ``soap``, ``tokencut`` and
``knn`` are the entries::

    python -m wellcond.bench.graying --device cuda --data DIR --out results --parts a,c
    python -m wellcond.bench.spectral --device cpu --data DIR --out results

Nothing here is imported by ``import wellcond``; torch is imported only once a part runs.
"""
