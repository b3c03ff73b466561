"""Models by name: their sizes, shapes and starts, and the errors of those who ask for others."""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from worldsize.errors import InputError
from worldsize.worker.models import MODELS, build, load_torchvision_weights
from worldsize.worker.models.decoder import rotary_turns, rotate
from worldsize.worker.models.transfer import head_of

torch.set_num_threads(1)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def sized(name, **options):
    """Built without memory for its weights: counting needs none."""
    with torch.device("meta"):
        return parameters(build(name, **options))


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("linear", {"classes": 1, "channels": 20, "size": 1}, 20),
        ("softmax", {"classes": 10, "channels": 1, "size": 28}, 7_850),
        ("mlp", {"classes": 10, "channels": 1, "size": 28, "hidden": [300]}, 784 * 300 + 300 + 3_010),
        ("resnet18", {"classes": 10, "channels": 3, "size": 32}, 11_173_962),
        ("resnet18", {"classes": 1000, "channels": 3, "size": 224}, 11_689_512),
        ("resnet50", {"classes": 1000, "channels": 3, "size": 224}, 25_557_032),
        ("resnet50", {"classes": 10, "channels": 3, "size": 32}, 23_520_842),
        # GPT-2 small, the published count.
        (
            "decoder",
            {"classes": 50257, "channels": 1, "size": 1024, "layers": 12, "width": 768, "heads": 12,
             "positions": "learned"},
            124_439_808,
        ),
    ],
)  # fmt: skip
def test_a_model_has_its_published_number_of_parameters(name, options, count):
    assert sized(name, **options) == count


CASES = {
    "linear": {"classes": 1, "channels": 12, "size": 1},
    "softmax": {"classes": 7, "channels": 1, "size": 28},
    "mlp": {"classes": 7, "channels": 3, "size": 8, "hidden": [16, 8]},
    "plain-cnn": {"classes": 7, "channels": 3, "size": 32},
    "cnn": {"classes": 7, "channels": 3, "size": 32, "width": 4},
    "resnet18": {"classes": 7, "channels": 3, "size": 32},
    "resnet50": {"classes": 7, "channels": 3, "size": 96},
    "steering-cnn": {"classes": 1, "channels": 3, "size": (30, 40)},
    "decoder": {"classes": 256, "channels": 1, "size": 16, "layers": 2, "width": 32, "heads": 4},
}


def built(name):
    torch.manual_seed(0)
    return build(name, **CASES[name])


def sample(name, count=2):
    case = CASES[name]
    torch.manual_seed(1)
    if name == "decoder":
        return torch.randint(0, 256, (count, case["size"]), dtype=torch.uint8)
    if name == "linear":
        return torch.randn(count, case["channels"])
    height, width = (case["size"],) * 2 if isinstance(case["size"], int) else case["size"]
    return torch.randn(count, case["channels"], height, width)


def test_every_model_is_tried_here():
    assert set(CASES) == set(MODELS)


@pytest.mark.parametrize("name", CASES)
def test_every_model_answers_once_a_sample_and_every_weight_can_learn(name):
    model, classes = built(name), CASES[name]["classes"]
    inputs = sample(name)
    with torch.no_grad():
        for parameter in model.parameters():
            # Zero starts on purpose (a head, the last batch norm of a block) hide the gradients behind them.
            if not parameter.any():
                parameter.add_(0.01)
    outputs = model(inputs)
    expected = {"decoder": (2, 16, 256)}.get(name, (2,) if classes == 1 else (2, classes))
    assert outputs.shape == expected
    outputs.square().sum().backward()
    assert [name for name, weights in model.named_parameters() if weights.grad is None or not weights.grad.any()] == []
    assert [name for name, weights in model.named_parameters() if not weights.grad.isfinite().all()] == []


@pytest.mark.parametrize("name", CASES)
def test_a_seed_decides_the_start(name):
    one, two = built(name).state_dict(), built(name).state_dict()
    assert all(torch.equal(one[key], two[key]) for key in one)
    torch.manual_seed(5)
    other = build(name, **CASES[name]).state_dict()
    convex = name in ("linear", "softmax")
    assert all(torch.equal(one[key], other[key]) for key in one) is convex


@pytest.mark.parametrize("name", ["cnn", "resnet18", "resnet50"])
def test_a_batch_of_one_can_train(name):
    """The last batch of an epoch may leave a rank with a single sample."""
    assert built(name).train()(sample(name, count=1)).isfinite().all()


@pytest.mark.parametrize(
    ("name", "head"),
    [("linear", "head"), ("mlp", "head"), ("cnn", "head"), ("resnet18", "fc"), ("resnet50", "fc"), ("decoder", "head")],
)
def test_the_head_is_the_layer_that_answers(name, head):
    model = built(name)
    assert head_of(model) == head
    answers = model.get_submodule(head)
    assert answers.out_features == CASES[name]["classes"]


def test_a_model_without_layers_has_no_head():
    with pytest.raises(InputError, match="Flatten has no linear or convolutional layer"):
        head_of(nn.Flatten())


def test_small_images_keep_their_pixels_in_a_residual_network():
    def spatial(size):
        with torch.device("meta"):
            model = build("resnet18", classes=10, channels=3, size=size)
            seen = []
            model.layer4.register_forward_hook(lambda _module, _inputs, outputs: seen.append(outputs.shape[-1]))
            model(torch.empty(2, 3, size, size))
        return seen[0]

    assert [spatial(size) for size in (32, 64, 96, 224)] == [4, 8, 3, 7]


def test_a_residual_block_starts_as_the_identity():
    model = built("resnet18").eval()
    block = model.layer1[1]
    features = torch.rand(2, 64, 5, 5)
    assert torch.equal(block(features), features)
    last = [layer.bn2.weight for name, layer in model.named_modules() if name.count(".") == 1 and "layer" in name]
    assert len(last) == 8
    assert all(not weight.any() for weight in last)


def test_convolutions_start_with_the_deviation_that_keeps_gradients_alive():
    weights = built("resnet18").layer3[0].conv1.weight
    assert weights.std().item() == pytest.approx(math.sqrt(2 / (256 * 9)), rel=0.01)


@pytest.mark.parametrize(("height", "width"), [(60, 80), (120, 160), (66, 200), (17, 31)])
def test_steering_takes_frames_of_any_size(height, width):
    torch.manual_seed(0)
    model = build("steering-cnn", classes=1, channels=3, size=(height, width))
    frames = torch.rand(4, 3, height, width)
    angles = model(frames)
    assert angles.shape == (4,)
    # Where things are decides: the same frame mirrored is another road.
    assert not torch.allclose(angles, model(frames.flip(3)), rtol=1e-3)


def test_steering_learns_where_the_road_is_also_after_a_bad_step():
    """A bright column, somewhere in a noisy frame: its place is the angle. First one step of a far too high rate."""
    draws = torch.Generator().manual_seed(0)
    angles = 2 * torch.rand(640, generator=draws) - 1
    column = torch.exp(-((torch.linspace(-1, 1, 40) - angles[:, None]) ** 2) / 0.02)
    frames = column[:, None, None, :] + 0.3 * torch.randn(640, 3, 30, 40, generator=draws)
    torch.manual_seed(0)
    model = build("steering-cnn", classes=1, channels=3, size=(30, 40))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for place in range(60):
        part = slice(place * 64 % 512, place * 64 % 512 + 64)
        (model(frames[part]) - angles[part]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 1e-3
    model.eval()
    with torch.no_grad():
        left = (model(frames[512:]) - angles[512:]).square().mean() / angles[512:].var()
    assert left.item() < 0.3


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_decoder_never_sees_the_future(positions):
    torch.manual_seed(0)
    model = build("decoder", **CASES["decoder"], positions=positions).eval()
    texts = sample("decoder")
    for changed in (1, 9, 15):
        other = texts.clone()
        other[:, changed] ^= 255
        one, two = model(texts), model(other)
        torch.testing.assert_close(one[:, :changed], two[:, :changed], rtol=0, atol=1e-6)
        assert ((one - two).abs().amax(dim=(0, 2))[changed:] > 1e-6).all()


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_decoder_knows_the_order_of_its_tokens(positions):
    torch.manual_seed(0)
    # One layer: from the second on, the causal mask alone gives the order away.
    model = build("decoder", **{**CASES["decoder"], "layers": 1}, positions=positions).eval()
    one, two = (model(torch.tensor([[*text, 7]]))[0, -1] for text in ((1, 2), (2, 1)))
    assert (one - two).abs().max() > 1e-4


def test_rotary_positions_are_distances():
    """q_m . k_n must depend on m - n alone: moved along together, the two see no difference."""
    turns = rotary_turns(64, 8)
    torch.manual_seed(0)
    query, key = torch.randn(8), torch.randn(8)
    product = torch.stack([rotate(query.expand(64, 8), turns)[place + 5] @ rotate(key.expand(64, 8), turns)[place]
                           for place in range(50)])  # fmt: skip
    torch.testing.assert_close(product, product[:1].expand(50), rtol=1e-4, atol=1e-5)
    assert abs(product[0] - query @ key) > 0.01


def test_a_decoder_starts_undecided_and_its_stream_does_not_grow_with_depth():
    deviations = []
    for layers in (2, 16):
        torch.manual_seed(0)
        model = build("decoder", classes=256, channels=1, size=32, layers=layers, width=64, heads=4).eval()
        texts = torch.randint(0, 256, (8, 33))
        loss = F.cross_entropy(model(texts[:, :-1]).transpose(1, 2), texts[:, 1:])
        assert loss.item() == pytest.approx(math.log(256), rel=0.03)
        outs = [weights for name, weights in model.named_parameters() if name.endswith("out.weight")]
        assert len(outs) == 2 * layers
        deviations.append(torch.cat([weights.flatten() for weights in outs]).std().item())
    assert deviations == pytest.approx([0.02 / 2, 0.02 / math.sqrt(32)], rel=0.02)


def test_a_decoder_ties_its_head_to_its_embedding():
    model = built("decoder")
    assert model.head.weight is model.embedding.weight


def test_turned_bf16_vectors_stay_bf16():
    """As under autocast: queries and keys of another type than the values cannot be attended with."""
    torch.manual_seed(0)
    vectors, turns = torch.randn(2, 4, 16, 8), rotary_turns(16, 8)
    turned = rotate(vectors.bfloat16(), turns)
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.float(), rotate(vectors, turns), rtol=0.02, atol=0.02)


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model = build("decoder", **CASES["decoder"], dropout=0.5)
    texts = sample("decoder")
    assert not torch.equal(model(texts), model(texts))
    model.eval()
    assert torch.equal(model(texts), model(texts))


def test_a_text_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match="17 tokens are longer than context=16"):
        built("decoder")(torch.zeros(1, 17, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("resnet8", {}, 'Did you mean "resnet18"'),
        ("xyz", {}, "Choose one of: linear, softmax, mlp"),
        ("linear", {}, "classes=10.*use classes=1"),
        ("mlp", {"hiden": [10]}, 'hiden=.*Did you mean "hidden"'),
        ("mlp", {"hidden": 10}, "hidden=10 is not a list"),
        ("mlp", {"hidden": [10, 0]}, r"hidden\[1\]=0"),
        ("mlp", {"hidden": [10.0]}, r"hidden\[0\]=10.0"),
        ("resnet18", {"width": 3}, "width=3 is not an option of the model resnet18. Leave it out"),
        ("resnet18", {"size": 8}, "size=8x8.*at least 16 pixels"),
        ("cnn", {"size": 8}, "size=8x8.*at least 16 pixels"),
        ("cnn", {"dropout": 1}, "dropout=1 is not in"),
        ("softmax", {"classes": 0}, "classes=0"),
        ("softmax", {"channels": True}, "channels=True"),
        ("steering-cnn", {"classes": 1, "size": (8, 99)}, "size=8x99"),
        ("decoder", {"channels": 1, "width": 10, "heads": 4}, "width=10 does not divide among heads=4"),
        ("decoder", {"channels": 1, "context": 64}, "context=64 contradicts size=32"),
        ("decoder", {"channels": 1, "vocab": 256}, "vocab=256 contradicts classes=10"),
        ("decoder", {"channels": 1, "positions": "sine"}, "positions='sine' is not one of learned, rotary"),
        ("decoder", {"channels": 1, "width": 12, "heads": 4}, "need an even number"),
        ("decoder", {}, "channels=3"),
    ],
)
def test_a_model_that_cannot_be_is_refused_with_its_remedy(name, options, says):
    with pytest.raises(InputError, match=says):
        build(name, **{"classes": 10, "channels": 3, "size": 32, **options})


def test_without_torchvision_its_models_are_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    with pytest.raises(InputError, match=r"torchvision:vgg11 needs torchvision.*install.*built-in model: linear"):
        build("torchvision:vgg11", classes=10, channels=3, size=32)


@pytest.fixture
def torchvision(monkeypatch):
    """A stand-in with the two functions that are used: the real one is no requirement of worldsize."""

    class Net(nn.Module):
        def __init__(self, num_classes, wide=False):
            super().__init__()
            self.features = nn.Conv2d(3, 8 if wide else 4, 3)
            self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(8 if wide else 4, num_classes))

    def get_model(name, weights, num_classes, **options):
        assert (name, weights) == ("vgg11", None)
        return Net(num_classes, **options)

    models = ModuleType("torchvision.models")
    models.list_models = lambda module: ["vgg11", "densenet121"] if module is models else []
    models.get_model = get_model
    published = SimpleNamespace(get_state_dict=lambda **_: Net(1_000).state_dict())
    models.get_model_weights = lambda name: SimpleNamespace(DEFAULT=published) if name == "vgg11" else None
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


@pytest.mark.usefixtures("torchvision")
def test_torchvisions_own_weights_are_loaded_all_but_the_head():
    model = build("torchvision:vgg11", classes=6, channels=3, size=64)
    loaded = load_torchvision_weights(model, "torchvision:vgg11")
    assert loaded.loaded == ("features.weight", "features.bias")
    assert [name for name, _ in loaded.left_out] == ["classifier.1.weight", "classifier.1.bias"]
    with pytest.raises(InputError, match="needs a torchvision model, but the model is resnet18"):
        load_torchvision_weights(model, "resnet18")


@pytest.mark.usefixtures("torchvision")
def test_where_torchvision_is_its_models_are_built():
    model = build("torchvision:vgg11", classes=6, channels=3, size=64, wide=True)
    assert head_of(model) == "classifier.1"
    assert model.classifier[1].weight.shape == (6, 8)


@pytest.mark.parametrize(
    ("name", "channels", "options", "says"),
    [
        ("vgg12", 3, {}, 'Did you mean "vgg11"'),
        ("vgg11", 1, {}, "channels=1"),
        ("vgg11", 3, {"depth": 4}, "does not accept these options .*depth"),
    ],
)
@pytest.mark.usefixtures("torchvision")
def test_a_torchvision_model_that_cannot_be_is_refused(name, channels, options, says):
    with pytest.raises(InputError, match=says):
        build(f"torchvision:{name}", classes=6, channels=channels, size=64, **options)
