"""Where images come from, and how they reach a model. Floor 6.

sources      a name or a path → a source: `open_source`;  splits  its training or validation half: `open_split`
records      what a source is, and what one picture of it is before it is decoded
parquet      shards in the hub's schema       folders  image folders       generated  the procedural pictures
arrays       CIFAR-10, CIFAR-100, Fashion-MNIST                            hubsets    sets of the hub (extra)
layouts      VOC, COCO and ADE20K as they lie on disk (voc, coco, ade20k)   annotations  masks and boxes of any source
reading      some pictures of a source, decoded in threads; damaged ones named, skipped and replaced
batches      pictures → the batches of tensors that a timm model wants, to look at it
procedural   generated pictures with class, mask and box: deterministic, offline, numpy only
files        photographs on disk → uint8 arrays                        ours  what wellcond gray left beside them

To train: a source, decoded once → a cache → feeds, in the order of a sampling → augment.
cache        all pictures of a source as one mapped uint8 array      filling  decoding them, in threads
fingerprints when a source has changed       disk  locks, whole writes, checksums       progress  the bar
sampling     which samples a step sees: a function of (seed, step)   randomness  numbers without state
feeds        raw batches on the device, resident or streamed         augment/    what is done to them there
"""
