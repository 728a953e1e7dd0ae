"""An LSTM of PyTorch's own modules and a training loop: what anyone writes in ten minutes. bench.py compares with it.

python benchmarks/plain.py TEXT HIDDEN LAYERS
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PlainLSTM(nn.Module):
    def __init__(self, vocabulary_size: int, hidden: int, layers: int, embedding: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers)
        self.decoder = nn.Linear(hidden, vocabulary_size)

    def forward(self, x_TB: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y_TBH, state = self.lstm(self.embedding(x_TB), state)
        return self.decoder(y_TBH), state


def plain_update(ids: Tensor, hidden: int, layers: int, *, batch_size: int = 16, steps: int = 64) -> Callable[[], None]:
    """A function that makes one update on the next window of the text."""
    streams_BS = ids[: len(ids) // batch_size * batch_size].view(batch_size, -1)
    model = PlainLSTM(int(ids.max()) + 1, hidden, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    state, position = None, 0

    def update() -> None:
        nonlocal state, position
        x_TB = streams_BS[:, position : position + steps].t()
        y_TB = streams_BS[:, position + 1 : position + 1 + steps].t()
        logits_TBV, state = model(x_TB, state)
        state = (state[0].detach(), state[1].detach())
        loss = F.cross_entropy(logits_TBV.flatten(0, 1), y_TB.flatten(), reduction="sum") / batch_size
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        position = position + steps if position + 2 * steps < streams_BS.shape[1] else 0

    return update


def main() -> None:
    text, hidden, layers = Path(sys.argv[1]).read_text(encoding="utf-8"), int(sys.argv[2]), int(sys.argv[3])
    characters = {character: number for number, character in enumerate(sorted(set(text)))}
    update = plain_update(torch.tensor([characters[character] for character in text]), hidden, layers)
    for _ in range(10):
        start_s = time.perf_counter()
        for _ in range(50):
            update()
        print(f"{50 * 16 * 64 / (time.perf_counter() - start_s):,.0f} characters/s")


if __name__ == "__main__":
    main()
