"""How a model begins: verify_init looks at its weights, and at what they do to images, against "Cutting the Skip".

verifying  verify_init                        result    Verification, ⇄ JSON
weights    rows of the matrices themselves    depth     rows by depth, on images
verdict    rows → one sentence, findings      pictures  W_Q W_Kᵀ as a picture (the paper's Fig. 5)
table      on the terminal                    page      one offline page
"""

from wellcond.diagnosis.beginning.result import Verification
from wellcond.diagnosis.beginning.verifying import verify_init

__all__ = ["Verification", "verify_init"]
