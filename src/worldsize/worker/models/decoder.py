"""A decoder-only transformer like GPT-2. For each token, it returns logits for the next token."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldsize.errors import InputError
from worldsize.worker.models.shape import Shape, check_fraction, check_positive

Positions = Literal["learned", "rotary"]
INITIAL_DEVIATION = 0.02
ROTARY_BASE = 10_000.0


def decoder(
    shape: Shape,
    *,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    context: int | None = None,
    vocab: int | None = None,
    dropout: float = 0.0,
    positions: Positions = "rotary",
) -> nn.Module:
    """Build a decoder. The defaults of `context` and `vocab` come from the data; other values are rejected.

    Rotary positions learn to look one position back in half as many steps as learned positions.
    """
    for name, value, expected, rule in (
        ("context", context, shape.width, "size"),
        ("vocab", vocab, shape.classes, "classes"),
    ):
        if value is not None and value != expected:
            raise InputError(
                f"{name}={value!r} contradicts {rule}={expected} of the data; remove {name} or make them equal"
            )
    if shape.channels != 1:
        raise InputError(f"channels={shape.channels}: decoder reads one token per position; use channels=1")
    if check_positive("width", width) % check_positive("heads", heads):
        raise InputError(f"width={width} does not divide among heads={heads}; use a multiple of {heads}")
    if positions not in get_args(Positions):
        raise InputError(f"positions={positions!r} is not one of {', '.join(get_args(Positions))}; use one of these")
    if positions == "rotary" and width // heads % 2:
        raise InputError(
            f"width={width} with heads={heads} is {width // heads} per head, but rotary positions need an even number; "
            "use another width, or positions=learned"
        )
    return Decoder(
        shape.classes,
        shape.width,
        check_positive("layers", layers),
        width,
        heads,
        check_fraction("dropout", dropout),
        positions,
    )


class Decoder(nn.Module):
    """logits = norm(x_L) E^T with x_0 = E[token] + P[position]. E is used twice, which saves weights at no loss.

    Number of parameters with learned positions: 12 L w^2 + 13 L w + (vocab + context + 2) w.
    """

    def __init__(
        self, vocab: int, context: int, layers: int, width: int, heads: int, dropout: float, positions: Positions
    ) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width) if positions == "learned" else None
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, context, dropout, positions) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embedding.weight
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=INITIAL_DEVIATION)
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
        for name, weight in self.named_parameters():
            # 2 L branches are added to the residual stream. At this scale, their sum is as large as an unscaled branch.
            if name.endswith("out.weight"):
                nn.init.normal_(weight, std=INITIAL_DEVIATION / (2 * layers) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"{length} tokens are longer than context={self.context}; use fewer, or a larger context")
        stream = self.embedding(tokens.long())
        if self.positions is not None:
            stream = stream + self.positions(torch.arange(length, device=tokens.device))
        stream = self.dropout(stream)
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). The norm comes first, so the stream itself is never normalized."""

    def __init__(self, width: int, heads: int, context: int, dropout: float, positions: Positions) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, context, dropout, positions)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = Mlp(width, dropout)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.attention(self.attention_norm(stream))
        return stream + self.mlp(self.mlp_norm(stream))


class Mlp(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.into = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Tensor) -> Tensor:
        return self.dropout(self.out(F.gelu(self.into(stream), approximate="tanh")))


class Attention(nn.Module):
    """softmax(q k^T / sqrt(width / heads), over earlier positions only) v."""

    turns: Tensor

    def __init__(self, width: int, heads: int, context: int, dropout: float, positions: Positions) -> None:
        super().__init__()
        self.heads = heads
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.rotary = positions == "rotary"
        if self.rotary:
            self.register_buffer("turns", rotary_turns(context, width // heads), persistent=False)

    def forward(self, stream: Tensor) -> Tensor:
        batch, length, width = stream.shape
        projected = self.into(stream).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        queries, keys, values = projected.unbind()
        if self.rotary:
            queries, keys = (rotate(vectors, self.turns[:, :length]) for vectors in (queries, keys))
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, dropout_p=self.dropout.p if self.training else 0.0
        )
        return self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))


def rotary_turns(context: int, width: int) -> Tensor:
    """Return cosine and sine of position * base^(-2i / width) for each position and pair i: 2 x context x width/2."""
    rates = ROTARY_BASE ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(context)[:, None] * rates
    return torch.stack((angles.cos(), angles.sin()))


def rotate(vectors: Tensor, turns: Tensor) -> Tensor:
    """Rotate each pair (i, i + half) in proportion to its position, so that q.k depends only on distances."""
    cosine, sine = turns.unbind()
    first, second = vectors.chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    # Under autocast, vectors are bf16, but turns are fp32. Attention needs queries and keys in the format of values.
    return turned.to(vectors.dtype)
