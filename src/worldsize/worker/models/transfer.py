"""Transfer learning: load pretrained weights, replace the head, freeze and unfreeze the backbone.

The backbone is every parameter outside the head. Unfreezing changes which parameters have gradients, so the wrapper
that averages gradients over ranks must be rebuilt afterward.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from worldsize.errors import DataError, InputError
from worldsize.folder.files import write_atomic

WRAPPED = "module."
"""Prefix of all names in weights that were saved from a DistributedDataParallel model."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What was loaded from a file of weights."""

    loaded: tuple[str, ...]
    """Names of the entries that were loaded from the file."""
    left_out: tuple[tuple[str, str], ...]
    """(name, reason): entries of the file that do not fit, and entries of the model that keep their initial values."""


def head_of(model: nn.Module) -> str:
    """Return the name of the last layer, which is replaced for other classes."""
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    if not layers:
        raise InputError(
            f"{type(model).__name__} has no linear or convolutional layer that could be its head; "
            "use another model for transfer learning"
        )
    return layers[-1]


def load_pretrained(model: nn.Module, path: Path) -> Loaded:
    """Copy into the model what fits by name and shape. List what does not fit, such as a head for other classes."""
    return fit_weights(model, _read_weights(path), str(path))


def fit_weights(model: nn.Module, theirs: dict[str, Tensor], source: str) -> Loaded:
    """Copy into the model what fits by name and shape. `source` names the weights in the error message."""
    ours = model.state_dict()
    loaded, left_out = [], []
    for name, weights in theirs.items():
        if name not in ours:
            left_out.append((name, "the model has no such entry"))
        elif weights.shape != ours[name].shape:
            left_out.append((name, f"shape {tuple(weights.shape)} in the file, {tuple(ours[name].shape)} in the model"))
        elif weights.is_floating_point() != ours[name].is_floating_point():
            left_out.append((name, f"{weights.dtype} in the file, {ours[name].dtype} in the model"))
        else:
            loaded.append(name)
    left_out += [(name, "not in the file") for name in ours if name not in theirs]
    # Compare parameters only: batch-norm counters have the same names and shapes even in unrelated models.
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if not parameters.intersection(loaded):
        raise DataError(
            f"{source} has {len(theirs)} entries (such as {_some(theirs)}), but none fits the model's "
            f"{len(parameters)} parameters (such as {_some(parameters)}) by name and shape; "
            "use weights of the same kind of model"
        )
    with torch.no_grad():
        for name in loaded:
            ours[name].copy_(theirs[name])
    return Loaded(loaded=tuple(loaded), left_out=tuple(left_out))


def save_weights(model: nn.Module, path: Path) -> None:
    """Save the state dict atomically, on the CPU. `load_pretrained` and torch.load can both read the file."""
    content = io.BytesIO()
    torch.save({name: weights.cpu() for name, weights in model.state_dict().items()}, content)
    write_atomic(path, content.getvalue())


def freeze(model: nn.Module, what: Literal["backbone"] | None) -> None:
    """Freeze the backbone, so that only the head is trained. Its batch norm stays in eval mode despite model.train().

    Otherwise its running statistics would drift toward the new data while the weights stay the same.
    """
    if what is None:
        return
    if what != "backbone":
        raise InputError(f"freeze={what!r} is not supported; use backbone, or remove `freeze`")
    # Compare by identity, not by name: a decoder's head and embedding are one tensor, which must be trained.
    head = set(model.get_submodule(head_of(model)).parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in head)
    for layer in _batch_norms(model):
        layer.eval()
        vars(layer)["train"] = MethodType(_ignore_mode, layer)


def unfreeze(model: nn.Module) -> None:
    """Make all parameters trainable again, to fine-tune the model once the head has settled."""
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    for layer in _batch_norms(model):
        vars(layer).pop("train", None)
    model.train(model.training)


def _ignore_mode(layer: nn.Module, _mode: bool = True) -> nn.Module:
    """Do nothing. This replaces the method `train` of a frozen layer."""
    return layer


def _batch_norms(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read tensors by name. No code in the file is executed: torch.load creates only plain tensors and containers."""
    if not path.is_file():
        raise DataError(f"{path} is not a file; use the path of a state dict that was saved with torch.save")
    try:
        with warnings.catch_warnings():
            # For a bad file, torch's warnings add nothing to the errors below.
            warnings.simplefilter("ignore")
            content: Any = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file can cause any error
        raise DataError(
            f"{path} is not a file of plain weights ({_first_line(error)}); save them with "
            "torch.save(model.state_dict(), path) in the program that trained them"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path} holds {_kind(content)}, not a state dict; save model.state_dict() with torch.save")
    for name, weights in content.items():
        if not isinstance(name, str) or not isinstance(weights, Tensor):
            raise DataError(
                f"{path} holds {_kind(weights)} under {name!r}, not a tensor under a name; save model.state_dict() "
                'itself, or {"model": model.state_dict()}'
            )
    if all(name.startswith(WRAPPED) for name in content):
        return {name.removeprefix(WRAPPED): weights for name, weights in content.items()}
    return dict(content)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _kind(value: object) -> str:
    return "nothing" if value is None or value == {} else f"a {type(value).__name__}"


def _some(names: Any) -> str:
    return ", ".join(sorted(names)[:3])
