"""MemFlow at a prompt switch: while the window is written again, the new prompt's keys are not there yet."""

from dataclasses import replace

import torch
from headforcing.headforcing_core.methods.base import MethodShape
from headforcing.headforcing_core.methods.memflow import MemFlow
from headforcing.headforcing_core.model.wan import PromptKV
from headforcing.headforcing_core.timeline.switch import Switch

HEADS, HEAD_DIM, SLOTS = 2, 6, 3
RECACHE = Switch("recache")


def full_bank(scores: list[float]):
    """A MemFlow cache of one layer whose bank is full, after a video under a prompt that scores its slots like this."""
    policy = replace(MemFlow(), bank_frames=SLOTS, interval=1, stores_every_block=False)
    cache = policy.make_cache(MethodShape((("memory",) * HEADS,), policy, 1, 2, HEAD_DIM, 3, 60), torch.float32)
    cache.block, cache.filled, cache.stored = 10, cache.window, SLOTS + 1
    direction = torch.zeros(HEAD_DIM)
    direction[0] = 1.0
    cache.bank_k[0][:] = torch.tensor(scores)[:, None, None] * direction
    cache.bank_v[0][:] = torch.arange(1.0, SLOTS + 1)[:, None, None]
    cache.waiting_v[0][:] = 9.0
    cache.prompt = PromptKV([(direction.expand(1, HEADS, 4, HEAD_DIM),) * 2], 4)
    return cache


def slots_of(cache) -> list[float]:
    return cache.bank_v[0][0, :, 0, 0].tolist()


def test_in_a_block_the_prompts_keys_choose_the_slots_that_stay():
    cache = full_bank([0.0, 1.0, 2.0])
    cache.begin_block()
    assert slots_of(cache) == [3.0, 2.0, 9.0]


def test_at_a_switch_no_prompt_chooses_so_the_first_slots_stay():
    cache = full_bank([0.0, 1.0, 2.0])
    cache.apply_switch(RECACHE, lambda latents: None, [torch.zeros(3, 16, 2, 4)] * 4)
    assert slots_of(cache) == [1.0, 2.0, 9.0]
