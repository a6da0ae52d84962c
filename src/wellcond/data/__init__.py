"""Where images come from. Floor 6.

procedural   generated pictures with class, mask and box: deterministic, offline, numpy only
files        photographs on disk → uint8 arrays
"""
