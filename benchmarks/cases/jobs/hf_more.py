"""More of transformers.Trainer and Accelerate: evaluation, resuming, and a custom loop."""

import os
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

ODD = int(os.environ.get("TUNE_PART", "-1"))


class Rows(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, i):
        ids = torch.randint(0, 90, (16,))
        return {"input_ids": ids, "labels": ids.clone()}


def tiny():
    return GPT2LMHeadModel(GPT2Config(vocab_size=90, n_positions=32, n_embd=32, n_layer=1, n_head=2))


def arguments(**more):
    return TrainingArguments(
        output_dir="/scratch/run/out",
        max_steps=20,
        per_device_train_batch_size=4,
        logging_steps=5,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        **more,
    )


def best_model():
    args = arguments(
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="steps",
        save_steps=10,
        load_best_model_at_end=True,
        metric_for_best_model="f1",
    )
    Trainer(model=tiny(), args=args, train_dataset=Rows(), eval_dataset=Rows()).train()


def resume():
    trainer = Trainer(model=tiny(), args=arguments(save_strategy="no"), train_dataset=Rows())
    trainer.train(resume_from_checkpoint=True)


def custom():
    accelerator = Accelerator(cpu=True)
    model = tiny()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    model, opt, rows = accelerator.prepare(model, opt, DataLoader(Rows(), batch_size=4))
    for step, batch in enumerate(rows):
        if accelerator.process_index == ODD and step == 5:
            batch["labels"] = batch["labels"][:, :-2]
        loss = model(**batch).loss
        accelerator.backward(loss)
        opt.step()
        opt.zero_grad()
        if step % 2 == 0:
            accelerator.print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    {"best": best_model, "resume": resume, "custom": custom}[sys.argv[1]]()
