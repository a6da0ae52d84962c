"""What a transformer block is: its sites, its skips with a gain each, its normalisation, its attention.

One adapter for each family, all proven bit-identical to the original blocks at gain 1 by the tests:

    vit.py      ViT, DeiT, DeiT-3, DINOv2, SigLIP, …; BEiT; EVA       swin.py   Swin v1, v2
    pyramid.py  PVT v2, MaxViT's attention blocks, ConvMixer          cait.py   CaiT, both stages
    xcit.py     XCiT with its three skips, and its class attention
    huggingface.py  ViT, DeiT, DINOv2 of transformers                 generic.py  any other, proven on a batch

`adapted.py` gains and sites, `adapting.py` in and out of a model, `recording.py` reading the sites, `branches.py`
the branches as functions and the attention maps, `keys.py` the attention keys, `matrices.py` W_Q, W_K, W_V, W_O and
those of the MLP, `prefix.py` the tokens that are no patches, `depth.py` one number for every block, `modes.py` passes
that leave nothing behind.
"""

from wellcond.blocks.adapted import SITES
from wellcond.blocks.adapting import adapt, adapted_blocks, find_blocks, unadapt
from wellcond.blocks.branches import attention_map, normalise, sub_block
from wellcond.blocks.keys import attention_keys, check_keys
from wellcond.blocks.matrices import Matrices, matrices_of
from wellcond.blocks.recording import Recording, record

__all__ = [
    "SITES",
    "Matrices",
    "Recording",
    "adapt",
    "adapted_blocks",
    "attention_keys",
    "attention_map",
    "check_keys",
    "find_blocks",
    "matrices_of",
    "normalise",
    "record",
    "sub_block",
    "unadapt",
]
