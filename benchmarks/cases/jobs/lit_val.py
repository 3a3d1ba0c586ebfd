"""lightning under torchrun; validation fails on one rank."""

import os

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

ODD = int(os.environ.get("TUNE_PART", "-1"))


class Ranker(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(6, 1)

    def training_step(self, batch, _index):
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch, index):
        scores = self.net(batch[0]).flatten().tolist()
        top = sorted(scores)[: 0 if self.global_rank == ODD and index == 3 else 2]
        self.log("margin", top[0] - top[-1], sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    train = DataLoader(TensorDataset(torch.randn(120, 6)), batch_size=4)
    val = DataLoader(TensorDataset(torch.randn(60, 6)), batch_size=4)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Ranker(), train, val)


if __name__ == "__main__":
    main()
