"""The Triton kernel of the histogram. A program owns a stretch of one channel of one picture. Floor 6."""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

import triton
import triton.language as tl


@triton.jit
def count_values(pixels, wanted, counts, num_channels, length, BLOCK: tl.constexpr):
    """counts[channel, value] += 1 for each pixel; pictures that are not wanted are left at once."""
    channel = tl.program_id(1).to(tl.int64)
    if tl.load(wanted + channel // num_channels):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = place < length
        value = tl.load(pixels + channel * length + place, mask=inside, other=0).to(tl.int32)
        tl.atomic_add(counts + channel * 256 + value, 1, mask=inside)
