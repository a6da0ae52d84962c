"""Self-distillation without labels (Caron et al., "Emerging Properties in Self-Supervised Vision Transformers",
arXiv 2104.14294, §3).

A student answers for every crop of a picture, a teacher for the two large ones; the student learns to give the
teacher's answer to the *other* crops. The teacher is the student's moving average. Two things keep the answers from
becoming all the same: the teacher's are centred (no answer may win for every picture) and sharpened (a low temperature:
they may not all be flat).

    loss = mean over i ∈ {1, 2}, v ≠ i of −Σ_k q_i log p_v,   q = softmax((t − c)/τ_t),  p = softmax(s/τ_s)

Teacher and centre are parts of the objective, so a checkpoint holds them. The centre moves once a step, by the mean
over all processes and chunks, and by how much answers differ is measured over all of them, too: their number changes
nothing. Answers and loss are float32 under autocast.

Legend: B images, L small crops of each, V = 2 + L, K prototypes, D width.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.config import DINOConfig
from wellcond.objectives import vit
from wellcond.objectives.dino_head import Head
from wellcond.objectives.objective import Mean, Objective

FLAT, SAME = 0.005, 0.02  # how near to ln K loss or entropy may be, as a share; nats that answers must differ by


class Branch(nn.Module):
    """Crops of one size → answers: a backbone and a head."""

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.model, self.head = model, head


class DINO(Objective):
    """images (B, 2, C, S, S) large crops, crops (B, L, C, s, s) small ones.

    `accumulate` is the number of chunks of a step, each of which brings its share of the centre; `batch_size` that of
    all its images: the answers to one alone have none to differ from.
    """

    centre: Tensor
    seen: Tensor
    temperature: Tensor
    student_share: Tensor
    freeze: Tensor
    resample: Tensor | None

    def __init__(self, model: nn.Module, config: DINOConfig, *, accumulate: int = 1, batch_size: int = 2) -> None:
        super().__init__()
        self.model: vit.ViT = vit.check_plain(model, "dino")
        self.config, self.accumulate, self.batch_size = config, accumulate, batch_size
        self.head = Head(self.model.num_features, config)
        self.teacher = Branch(copy.deepcopy(self.model), copy.deepcopy(self.head)).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(config.out_dim))
        seen = torch.zeros(2 * config.out_dim + 1)  # mean answer, mean probabilities, mean entropy; 0 between steps
        self.register_buffer("seen", seen, persistent=False)
        for name in ("temperature", "student_share", "freeze"):  # numbers of a step
            self.register_buffer(name, torch.ones(()), persistent=False)
        size = config.local_size if config.local_crops else self.model.patch_embed.img_size[0]
        self.register_buffer("resample", vit.resampling(self.model, size), persistent=False)
        self.train()

    def train(self, mode: bool = True) -> "DINO":
        """The teacher never drops paths."""
        super().train(mode)
        self.teacher.eval()
        return self

    def backbones(self) -> list[nn.Module]:
        return [self.model, self.teacher.model]

    def forward(self, images: Tensor, crops: Tensor) -> Any:
        features = [_features(self.model, images)]
        if crops.shape[1]:
            features.append(_features(self.model, crops, self.resample))
        student = self.head(torch.cat(features, 1))
        with torch.no_grad():
            teacher = self.teacher.head(_features(self.teacher.model, images))
        log_q = teacher_log_probabilities(teacher, self.centre, self.temperature)
        losses = distillation_losses(student, log_q, self.config.student_temperature)
        if not self.training:
            return losses
        q, entropy = log_q.exp(), entropy_of(log_q).mean()
        self.seen.add_(torch.cat([teacher.mean((0, 1)), q.mean((0, 1)), entropy[None]]) / self.accumulate)
        return losses.mean(), {"teacher_entropy": entropy}

    def numbers(self, step: int, *, steps_per_epoch: int, epochs: int) -> dict[str, float]:
        config = self.config
        warmed = min(1.0, step / max(1.0, config.temperature_epochs * steps_per_epoch))
        temperature = config.start_temperature + (config.teacher_temperature - config.start_temperature) * warmed
        half = (1 + math.cos(math.pi * step / (epochs * steps_per_epoch))) / 2
        return {
            "temperature": temperature,
            "student_share": (1 - config.momentum) * half,  # 1 − momentum, which rises to 1 by half a cosine
            "freeze": float(step < config.freeze_epochs * steps_per_epoch),
        }

    def frozen(self) -> list[tuple[nn.Parameter, Tensor]]:
        return [(self.head.last, self.freeze)]

    def settle_(self, good: Tensor, mean: Mean) -> dict[str, Tensor]:
        """teacher ← teacher + (1 − m)(student − teacher), centre ← m_c·centre + (1 − m_c)·mean of its answers.

        Returns by how much the entropy of the teacher's mean answer is above the mean of their entropies. This is the
        mean divergence of an answer from the mean answer: 0 where all are the same.
        """
        answer, q, entropy = mean(self.seen).split([len(self.centre), len(self.centre), 1])
        moved = (1 - self.config.centre_momentum) * good.to(self.centre.dtype)
        self.centre.add_((answer - self.centre) * moved)
        spread = entropy_of(q.clamp(min=1e-30).log()) - entropy[0]
        self.seen.zero_()
        student = [p.detach() for p in (*self.model.parameters(), *self.head.parameters())]
        teacher = [*self.teacher.model.parameters(), *self.teacher.head.parameters()]
        foreach: Any = torch
        difference = foreach._foreach_sub(student, teacher)
        foreach._foreach_mul_(difference, self.student_share * good.to(self.student_share.dtype))
        foreach._foreach_add_(teacher, difference)
        return {"teacher_spread": spread} if self.batch_size > 1 else {}

    def collapse(self, means: Mapping[str, float | None], epoch: int, epochs: int) -> str | None:
        """Where the teacher's answers do not differ, or the loss is still that of flat ones after a quarter of the run.

        Answers are flat at the beginning and then come apart: early a flat one alone is no collapse, and nothing
        is one before the last layer has learned for more than an epoch, or at all where the run ends.
        """
        loss, spread, entropy = (means.get(name) for name in ("loss", "teacher_spread", "teacher_entropy"))
        most = math.log(self.config.out_dim)
        if loss is None or epoch <= self.config.freeze_epochs + (epoch < epochs):
            return None
        same, flat = spread is not None and spread <= SAME, abs(loss - most) <= FLAT * most
        if flat and (same or epoch > epochs / 4):
            student = entropy is not None and entropy < (1 - FLAT) * most and not same
            whose = (
                "the student's are flat, though the teacher's differ; lower dino.student_temperature, or train longer"
                if student
                else "the teacher's are flat; lower dino.teacher_temperature or optim.lr, or warm up longer"
            )
            return (
                f"DINO has collapsed: its loss {loss:.3f} is that of answers that say nothing, ln(dino.out_dim) = "
                f"{most:.3f}: {whose}"
            )
        if same and entropy is not None and entropy >= (1 - FLAT) * most:  # the student is still elsewhere
            return (
                f"DINO has collapsed: the teacher's answers are flat, their entropy {entropy:.3f} is that of answers "
                f"that say nothing, ln(dino.out_dim) = {most:.3f}; lower dino.teacher_temperature or optim.lr"
            )
        if same:
            return (
                f"DINO has collapsed: the teacher gives every picture the same answer (they differ by {spread:.4f} "
                "nats); raise dino.teacher_temperature, or lower dino.centre_momentum or optim.lr"
            )
        return None


def _features(model: vit.ViT, crops: Tensor, resample: Tensor | None = None) -> Tensor:
    """(B, V, C, S, S) → (B, V, D)."""
    return vit.features(model, crops.flatten(0, 1), resample).unflatten(0, crops.shape[:2])


def teacher_log_probabilities(answers: Tensor, centre: Tensor, temperature: Tensor) -> Tensor:
    """(B, 2, K): log softmax((t − c)/τ)."""
    return torch.log_softmax((answers - centre) / temperature, -1)


def distillation_losses(student: Tensor, log_q: Tensor, temperature: float) -> Tensor:
    """(B,): cross-entropy of the student's answers (B, V, K) to the teacher's (B, 2, K) on other crops than its own."""
    with torch.autocast(student.device.type, enabled=False):
        cross = -log_q.exp() @ torch.log_softmax(student / temperature, -1).mT  # (B, 2, V)
    other = 1 - torch.eye(2, student.shape[1], dtype=cross.dtype, device=cross.device)
    return (cross * other).sum((1, 2)) / (2 * (student.shape[1] - 1))


def entropy_of(log_q: Tensor) -> Tensor:
    """(…, K) → (…)."""
    return -(log_q.exp() * log_q).sum(-1)
