"""Where images come from. Floor 6.

sources      a name or a path → a source: `open_source`
records      what a source is, and what one picture of it is before it is decoded
parquet      shards in the hub's schema       folders  image folders       generated  the procedural pictures
reading      some pictures of a source, decoded in threads; damaged ones named, skipped and replaced
batches      pictures → the batches of tensors that a timm model wants; the only file here that needs torch
procedural   generated pictures with class, mask and box: deterministic, offline, numpy only
files        photographs on disk → uint8 arrays
"""
