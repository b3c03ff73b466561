"""FLOP against counts by hand; peaks of real device names, and of this machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldsize.worker import models
from worldsize.worker.measure.flops import FlopCount, Peak, count_flop, measured_peak, peak_flops, published_peak

CPU = torch.device("cpu")


def squares(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs.float().square().flatten(1).sum(1)


def counted(module: nn.Module, inputs: Tensor) -> FlopCount:
    return count_flop(module, squares, inputs, torch.zeros(len(inputs)))


@pytest.mark.parametrize("batch", [2, 5])
def test_linear_layers(batch: int) -> None:
    """Forward 2, gradients of the weights 2, of the inputs 2; the first layer needs none of its inputs."""
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 10))
    assert counted(model, torch.randn(batch, 30)).per_sample == 4 * 30 * 20 + 6 * 20 * 10


def test_frozen_layers_cost_no_gradient_of_weights() -> None:
    model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10))
    model[0].requires_grad_(False)
    assert counted(model, torch.randn(2, 30)).per_sample == 2 * 30 * 20 + 4 * 20 * 10


def test_convolutions() -> None:
    """2 * out channels * in channels * kernel * places: 8 x 8 of them with padding, 4 x 4 with a stride of 2."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, 4, 3, stride=2, padding=1))
    first, second = 2 * 3 * 16 * 9 * 64, 2 * 16 * 4 * 9 * 16
    assert counted(model, torch.randn(2, 3, 8, 8)).per_sample == 2 * first + 3 * second


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = self.project(inputs).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        mixed: Tensor = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed


def test_attention() -> None:
    """Two products forward and four backward. Causal ones are counted whole, as everybody does."""
    projection, product = 2 * 16 * 32 * 96, 2 * 4 * 16 * 16 * 8
    assert counted(Attending(), torch.randn(2, 16, 32)).per_sample == 2 * projection + 6 * product


def test_the_model_stays_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    assert counted(model, torch.ones(4, 6)).per_sample
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


class Recurrent(nn.Module):
    def __init__(self, *, looks: bool) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.looks = looks

    def forward(self, inputs: Tensor) -> Tensor:
        if self.looks and inputs.sum() > 1e9:
            inputs = inputs / 2
        outputs: Tensor = self.rnn(inputs)[0]
        return outputs


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(8))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factor


class Broken(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        raise IndexError(f"no row {len(inputs)}")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Scaling(), "the model has no matrix product"),
        (Broken(8, 8), "counting failed: IndexError: no row 2"),
    ],
)
def test_what_cannot_be_counted_is_said(module: nn.Module, said: str) -> None:
    found = counted(module, torch.randn(2, 8))
    assert found.per_sample is None
    assert said in (found.reason or "")


def test_recurrent_layers() -> None:
    """Inputs and state to 4 x 8 gates each, 5 times; the first state needs no gradient, nor do the inputs."""
    found = counted(Recurrent(looks=False), torch.randn(2, 5, 8))
    assert found.per_sample == (4 * 5 + 4 * 5 + 2 * 4) * 8 * 32


def test_operators_that_are_not_known_are_named() -> None:
    """A model that looks at values is run; and the CPU's own kernel for recurrent layers is one whole."""
    found = counted(Recurrent(looks=True), torch.randn(2, 5, 8))
    assert found.per_sample is None
    assert "torch cannot count" in (found.reason or "")
    assert "rnn" in (found.reason or "")


class Looking(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs if inputs.sum() < 1e9 else inputs / 2)


def test_a_model_that_looks_at_values_is_counted_while_it_computes() -> None:
    model = nn.Sequential(nn.Dropout(), Looking(30, 20))
    state = torch.get_rng_state()
    assert counted(model, torch.ones(2, 30)).per_sample == 4 * 30 * 20
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["plain-cnn", "cnn", "mlp", "resnet18", "resnet50", "softmax"])
def test_built_in_models_can_be_counted(name: str) -> None:
    model = models.build(name, classes=10, channels=3, size=32)
    found = counted(model, torch.randn(2, 3, 32, 32))
    assert found.reason is None
    assert found.per_sample is not None
    # No weight of these models is used less than once a sample: forward, and its own gradient.
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)
    assert found.per_sample >= 4 * weights


@pytest.mark.parametrize(
    ("name", "fp32", "bf16"),
    [
        ("NVIDIA H200", 67e12, 989.5e12),
        ("NVIDIA H200 NVL", 60e12, 835.5e12),
        ("NVIDIA H100 80GB HBM3", 67e12, 989.5e12),
        ("NVIDIA H100 PCIe", 51e12, 756.5e12),
        ("NVIDIA H100 NVL", 60e12, 835.5e12),
        ("NVIDIA A100-SXM4-40GB", 19.5e12, 312e12),
        ("NVIDIA A100-SXM4-80GB", 19.5e12, 312e12),
        ("A100-SXM4-40GB", 19.5e12, 312e12),
        ("NVIDIA A100-PCIE-40GB", 19.5e12, 312e12),
        ("NVIDIA A100 80GB PCIe", 19.5e12, 312e12),
        ("Tesla V100-SXM2-16GB", 15.7e12, None),
        ("Tesla V100-PCIE-32GB", 14e12, None),
        ("Tesla V100S-PCIE-32GB", 16.4e12, None),
        ("Tesla T4", 8.1e12, None),
        ("NVIDIA L4", 30.3e12, 121e12),
        ("NVIDIA A10", 31.2e12, 125e12),
        ("NVIDIA GeForce RTX 4090", 82.6e12, 165.2e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA A10G", None, None),
        ("NVIDIA L40S", None, None),
        ("NVIDIA GH200 480GB", None, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, None),
        ("AMD Instinct MI300X", None, None),
    ],
)
def test_published_peaks_are_found_by_the_names_that_torch_gives(
    name: str, fp32: float | None, bf16: float | None
) -> None:
    assert (published_peak(name, "fp32"), published_peak(name, "bf16")) == (fp32, bf16)


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_the_peak_of_a_cpu_is_measured_quickly() -> None:
    measured_peak(CPU, "fp32", limit_s=0.01)  # what torch loads at first
    state = torch.get_rng_state()
    began = time.thread_time()  # of this thread alone: others on the machine do not count
    found = peak_flops(CPU, "fp32")
    assert time.thread_time() - began < 0.3
    assert torch.equal(torch.get_rng_state(), state)
    assert found is not None
    assert found.source == "measured"
    assert 1e8 < found.flop_s < 1e14
    assert peak_flops(CPU, "bf16") is None


@pytest.mark.usefixtures("one_thread")
def test_the_measured_peak_can_be_repeated() -> None:
    """On a shared machine the best of several comes near; a factor of 2 apart would be no peak."""
    found = [measured_peak(CPU, "fp32") for _ in range(3)]
    assert max(found) < 2 * min(found)


def test_convolutions_and_products_have_their_own_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch computes fp32 convolutions in TF32 and products in FP32, unless it is told otherwise."""
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    tf32, fp32 = 494.5e12, 67e12
    assert peak_flops(gpu, "fp32", 1.0) == Peak(flop_s=tf32, source="published")
    assert peak_flops(gpu, "fp32", 0.0) == Peak(flop_s=fp32, source="published")
    mixed = peak_flops(gpu, "fp32", 0.9)
    assert mixed is not None
    assert mixed.flop_s == pytest.approx(1 / (0.9 / tf32 + 0.1 / fp32))
    assert peak_flops(gpu, "bf16", 0.9) == Peak(flop_s=989.5e12, source="published")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    assert peak_flops(gpu, "fp32", 1.0) == Peak(flop_s=fp32, source="published")


def test_the_share_of_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))
    found = counted(model, torch.randn(2, 3, 8, 8))
    convolution, product = 2 * (2 * 3 * 8 * 9 * 36), 3 * (2 * 8 * 36 * 10)
    assert found.per_sample == convolution + product
    assert found.in_convolutions == pytest.approx(convolution / (convolution + product))


NEWER = """
import torch
from worldsize.worker.measure.flops import _products, arithmetic, measured_peak
if NEWER:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
torch.cuda.get_device_capability = lambda _: (9, 0)
gpu = torch.device("cuda", 0)
measured_peak(torch.device("cpu"), "fp32", limit_s=0.02)
found = [arithmetic(part, "fp32", gpu) for part in ("convolutions", "products")]
inside = []
for kind in ("fp32", "tf32"):
    with _products(kind):
        inside.append(arithmetic("products", "fp32", gpu))
after = [arithmetic(part, "fp32", gpu) for part in ("convolutions", "products")]
print(found, inside, after == found)
"""


@pytest.fixture(scope="module")
def asked() -> dict[bool, subprocess.Popen[str]]:
    """Both at once, each in a process of its own: who has used torch's newer names must not read the older ones."""
    return {
        newer: subprocess.Popen([sys.executable, "-c", f"NEWER = {newer}\n{NEWER}"], stdout=subprocess.PIPE, text=True)
        for newer in (True, False)
    }


@pytest.mark.parametrize(("newer", "products"), [(True, "tf32"), (False, "fp32")])
def test_both_ways_to_allow_tf32_are_understood_and_left_as_they_were(
    asked: dict[bool, subprocess.Popen[str]], newer: bool, products: str
) -> None:
    told, _ = asked[newer].communicate()
    assert asked[newer].returncode == 0
    assert told.strip() == f"['tf32', '{products}'] ['fp32', 'tf32'] True"
