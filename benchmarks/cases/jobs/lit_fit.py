"""lightning.Trainer with DDP on CPU processes that Lightning starts itself."""

import os

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

ODD = int(os.environ.get("TUNE_PART", "-1"))


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(10, 2)

    def training_step(self, batch, index):
        (x,) = batch
        if self.global_rank == ODD and index == 11:
            x = x[:, :9]
        loss = self.layer(x).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    data = DataLoader(TensorDataset(torch.randn(400, 10)), batch_size=4)
    trainer = L.Trainer(
        accelerator="cpu", devices=3, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False
    )
    trainer.fit(Net(), data)


if __name__ == "__main__":
    main()
