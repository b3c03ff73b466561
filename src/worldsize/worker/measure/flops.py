"""FLOP of training one sample, counted once; and how many a second the device could do at most.

A multiplication and an addition are two. Counted are matrix products, convolutions and attention, forward and backward:
what is left (norms, activations, the optimiser) is little work, and no part of what people call model FLOP.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from worldsize.worker.workloads.base import OfEach

Precision = Literal["fp32", "bf16"]
Arithmetic = Literal["fp32", "tf32", "bf16"]
"""What a device computes with: training in fp32 may use TF32, which torch by default allows for convolutions alone."""

HEAVY = re.compile(r"(mm|bmm|mv|conv(?!ert)\w*|attention\w*|rnn\w*|lstm\w*|gru\w*|trilinear)(_backward|_forward)?$")
"""Ends of names of operators that do a model's work: where the counter does not know one, its count is no answer."""

PEAKS: tuple[tuple[str, dict[Arithmetic, float]], ...] = (
    # H200 datasheet: SXM FP32 67, with sparsity TF32 989, BF16 1,979; NVL 60, 835, 1,671.
    (r"H200", {"fp32": 67e12, "tf32": 494.5e12, "bf16": 989.5e12}),
    (r"H200 NVL", {"fp32": 60e12, "tf32": 417.5e12, "bf16": 835.5e12}),
    # H100 datasheet: as the H200. PCIe, in its first edition: 51, 756, 1,513.
    (r"H100 80GB HBM3|H100 SXM5.*", {"fp32": 67e12, "tf32": 494.5e12, "bf16": 989.5e12}),
    (r"H100 NVL", {"fp32": 60e12, "tf32": 417.5e12, "bf16": 835.5e12}),
    (r"H100 PCIe", {"fp32": 51e12, "tf32": 378e12, "bf16": 756.5e12}),
    # A100 datasheet: FP32 19.5, TF32 156, BF16 312, the same for SXM and PCIe, 40 and 80 GB.
    (r"A100-(SXM4|PCIE)-[48]0GB|A100 80GB PCIe", {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12}),
    # V100 datasheet: FP32 15.7 (SXM2), 14 (PCIe), 16.4 (V100S). It has neither TF32 nor bf16, nor has the T4.
    (r"V100-SXM[23]-(16|32)GB(-LS)?", {"fp32": 15.7e12}),
    (r"V100-PCIE-(16|32)GB", {"fp32": 14e12}),
    (r"V100S-PCIE-32GB", {"fp32": 16.4e12}),
    # T4 datasheet: FP32 8.1.
    (r"T4", {"fp32": 8.1e12}),
    # L4 datasheet: FP32 30.3, with sparsity TF32 120, BF16 242.
    (r"L4", {"fp32": 30.3e12, "tf32": 60e12, "bf16": 121e12}),
    # A10 datasheet: FP32 31.2, TF32 62.5, BF16 125. (The A10G is another chip.)
    (r"A10", {"fp32": 31.2e12, "tf32": 62.5e12, "bf16": 125e12}),
    # Ada GPU architecture whitepaper, appendix A: RTX 4090 FP32 and TF32 82.6, BF16 with FP32 accumulation 165.2.
    (r"GeForce RTX 4090", {"fp32": 82.6e12, "tf32": 82.6e12, "bf16": 165.2e12}),
)
"""Published dense peaks (half of those with sparsity), by what torch calls the device, without its maker."""


@dataclass(frozen=True, kw_only=True)
class FlopCount:
    per_sample: float | None
    """Of one sample of a training step: forward and backward. None: not known."""
    in_convolutions: float = 0.0
    """Share of it."""
    reason: str | None = None
    """Why not."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    flop_s: float
    source: Literal["published", "measured"]


def count_flop(module: nn.Module, loss_of_each: OfEach, inputs: Tensor, targets: Tensor) -> FlopCount:
    """Of a step on these few samples (two or more: batch norm wants company), which lie where the model does.

    Shapes are all that counting needs, so it is done with a copy of the model on torch's `meta` device, which computes
    nothing. A model that looks at values on its way cannot run there: it is counted while it computes.
    """
    found = _count(module, loss_of_each, inputs, targets, torch.device("meta"))
    return found if found.reason is None else _count(module, loss_of_each, inputs, targets, inputs.device)


def _count(module: nn.Module, loss_of_each: OfEach, inputs: Tensor, targets: Tensor, device: torch.device) -> FlopCount:
    seen, counter = _Operators(), FlopCounterMode(display=False)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            model = copy.deepcopy(module).to(device).train()
            with seen, counter:
                loss_of_each(model(inputs.to(device)), targets.to(device)).sum().backward()
    except Exception as error:
        # Whatever a model does that cannot be counted, it can still be trained.
        return FlopCount(per_sample=None, reason=f"counting failed: {type(error).__name__}: {error}")
    unknown = sorted(_name(each) for each in seen.packets - counter.flop_registry.keys() if HEAVY.search(_name(each)))
    if unknown:
        return FlopCount(per_sample=None, reason=f"torch cannot count {', '.join(unknown)}")
    if not (total := counter.get_total_flops()):
        return FlopCount(per_sample=None, reason="the model has no matrix product, convolution or attention")
    convolutions = sum(flop for each, flop in counter.get_flop_counts()["Global"].items() if "conv" in _name(each))
    return FlopCount(per_sample=total / len(inputs), in_convolutions=convolutions / total)


def peak_flops(device: torch.device, precision: Precision, in_convolutions: float = 0.0) -> Peak | None:
    """Of one device (a GPU, or the threads of this process), as published where the device is known, else measured.

    Where convolutions and matrix products have different peaks: 1 / (share / peak + rest / peak), as the work is mixed.
    None for bf16 on a CPU: some virtual machines announce instructions for it (AMX) that they do not have, and a
    process that tries a product of any size dies of an illegal instruction.
    """
    if device.type != "cuda":
        return None if precision == "bf16" else Peak(flop_s=measured_peak(device, precision), source="measured")
    name, shares = (
        torch.cuda.get_device_name(device),
        {"convolutions": in_convolutions, "products": 1 - in_convolutions},
    )
    used = {part: arithmetic(part, precision, device) for part, share in shares.items() if share > 0}
    published = {each: published_peak(name, each) for each in set(used.values())}
    peaks = {each: peak or measured_peak(device, each) for each, peak in published.items()}
    flop_s = 1 / sum(shares[part] / peaks[each] for part, each in used.items())
    return Peak(flop_s=flop_s, source="published" if all(published.values()) else "measured")


def arithmetic(part: str, precision: Precision, device: torch.device) -> Arithmetic:
    """What torch computes convolutions or products with, as it is set; TF32 came with compute capability 8."""
    if precision != "fp32" or torch.cuda.get_device_capability(device) < (8, 0):
        return precision
    cudnn: Any = torch.backends.cudnn
    older, newer = (cudnn, cudnn.conv) if part == "convolutions" else (torch.backends.cuda.matmul,) * 2
    try:
        allowed = older.allow_tf32
    except RuntimeError:  # the program has set the newer name
        allowed = newer.fp32_precision == "tf32"
    return "tf32" if allowed else "fp32"


def published_peak(device_name: str, arithmetic: Arithmetic) -> float | None:
    """Whole names only: an A10G is no A10, and a MIG slice of an A100 is no A100."""
    model = re.sub(r"^(NVIDIA|Tesla)\s+", "", device_name.strip())
    return next((peaks.get(arithmetic) for pattern, peaks in PEAKS if re.fullmatch(pattern, model)), None)


def measured_peak(device: torch.device, arithmetic: Arithmetic, limit_s: float = 0.2) -> float:
    """The best of the matrix products that fit into the time: 2 n^3 / t, with n doubled while there is time for more.

    Others on the machine only ever make it slower, so the best is nearest to the truth.
    """
    dtype = torch.bfloat16 if arithmetic == "bf16" else torch.float32
    if device.type != "cuda" or arithmetic == "bf16":
        return _best_product(device, dtype, limit_s)
    with _products(arithmetic):
        return _best_product(device, dtype, limit_s)


@contextmanager
def _products(arithmetic: Arithmetic) -> Iterator[None]:
    """fp32 products with this arithmetic, for a while. Who has used torch's newer names must not use the older."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:
        switch = torch.backends.cuda.matmul
        earlier, switch.fp32_precision = switch.fp32_precision, "tf32" if arithmetic == "tf32" else "ieee"
        try:
            yield
        finally:
            switch.fp32_precision = earlier
        return
    torch.set_float32_matmul_precision("high" if arithmetic == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _best_product(device: torch.device, dtype: torch.dtype, limit_s: float) -> float:
    largest = 8192 if device.type == "cuda" else 1024
    draws = torch.Generator(device)  # of its own: training must not draw other numbers because of this
    began, best, side = time.perf_counter(), 0.0, 256
    while True:
        left, right = (torch.rand(side, side, device=device, generator=draws).to(dtype) for _ in range(2))
        _timed_product(left, right)  # the first one of a kind prepares itself
        taken = _timed_product(left, right)
        best = max(best, 2 * side**3 / taken)
        # A product of the next size takes up to eight times as long, and there are two.
        if side == largest or time.perf_counter() - began + 16 * taken > limit_s:
            break
        side *= 2
    while time.perf_counter() - began + taken < limit_s:
        best = max(best, 2 * side**3 / _timed_product(left, right))
    return best


def _timed_product(left: Tensor, right: Tensor) -> float:
    if left.is_cuda:
        torch.cuda.synchronize(left.device)
    began = time.perf_counter()
    torch.mm(left, right)
    if left.is_cuda:
        torch.cuda.synchronize(left.device)
    return time.perf_counter() - began


class _Operators(TorchDispatchMode):
    """Which operators ran: below the counter, so that it sees what they were taken apart into."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: set[Any] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        self.packets.add(func._overloadpacket)
        return func(*args, **(kwargs or {}))


def _name(packet: Any) -> str:
    return str(packet.__name__)
