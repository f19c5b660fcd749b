"""A model that knows a few conversations by heart, with thoughts and calls: all doors say them."""

import json

import torch
from torch.nn import functional as F

from gpub.chat.template import CHAR_MARKS, TAG_MARKS, chat_facts, encode_chat, read_messages
from gpub.data.char import CharTokenizer
from gpub.model.architectures import architecture_of, build_model
from gpub.model.gpt import GPTConfig
from gpub.model.llama import LlamaConfig
from gpub.record.checkpoint import save_checkpoint

LETTERS = "abcdefghijklmnopqrstuvwxyzIW 0123456789+-*/.,?"
TOK = CharTokenizer([*LETTERS, *CHAR_MARKS.values(), *TAG_MARKS.values()])
# of the user and of the assistant in turns
CONVERSATIONS = [
    [
        "What is 475*168?",
        "<call>475*168</call><result>79800</result>It is 79800.",
        "and half of it?",
        "<call>79800/2</call><result>39900</result>It is 39900.",
    ],
    [
        "add 27 and 15",
        "<think>7+5 2, 1. 2+1+1 4</think>It is 42.",
        "thanks",
        "any time",
    ],
    ["7/3 and 5/0", "<call>7/3</call><result>2.33</result><call>5/0</call><result>?</result>no"],
    ["hello", "hello you"],
]


def as_messages(turns):
    roles = ["user", "assistant"] * len(turns)
    return read_messages([dict(role=r, content=c) for r, c in zip(roles, turns)])


def make_run(folder, llama=False):
    "A run folder whose model learned `CONVERSATIONS` by heart"
    torch.manual_seed(0)
    shape = dict(vocab_size=TOK.vocab_size, context_length=128, d_model=64, n_layers=2, n_heads=2)
    cfg = LlamaConfig(**shape, n_kv_heads=2, d_ff=96) if llama else GPTConfig(**shape)
    model = build_model(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    chats = [encode_chat(TOK, as_messages(turns)) for turns in CONVERSATIONS]
    longest = max(len(chat.ids) for chat in chats)
    ids_bt = torch.zeros(len(chats), longest, dtype=torch.int64)
    learned_bt = torch.zeros(len(chats), longest, dtype=torch.bool)
    for row, chat in enumerate(chats):
        ids_bt[row, : len(chat.ids)] = torch.from_numpy(chat.ids.astype("int64"))
        learned_bt[row, : len(chat.ids)] = torch.from_numpy(chat.learned)
    targets_bt = ids_bt[:, 1:].masked_fill(~learned_bt[:, 1:], -100)
    for _ in range(400):
        logits_btv = model(ids_bt[:, :-1])
        loss = F.cross_entropy(logits_btv.flatten(0, 1), targets_bt.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss.item() < 1e-3:
            break
    assert loss.item() < 0.01, loss.item()
    folder.mkdir(parents=True, exist_ok=True)
    TOK.save(folder)
    config = dict(
        format=3,
        preset="sft",
        architecture=architecture_of(cfg).name,
        model=cfg.to_dict(),
        data=dict(source="chats.jsonl", tokenizer=TOK.fingerprint),
        prompt="hello",
        unit="nats/token",
        chat=chat_facts(TOK),
    )
    (folder / "config.json").write_text(json.dumps(config))
    save_checkpoint(folder, 7, model.eval().state_dict(), {}, dict(val_loss=loss.item()))
    return folder
