"""Masking as a whole: keys over many lines, streams, what must pass untouched."""

from __future__ import annotations

import base64
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector import redact as module
from collector.redact import Redactor, redact, redact_blocks, redact_bytes

INNOCENT = [
    "commit 0123456789abcdef0123456789abcdef01234567",
    "run 3f2b1c4d-5e6f-7081-92a3-b4c5d6e7f809 started",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "tensor([[ 0.1234, -0.5678], [1.2345e-05, nan]], device='cuda:0')",
    "model.layers.0.self_attn.q_proj.base64AdapterWeightMatrix.lora_A.default.weight",
    "tokens=96 max_tokens=2048 num_token: 4096 pad_token_id=0 eos_token='</s>' bos_token: <s>",
    "tokens per second: 123456, consumed tokens: 1234567890123456",
    "{'eos_token': '<|endoftext|>', 'pad_token': '[PAD]', 'unk_token': '<unk>'}",
    "tokenizer config: token: HelloWorldThisIsAnOrdinaryWord",
    "the Authorization header is missing; Authorization failed for rank 3",
    "Permission denied (publickey,password,keyboard-interactive).",
    "PWD=/lustre/runs/7b OLDPWD=/lustre/runs",
    "GOOGLE_APPLICATION_CREDENTIALS=/etc/gcp/key.json",
    "SSH_AUTH_SOCK=/tmp/ssh-abcdef/agent.1234",
    "MASTER_ADDR=tcp://10.0.0.1:29500 init_method='tcp://[fe80::1]:29500'",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ me@host",
    "GPU-5c8b2f5e-1234-5678-9abc-def012345678 mlx5_core 0000:1b:00.0: Port module event",
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=12345, name=python, GPU has fallen off the bus.",
    "key=value keys=3 kv_cache=True attention.key: Linear(4096, 4096) secret sauce",
    "hub_token=<HUB_TOKEN>, push_to_hub_token=<PUSH_TO_HUB_TOKEN>, hub_private_repo=None",
    "use_auth_token=None, token=False, password=None, api_key=''",
    "--tokenizer-type SentencePieceTokenizer --vocab-file /x/y --num-tokens 12345678",
    "WARNING: the `use_auth_token` argument is deprecated: use `token` instead",
    "state_dict keys: ['embed_tokens.weight', 'lm_head.weight']",
    'File "/opt/venv/lib/python3.11/site-packages/huggingface_hub/utils/_token.py", line 39, in get_token',
    "https://github.com/pytorch/pytorch/issues/12345?foo=bar#issuecomment-1234567890",
    "step 100 loss 2.345 lr 3.0e-4 grad_norm 0.98 tok/s 12345 mem 45.6GB",
    "eyJhbGciOi is how a token begins",
    "basic usage: pass --token-file FILE",
    "Enter passphrase for key: ",
    "password for user: ",
]


@pytest.mark.parametrize("line", INNOCENT)
def test_passes_untouched(line: str) -> None:
    assert redact(line) == (line, 0)


def pem(lines: int, seed: int = 0) -> list[str]:
    raw = random.Random(seed).randbytes(48 * (lines - 1) + 20)
    text = base64.b64encode(raw).decode()
    return [text[i : i + 64] for i in range(0, len(text), 64)]


KINDS = ["RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "    ", "2026-01-31T23:59:59 node1 "])
def test_private_key_blocks(kind: str, prefix: str) -> None:
    body = pem(6)
    lines = ["before", f"-----BEGIN {kind}-----", *body, f"-----END {kind}-----", "after every word stays"]
    text = "".join(f"{prefix}{line}\r\n" for line in lines)
    masked, count = redact(text)
    assert count == 6
    assert masked.count("\r\n") == text.count("\r\n")
    assert not any(line in masked for line in body)
    assert f"{prefix}[redacted:private-key]\r\n" in masked
    assert masked.endswith(f"{prefix}after every word stays\r\n")


def test_key_between_lines_of_other_ranks() -> None:
    body = pem(5)
    lines = ["-----BEGIN RSA PRIVATE KEY-----", body[0], "step 3 done", "Proc-Type: 4,ENCRYPTED", *body[1:], "ok done"]
    masked, count = redact("\n".join(lines))
    assert count == 5
    assert masked.split("\n")[2] == "step 3 done"
    assert masked.split("\n")[-1] == "ok done"
    assert not any(line in masked for line in body)


def test_a_key_that_never_ends_masks_no_prose() -> None:
    prose = [f"iteration {n} finished without trouble" for n in range(30)]
    text = "\n".join(["-----BEGIN PRIVATE KEY-----", *prose])
    assert redact(text) == (text, 0)


def test_certificates_and_public_keys_stay() -> None:
    text = "\n".join(["-----BEGIN CERTIFICATE-----", *pem(4), "-----END CERTIFICATE-----"])
    assert redact(text) == (text, 0)


def test_a_redactor_remembers_the_key_between_pieces() -> None:
    body = pem(4)
    redactor = Redactor()
    out = [redactor.feed(f"{line}\n".encode()) for line in ["-----BEGIN PRIVATE KEY-----", *body]]
    assert redactor.count == 4
    assert out[1:] == [b"[redacted:private-key]\n"] * 4


def test_several_in_one_line_and_overlaps() -> None:
    token = "ghp_" + "0123456789abcdefABCDEF0123456789abcd"
    text = f'password=api_key="{token}" git clone https://me:{token}@github.com/x --password hunter2 # end'
    masked, count = redact(text)
    assert token not in masked
    assert "hunter2" not in masked
    assert masked.endswith(" # end")
    assert masked.count("[redacted:") == count == 4


PARTS = [
    "-----BEGIN PRIVATE KEY-----\n", *[f"{line}\n" for line in pem(3)], "-----END PRIVATE KEY-----", "\n", "\r\n", " ",
    "password=", "hunter2", '"', "'", "ghp_" + "0123456789abcdefABCDEF0123456789abcd", "https://u:p4ss@h/", "x", "é",
    "Authorization: Bearer ", "0123456789abcdefABCDEF", "token: ", "[redacted:jwt]", "\x00", "export X_TOKEN=",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS) | st.text(max_size=4), max_size=25), cuts=st.lists(st.integers(0, 400)))
def test_streams_equal_the_whole(parts: list[str], cuts: list[int]) -> None:
    raw = "".join(parts).encode("utf-8", "surrogatepass")
    whole, count = redact_bytes(raw)
    assert whole.count(b"\n") == raw.count(b"\n")
    assert (whole == raw) == (count == 0)
    at = sorted(min(cut, len(raw)) for cut in cuts)
    assert b"".join(redact_blocks(raw[a:b] for a, b in zip([0, *at], [*at, len(raw)], strict=True))) == whole


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_text_survives_encoding(text: str) -> None:
    masked, count = redact(text)
    assert count or masked == text


def test_an_endless_line_is_given_out_and_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HELD", 4000)
    monkeypatch.setattr(module, "MARGIN", 400)
    secret = "0123456789abcdefABCDEF"
    raw = b"".join(b"%s x_token=%s " % (b"y" * (n % 53), secret.encode()) for n in range(2000))
    out = list(redact_blocks(raw[i : i + 97] for i in range(0, len(raw), 97)))
    assert len(out) > 10
    joined = b"".join(out)
    assert joined == redact_bytes(raw)[0]
    assert not any(secret.encode()[i : i + 8] in joined for i in range(len(secret) - 7))


def test_costs_little_on_a_log_without_secrets() -> None:
    line = b" [2026-01-31 23:59:59] iteration %8d/  500000 | lm loss: 2.345678E+00 | tokens per second: 12345 |\n"
    data = b"".join(line % n for n in range(60_000))
    redact_bytes(data)
    best_masked = min(_seconds(lambda: redact_bytes(data)) for _ in range(3))
    best_split = min(_seconds(lambda: data.decode().split("\n")) for _ in range(3))
    assert redact_bytes(data) == (data, 0)
    # What a reader does at the very least; the loose factor is for busy machines.
    assert best_masked < 5 * best_split


def _seconds(call: object) -> float:
    assert callable(call)
    start = time.process_time()
    call()
    return time.process_time() - start
