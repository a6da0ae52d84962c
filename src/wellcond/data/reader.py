"""The program of a reading process: rows of a file into shared memory. Run by its path, never imported (`readers.py`).

Nothing but the standard library, so that it starts in hundredths of a second and takes a few megabytes. It is told on
standard input where in the memory a batch begins, how many rows it has and which, int64 each; one byte on standard
output says that the batch is there. The end of the input, also of a parent that was killed, is its own end.
"""

import mmap
import os
import sys
from array import array


def main(file: int, memory: int, begin: int, nbytes: int) -> None:
    """Row i of the file is the `nbytes` from `begin` + i · `nbytes` on."""
    shared = memoryview(mmap.mmap(memory, 0))
    while len(head := sys.stdin.buffer.read(16)) == 16:
        start, count = array("q", head)
        for place, row in enumerate(array("q", sys.stdin.buffer.read(8 * count))):
            first = start + place * nbytes
            read(file, shared[first : first + nbytes], begin + row * nbytes)
        os.write(1, b"+")


def read(file: int, part: memoryview, position: int) -> None:
    """Fill `part` from there on; a read may stop early, for instance at 2 GiB or on a network disk."""
    while len(part):
        got = os.preadv(file, [part], position)
        if not got:
            raise EOFError("the file of decoded images is shorter than it was")
        part, position = part[got:], position + got


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
