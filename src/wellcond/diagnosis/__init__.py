"""What the numbers mean, once: diagnose a model on images → rows, findings, one page. Floor 5.

diagnosing  diagnose: one pass, then the parts below on the first images
result      Diagnosis and what it is made of; storing (JSON), table (terminal)
sites       rows by place            variants    skips cut             jacobians  attention of the middle block
advice      the ε that reaches a κ   thumbnails  small pictures        keeping    the model as it was
findings    rows → plain words       picture     as in the papers, or not
beginning   verify_init: the weights a model begins with, and what they do to tokens from block to block
"""

from wellcond.diagnosis.beginning import Verification, verify_init
from wellcond.diagnosis.diagnosing import diagnose
from wellcond.diagnosis.result import Advice, Diagnosis, Finding

__all__ = ["Advice", "Diagnosis", "Finding", "Verification", "diagnose", "verify_init"]
