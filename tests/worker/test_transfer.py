"""Pretrained weights in, a head of one's own, and a backbone that holds still."""

from __future__ import annotations

import copy
import os
import pickle

import pytest
import torch
from torch.nn import functional as F

from worldsize.errors import DataError, InputError
from worldsize.worker.models import build
from worldsize.worker.models.transfer import freeze, head_of, load_pretrained, save_weights, unfreeze

torch.set_num_threads(1)


def cnn(classes, seed, **options):
    torch.manual_seed(seed)
    return build("cnn", classes=classes, channels=1, size=28, width=4, hidden=16, **options)


def step(model, rate=0.5):
    torch.manual_seed(7)
    images, labels = 3 + 2 * torch.randn(16, 1, 28, 28), torch.randint(0, 3, (16,))
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=rate)
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_everything_but_the_head_for_other_classes_is_loaded(tmp_path):
    theirs, ours = cnn(10, seed=0), cnn(3, seed=1)
    start = copy.deepcopy(ours.state_dict())
    save_weights(theirs, tmp_path / "weights.pt")
    result = load_pretrained(ours, tmp_path / "weights.pt")
    assert result.left_out == (
        ("head.weight", "shape (10, 16) in the file, (3, 16) in the model"),
        ("head.bias", "shape (10,) in the file, (3,) in the model"),
    )
    assert set(result.loaded) == set(start) - {"head.weight", "head.bias"}
    for name, weights in ours.state_dict().items():
        assert torch.equal(weights, theirs.state_dict()[name] if name in result.loaded else start[name]), name


@pytest.mark.parametrize("wrapping", ["bare", "model", "module."])
def test_weights_are_found_where_people_put_them(tmp_path, wrapping):
    theirs, ours = cnn(3, seed=0), cnn(3, seed=1)
    state = theirs.state_dict()
    content = {
        "bare": state,
        "model": {"model": state, "epoch": 4},
        "module.": {f"module.{name}": weights for name, weights in state.items()},
    }[wrapping]
    torch.save(content, tmp_path / "weights.pt")
    assert load_pretrained(ours, tmp_path / "weights.pt").left_out == ()
    assert changed(state, ours.state_dict()) == set()


def test_missing_unknown_and_unlike_entries_are_named(tmp_path):
    theirs = cnn(3, seed=0).state_dict()
    del theirs["trunk.0.weight"]
    theirs["extra.weight"] = torch.zeros(2)
    theirs["head.bias"] = torch.zeros(3, dtype=torch.int64)
    torch.save(theirs, tmp_path / "weights.pt")
    assert dict(load_pretrained(cnn(3, seed=1), tmp_path / "weights.pt").left_out) == {
        "extra.weight": "the model has no such entry",
        "trunk.0.weight": "not in the file",
        "head.bias": "torch.int64 in the file, torch.float32 in the model",
    }


def test_half_precision_weights_are_widened(tmp_path):
    theirs, ours = cnn(3, seed=0).half(), cnn(3, seed=1)
    save_weights(theirs, tmp_path / "weights.pt")
    load_pretrained(ours, tmp_path / "weights.pt")
    assert ours.head.weight.dtype == torch.float32
    assert torch.equal(ours.head.weight.half(), theirs.head.weight)


def test_tied_weights_stay_tied(tmp_path):
    options = {"classes": 256, "channels": 1, "size": 8, "layers": 1, "width": 16, "heads": 2}
    theirs, ours = build("decoder", **options), build("decoder", **options)
    save_weights(theirs, tmp_path / "weights.pt")
    assert load_pretrained(ours, tmp_path / "weights.pt").left_out == ()
    assert ours.head.weight is ours.embedding.weight
    assert torch.equal(ours.head.weight, theirs.head.weight)


def test_weights_of_a_224_pixel_network_go_into_a_32_pixel_one_but_for_the_stem(tmp_path):
    theirs = build("resnet18", classes=10, channels=3, size=224)
    save_weights(theirs, tmp_path / "weights.pt")
    result = load_pretrained(build("resnet18", classes=10, channels=3, size=32), tmp_path / "weights.pt")
    assert [name for name, _ in result.left_out] == ["conv1.weight"]


def test_weights_of_which_nothing_fits_are_an_error(tmp_path):
    """Also when counters of batch norm, alike in every model, do fit."""
    save_weights(cnn(10, seed=0), tmp_path / "weights.pt")
    torch.manual_seed(1)
    other = build("cnn", classes=3, channels=3, size=32, width=5, hidden=20)
    start = copy.deepcopy(other.state_dict())
    with pytest.raises(DataError, match=r"weights.pt has 16 entries .*none fits the model's 10 parameters"):
        load_pretrained(other, tmp_path / "weights.pt")
    assert changed(start, other.state_dict()) == set()


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def plant(path, content, kind):
    if kind == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("kind", ["torch", "pickle"])
def test_a_file_that_would_run_code_is_refused_and_runs_nothing(tmp_path, kind):
    path, target = tmp_path / "weights.pt", tmp_path / "exploded"
    plant(path, {"head.weight": torch.zeros(3, 16), "head.bias": Bomb(target)}, kind)
    with pytest.raises(DataError, match=r"not a file of plain weights.*state_dict"):
        load_pretrained(cnn(3, seed=0), path)
    assert not target.exists()
    # The bomb is live: whoever unpickles it the ordinary way sets it off.
    if kind == "torch":
        torch.load(path, weights_only=False)
    else:
        pickle.loads(path.read_bytes())
    assert target.is_dir()


def garbage():
    good = bytearray(200)
    good[:2] = b"PK"
    return {
        "empty": b"",
        "text": b"these are no weights\n" * 20,
        "html": b"<!DOCTYPE html><html>404</html>",
        "zip": bytes(good),
        "noise": bytes(range(256)) * 4,
    }


@pytest.mark.parametrize("kind", garbage())
def test_garbage_is_refused(tmp_path, kind):
    path = tmp_path / "weights.pt"
    path.write_bytes(garbage()[kind])
    with pytest.raises(DataError, match="not a file of plain weights"):
        load_pretrained(cnn(3, seed=0), path)


def test_a_file_cut_short_is_refused(tmp_path):
    path = tmp_path / "weights.pt"
    save_weights(cnn(3, seed=0), path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match="not a file of plain weights"):
        load_pretrained(cnn(3, seed=0), path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([1, 2], "a list, not a state dict"),
        ({}, "nothing, not a state dict"),
        (torch.zeros(3), "a Tensor, not a state dict"),
        ({"epoch": 3, "weights": {}}, "a int under 'epoch'"),
        ({3: torch.zeros(1)}, "under 3"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, content, says):
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(DataError, match=says):
        load_pretrained(cnn(3, seed=0), tmp_path / "weights.pt")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere.pt is not a file"):
        load_pretrained(cnn(3, seed=0), tmp_path / "nowhere.pt")


def test_saving_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "weights.pt"
    save_weights(cnn(3, seed=0), path)
    before = path.read_bytes()

    def full(_descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_weights(cnn(3, seed=1), path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["weights.pt"]


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_a_frozen_backbone_holds_still_through_training_and_evaluation(name):
    torch.manual_seed(0)
    model = build(name, classes=3, channels=1, size=28)
    freeze(model, "backbone")
    before = copy.deepcopy(model.state_dict())
    model.eval()
    model.train()
    step(model)
    head = head_of(model)
    # Running means and variances count: data with another mean went through, in training mode.
    assert changed(before, model.state_dict()) == {f"{head}.weight", f"{head}.bias"}
    assert model.training
    assert {each for each, weights in model.named_parameters() if weights.requires_grad} == {
        f"{head}.weight",
        f"{head}.bias",
    }


def test_batch_norm_drifts_without_freezing_it():
    """What the test above would see if only gradients were switched off."""
    model = cnn(3, seed=0)
    for parameter in model.trunk.parameters():
        parameter.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    step(model)
    assert "trunk.1.running_mean" in changed(before, model.state_dict())


def test_a_frozen_model_can_be_copied_and_the_copy_is_frozen_on_its_own():
    model = cnn(3, seed=0)
    freeze(model, "backbone")
    twin = copy.deepcopy(model)
    unfreeze(model)
    twin.train()
    assert model.trunk[1].training
    assert not twin.trunk[1].training


@pytest.mark.parametrize("training", [True, False])
def test_unfreezing_undoes_it(training):
    model, never = cnn(3, seed=0, dropout=0.0), cnn(3, seed=0, dropout=0.0)
    freeze(model, "backbone")
    model.train(training)
    unfreeze(model)
    assert all(layer.training is training for layer in model.modules())
    for each in (model, never):
        each.train()
        step(each)
    assert changed(model.state_dict(), never.state_dict()) == set()
    model.eval()
    assert not any(layer.training for layer in model.modules())


def test_freezing_nothing_changes_nothing():
    model = cnn(3, seed=0)
    freeze(model, None)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(layer.training for layer in model.modules())


def test_a_tied_head_learns_with_its_embedding():
    model = build("decoder", classes=256, channels=1, size=8, layers=1, width=16, heads=2)
    freeze(model, "backbone")
    assert {name for name, weights in model.named_parameters() if weights.requires_grad} == {"embedding.weight"}


def test_only_the_backbone_can_be_frozen():
    with pytest.raises(InputError, match=r"freeze='head'.*use backbone"):
        freeze(cnn(3, seed=0), "head")


def test_transfer_is_worth_it(tmp_path):
    """A frozen backbone that learned 9 directions of stripes tells 3 others apart better than a random one."""

    def striped(classes, count, seed):
        draws = torch.Generator().manual_seed(seed)
        labels = torch.arange(count) % len(classes)
        angles = torch.tensor(classes)[labels] * torch.pi / 12
        place = torch.arange(16.0)
        along = place[None, None, :] * angles.cos()[:, None, None] + place[None, :, None] * angles.sin()[:, None, None]
        phase = 6.28 * torch.rand(count, 1, 1, generator=draws)
        return (torch.sin(1.6 * along + phase) + torch.randn(count, 16, 16, generator=draws))[:, None], labels

    def train(model, images, labels, steps, rate):
        optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=rate)
        for place in range(steps):
            part = slice(place * 64 % len(images), place * 64 % len(images) + 64)
            F.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
            optimizer.zero_grad()

    def small(classes, seed):
        torch.manual_seed(seed)
        return build("cnn", classes=classes, channels=1, size=16, width=8, hidden=32, dropout=0.0)

    teacher = small(9, seed=0)
    train(teacher, *striped((0, 1, 3, 4, 6, 7, 9, 10, 11), 1152, seed=0), steps=150, rate=3e-3)
    save_weights(teacher, tmp_path / "weights.pt")
    accuracy = {}
    for kind in ("pretrained", "random"):
        model = small(3, seed=1)
        if kind == "pretrained":
            load_pretrained(model, tmp_path / "weights.pt")
        freeze(model, "backbone")
        train(model, *striped((2, 5, 8), 192, seed=1), steps=60, rate=1e-2)
        images, labels = striped((2, 5, 8), 600, seed=2)
        with torch.no_grad():
            accuracy[kind] = (model.eval()(images).argmax(1) == labels).float().mean().item()
    assert accuracy["pretrained"] > accuracy["random"] + 0.1
