"""transformers.Trainer on a tiny GPT-2 made from nothing."""

import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

ODD = int(os.environ.get("TUNE_PART", "-1"))


class Conversations(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 400

    def __getitem__(self, i):
        ids = torch.randint(0, 90, (24,))
        return {"input_ids": ids, "labels": ids.clone()}


class Collator:
    """Pads; rank ODD meets a conversation without a single assistant turn."""

    def __init__(self, rank):
        self.rank, self.calls = rank, 0

    def __call__(self, rows):
        self.calls += 1
        batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
        if self.rank == ODD and self.calls == 9:
            mask = torch.zeros_like(batch["labels"], dtype=torch.bool)
            first = mask.nonzero()[0]
            batch["labels"][: first[0]] = -100
        return batch


def main():
    rank = int(os.environ.get("RANK", "0"))
    model = GPT2LMHeadModel(GPT2Config(vocab_size=90, n_positions=32, n_embd=32, n_layer=2, n_head=2))
    args = TrainingArguments(
        output_dir="/scratch/run/out",
        max_steps=30,
        per_device_train_batch_size=4,
        logging_steps=3,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        remove_unused_columns=False,
    )
    Trainer(model=model, args=args, train_dataset=Conversations(rank), data_collator=Collator(rank)).train()


if __name__ == "__main__":
    main()
