"""A small ResNet with BatchNorm, a schedule of the learning rate, and a DataLoader with two processes per worker.

    mlfabric run -n 4 examples/resnet_digits.py
    python examples/resnet_digits.py --alone

The second command trains in one process, without mlfabric, on the same samples with the same batch size in total. The
workers train synchronously, which suits such a model: each step uses all their batches together, so the learning rate
is that of one process, BatchNorm's statistics are the mean over all workers at each step, and all workers reach the
same epoch of the schedule together.
"""

# mypy: allow-untyped-calls

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import mlfabric


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return feature maps, smaller by the stride."""
        return torch.relu(self.body(images) + self.around(images))


def resnet() -> nn.Module:
    """Return a ResNet for images of 8 times 8 pixels."""
    stem = (nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return nn.Sequential(*stem, Block(16, 16, 1), Block(16, 32, 2), *head)


def main() -> None:
    """Train, and say how many of the test images are recognised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alone", action="store_true", help="train in this process alone, without mlfabric")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--loaders", type=int, default=2, help="processes that load data for each worker")
    arguments = parser.parse_args()
    rank, workers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    pixels, labels = load_digits(return_X_y=True)
    images, digits = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
    train = TensorDataset(images[:1437], digits[:1437])
    sampler: DistributedSampler[int] = DistributedSampler(train, num_replicas=workers, rank=rank)
    loader = DataLoader(train, batch_size=32 // workers, sampler=sampler, num_workers=arguments.loaders)

    torch.manual_seed(0)
    model = resnet()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    if not arguments.alone:
        optimizer = mlfabric.wrap(optimizer, model, method=mlfabric.Method.SYNCHRONOUS)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=max(1, arguments.epochs // 3), gamma=0.2)

    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for batch, wanted in loader:
            optimizer.zero_grad()
            cross_entropy(model(batch), wanted).backward()
            optimizer.step()
        scheduler.step()

    model.eval()
    right = model(images[1437:]).argmax(dim=1) == digits[1437:]
    print(f"accuracy {right.float().mean():.4f}")


if __name__ == "__main__":
    main()
