"""Count the FLOP of training one sample, and find the peak FLOP/s of the device.

A multiplication and an addition are two FLOP. Matrix products, convolutions and attention are counted, forward and
backward. The rest (norms, activations, the optimizer) is little work and by convention not part of model FLOP.
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

from worldsize.worker.workloads.base import PerSample

Precision = Literal["fp32", "bf16"]
Arithmetic = Literal["fp32", "tf32", "bf16"]
"""Number format in which a device computes. Training in fp32 may use TF32: torch's default is convolutions only."""

HEAVY = re.compile(r"(mm|bmm|mv|conv(?!ert)\w*|attention\w*|rnn\w*|lstm\w*|gru\w*|trilinear)(_backward|_forward)?$")
"""Endings of operators that do most of a model's work. If the counter does not know one, its count is useless."""

PEAKS: tuple[tuple[str, dict[Arithmetic, float]], ...] = (
    # H200 datasheet: SXM FP32 67, with sparsity TF32 989, BF16 1,979; NVL 60, 835, 1,671.
    (r"H200", {"fp32": 67e12, "tf32": 494.5e12, "bf16": 989.5e12}),
    (r"H200 NVL", {"fp32": 60e12, "tf32": 417.5e12, "bf16": 835.5e12}),
    # H100 datasheet: same as H200. PCIe, from its first edition: 51, 756, 1,513.
    (r"H100 80GB HBM3|H100 SXM5.*", {"fp32": 67e12, "tf32": 494.5e12, "bf16": 989.5e12}),
    (r"H100 NVL", {"fp32": 60e12, "tf32": 417.5e12, "bf16": 835.5e12}),
    (r"H100 PCIe", {"fp32": 51e12, "tf32": 378e12, "bf16": 756.5e12}),
    # A100 datasheet: FP32 19.5, TF32 156, BF16 312, the same for SXM and PCIe, 40 and 80 GB.
    (r"A100-(SXM4|PCIE)-[48]0GB|A100 80GB PCIe", {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12}),
    # V100 datasheet: FP32 15.7 (SXM2), 14 (PCIe), 16.4 (V100S). The V100 and the T4 have neither TF32 nor bf16.
    (r"V100-SXM[23]-(16|32)GB(-LS)?", {"fp32": 15.7e12}),
    (r"V100-PCIE-(16|32)GB", {"fp32": 14e12}),
    (r"V100S-PCIE-32GB", {"fp32": 16.4e12}),
    # T4 datasheet: FP32 8.1.
    (r"T4", {"fp32": 8.1e12}),
    # L4 datasheet: FP32 30.3, with sparsity TF32 120, BF16 242.
    (r"L4", {"fp32": 30.3e12, "tf32": 60e12, "bf16": 121e12}),
    # A10 datasheet: FP32 31.2, TF32 62.5, BF16 125. (The A10G is a different chip.)
    (r"A10", {"fp32": 31.2e12, "tf32": 62.5e12, "bf16": 125e12}),
    # Ada GPU architecture whitepaper, appendix A: RTX 4090 FP32 and TF32 82.6, BF16 with FP32 accumulation 165.2.
    (r"GeForce RTX 4090", {"fp32": 82.6e12, "tf32": 82.6e12, "bf16": 165.2e12}),
)
"""Published dense peaks (half of those with sparsity), by torch's device name without the vendor."""


@dataclass(frozen=True, kw_only=True)
class FlopCount:
    per_sample: float | None
    """FLOP per sample of a training step, forward and backward. None if unknown."""
    in_convolutions: float = 0.0
    """Fraction of the FLOP that is in convolutions."""
    reason: str | None = None
    """Why the FLOP are unknown."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    flop_s: float
    source: Literal["published", "measured"]


def count_flop(module: nn.Module, loss_per_sample: PerSample, inputs: Tensor, targets: Tensor) -> FlopCount:
    """Count the FLOP of a step on a few samples. Batch norm needs at least two samples.

    Counting needs only shapes, so it uses a copy of the model on torch's `meta` device, which computes nothing. A model
    that reads values cannot run there, and is counted on the device of the inputs.
    """
    count = _count(module, loss_per_sample, inputs, targets, torch.device("meta"))
    return count if count.reason is None else _count(module, loss_per_sample, inputs, targets, inputs.device)


def _count(
    module: nn.Module, loss_per_sample: PerSample, inputs: Tensor, targets: Tensor, device: torch.device
) -> FlopCount:
    operators, counter = _Operators(), FlopCounterMode(display=False)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            model = copy.deepcopy(module).to(device).train()
            with operators, counter:
                loss_per_sample(model(inputs.to(device)), targets.to(device)).sum().backward()
    except Exception as error:
        # A model that cannot be counted can still be trained.
        return FlopCount(per_sample=None, reason=f"counting failed: {type(error).__name__}: {error}")
    uncounted = map(_name, operators.packets - counter.flop_registry.keys())
    unknown = sorted(name for name in uncounted if HEAVY.search(name))
    if unknown:
        return FlopCount(per_sample=None, reason=f"torch cannot count {', '.join(unknown)}")
    if not (total := counter.get_total_flops()):
        return FlopCount(per_sample=None, reason="the model has no matrix product, convolution or attention")
    by_operator = counter.get_flop_counts()["Global"].items()
    convolutions = sum(flop for operator, flop in by_operator if "conv" in _name(operator))
    return FlopCount(per_sample=total / len(inputs), in_convolutions=convolutions / total)


def peak_flops(device: torch.device, precision: Precision, in_convolutions: float = 0.0) -> Peak | None:
    """Return the peak of one device (a GPU, or the threads of this process): published if known, else measured.

    If convolutions and matrix products have different peaks, this is their harmonic mean, weighted by FLOP. None for
    bf16 on a CPU: some virtual machines announce bf16 instructions (AMX) that they do not have, and a process that uses
    them is killed.
    """
    if device.type != "cuda":
        return None if precision == "bf16" else Peak(flop_s=measured_peak(device, precision), source="measured")
    name = torch.cuda.get_device_name(device)
    shares = {"convolutions": in_convolutions, "products": 1 - in_convolutions}
    used = {kind: arithmetic(kind, precision, device) for kind, share in shares.items() if share > 0}
    published = {number_format: published_peak(name, number_format) for number_format in set(used.values())}
    peaks = {number_format: peak or measured_peak(device, number_format) for number_format, peak in published.items()}
    flop_s = 1 / sum(shares[kind] / peaks[number_format] for kind, number_format in used.items())
    return Peak(flop_s=flop_s, source="published" if all(published.values()) else "measured")


def arithmetic(kind: str, precision: Precision, device: torch.device) -> Arithmetic:
    """Return the number format of convolutions or products in torch's settings. TF32 needs compute capability 8."""
    if precision != "fp32" or torch.cuda.get_device_capability(device) < (8, 0):
        return precision
    cudnn: Any = torch.backends.cudnn
    older, newer = (cudnn, cudnn.conv) if kind == "convolutions" else (torch.backends.cuda.matmul,) * 2
    try:
        allowed = older.allow_tf32
    except RuntimeError:  # the program has used the newer setting
        allowed = newer.fp32_precision == "tf32"
    return "tf32" if allowed else "fp32"


def published_peak(device_name: str, arithmetic: Arithmetic) -> float | None:
    """Return the published peak. Only full names match: an A10G is not an A10, nor a MIG slice of an A100 an A100."""
    model = re.sub(r"^(NVIDIA|Tesla)\s+", "", device_name.strip())
    return next((peaks.get(arithmetic) for pattern, peaks in PEAKS if re.fullmatch(pattern, model)), None)


def measured_peak(device: torch.device, arithmetic: Arithmetic, limit_s: float = 0.2) -> float:
    """Return the FLOP/s of the fastest matrix product within the time limit. Its size doubles while there is time.

    Other programs can only slow it down, so the fastest is closest to the true peak.
    """
    dtype = torch.bfloat16 if arithmetic == "bf16" else torch.float32
    if device.type != "cuda" or arithmetic == "bf16":
        return _best_product(device, dtype, limit_s)
    with _products(arithmetic):
        return _best_product(device, dtype, limit_s)


@contextmanager
def _products(arithmetic: Arithmetic) -> Iterator[None]:
    """Run fp32 products in this format. Code that has used torch's newer settings must not use the older ones."""
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
    generator = torch.Generator(device)  # separate, so that it does not change the random numbers of training
    began, best, side = time.perf_counter(), 0.0, 256
    while True:
        left, right = (torch.rand(side, side, device=device, generator=generator).to(dtype) for _ in range(2))
        _timed_product(left, right)  # the first product of each size includes one-time setup
        product_s = _timed_product(left, right)
        best = max(best, 2 * side**3 / product_s)
        # The next size has two products, each up to eight times as long.
        if side == largest or time.perf_counter() - began + 16 * product_s > limit_s:
            break
        side *= 2
    while time.perf_counter() - began + product_s < limit_s:
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
    """Records which operators ran. As it is below the counter, it sees the operators after decomposition."""

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
