"""Cases for the kernels: random tables and buffers, and the engine's cache with and without its
kernels.
"""

from collections.abc import Callable
from typing import Any

import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.roles import EpisodicPolicy, RolePolicy
from headforcing.headforcing_core.methods.head_forcing import HeadForcing
from headforcing.headforcing_core.model.attention import attention_function, explicit
from headforcing.headforcing_core.model.rope import angles, axis_dims
from headforcing.headforcing_core.model.wan import PromptKV
from headforcing.kernels.attend import attend
from headforcing.kernels.dispatch import Operation
from headforcing.kernels.feature_frames import feature_frames
from headforcing.kernels.merge import merge_frames
from headforcing.kernels.modulate import norm_modulate
from headforcing.kernels.move import move_frames
from headforcing.kernels.pool import pooled_keys
from headforcing.kernels.quantise import quantise, quantise_gelu
from headforcing.kernels.write import write_block
from kernel_choice import using
from torch import Tensor
from torch.nn import functional as F

OPERATIONS: list[Operation] = [
    write_block,
    move_frames,
    pooled_keys,
    merge_frames,
    norm_modulate,
    attend,
    feature_frames,
    quantise,
    quantise_gelu,
]

ROLE_MAPS = {
    "every role": [["memory", "local", "anchor"], ["anchor", "memory", "memory"]],
    "a layer without memory heads": [["local", "anchor", "local"], ["memory", "local", "memory"]],
    "no anchor heads": [["local", "memory", "local"]],
}


def int_table(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def rotation_table(angles: Tensor) -> Tensor:
    """Angles `[n, pairs]` in radians, float64, as a table of rotations `[n, 2, pairs]` float32."""
    return torch.stack((angles.cos(), angles.sin()), dim=1).float()


def rotations_around(head_dim: int, most: int) -> Tensor:
    """Rotations by `-most .. most`; index `d` is row `most + d`."""
    return rotation_table(angles(torch.arange(-most, most + 1), axis_dims(head_dim)[0]))


# ------------------------------------------------------------------------------------- random cases


def case(
    operation: Operation, seed: int, dtype: torch.dtype, s: int, head_dim: int
) -> dict[str, Any]:
    """Arguments for an operation, with frames of `s` tokens, that no tile size divides."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    def pick(n: int, count: int) -> list[int]:
        return torch.randperm(n, generator=generator)[:count].tolist()

    slots = 12
    k = noise(slots * s, head_dim)
    v = noise(slots * s, head_dim)
    rotations = rotations_around(head_dim, 9)
    if operation is write_block:
        heads = 3
        frames = 2
        spatial = torch.rand(s, head_dim // 2 - rotations.shape[2], generator=generator) * 6
        # rows with gaps, as of one projection
        q_raw, k_raw, v_raw = noise(frames * s, 3, heads * head_dim).unbind(1)
        norms = (*noise(2, heads * head_dim).unbind(), 1e-6) if seed % 4 != 2 else None
        slot_row = [s * slot for slot in (5, 0, 9)]
        first_rotation = pick(17, heads)
        q_row = [frames * s * place for place in pick(heads, heads)]
        return dict(
            q=q_raw if seed % 4 else None,
            k=k_raw,
            v=v_raw,
            norms=norms,
            k_buffer=k,
            v_buffer=v,
            table=int_table([slot_row, q_row, first_rotation]).T.contiguous(),
            temporal=rotations,
            spatial=rotation_table(spatial),
        )
    if operation is move_frames:
        own = [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11]]
        chains = []
        for mine in own:
            steps = []
            for _ in range(3):
                source, target = pick(len(mine), 2)
                steps.append([mine[source] * s, mine[target] * s, *pick(19, 1)])
            steps[pick(3, 1)[0]][0] = -1
            chains.append(steps)
        return dict(
            k_from=k,
            v_from=v,
            k_to=k,
            v_to=v,
            moves=int_table(chains),
            rotations=rotations,
            frame_tokens=s,
        )
    if operation is pooled_keys:
        frames = [[slot * s, pick(19, 1)[0]] for slot in pick(slots, 5)]
        return dict(k=k, frames=int_table(frames), rotations=rotations, frame_tokens=s)
    if operation is merge_frames:
        kept = torch.stack(
            [torch.randperm(2 * s, generator=generator)[:s].sort().values for _ in range(2)]
        )
        merges = [
            [0, 3 * s, 0, *pick(19, 2), 1],
            [4 * s, 1 * s, 4 * s, *pick(19, 2), 0],
            [5 * s, 6 * s, 8 * s, *pick(19, 2), 1],
        ]
        return dict(k=k, v=v, merges=int_table(merges), kept=kept.int(), rotations=rotations)
    if operation is norm_modulate:
        frames = 3
        dim = 5 * head_dim
        x = noise(frames * s, dim)
        y = noise(frames * s, dim)
        rows = noise(frames, 6, dim)
        if seed % 3 == 2:  # nothing is added before the first norm
            return dict(x=x, y=None, gate=None, scale=rows[:, 1], shift=rows[:, 0], eps=1e-6)
        if seed % 3 == 1:
            return dict(x=x, y=y, gate=rows[:, 2], scale=rows[:, 1], shift=rows[:, 0], eps=1e-6)
        # an affine norm after a plain sum, as before cross-attention
        return dict(x=x, y=y, gate=None, scale=rows[:1, 1], shift=rows[:1, 0], eps=1e-6, base=0.0)
    if operation in (quantise, quantise_gelu):
        x = noise(s, 150 * head_dim)  # one tile and a part, and several
        # few values: where one lies between two numbers of 8 bits, exponentials decide
        if operation is quantise_gelu:
            x = (4 * x).round() / 4
        x[seed % s, 7] = torch.nan
        x[3] = 0
        x[5, -1] = torch.inf
        return dict(x=x)
    if operation is feature_frames:
        frames = 1 + seed % 3
        size = (s, 3, head_dim)
        summed = dict(bias=noise(head_dim), residual=noise(frames, *size)) if seed % 2 == 0 else {}
        return dict(x=noise(frames, *size), past=noise(2, *size), gamma=noise(head_dim), **summed)
    return dict(
        q=2 * noise(3, 2 * s, head_dim),
        k=k,
        v=v,
        table=int_table([[3 * s, 5 * s - 7], [0, 1 * s], [9 * s, 0]]),
        sums=torch.zeros(3, 2 * s) if seed % 2 == 0 else None,
    )


def moved(argument: Any, device: torch.device) -> Any:
    """An argument of a case on a device: a tensor, or the tensors of a tuple; others as they are."""
    if isinstance(argument, tuple):
        return tuple(moved(each, device) for each in argument)
    return argument.to(device) if isinstance(argument, Tensor) else argument


def distance(operation: Operation, arguments: Callable[[], dict[str, Any]]) -> float:
    """How far an operation's two implementations are apart, as in its self-test."""
    return Operation(
        operation.reference, operation.launch, lambda device, dtype: arguments()
    ).difference(torch.device("cpu"), torch.float32)


# ------------------------------------------------------------- the engine, with kernels and without


def roll_out(roles: list[list[str]], episodic_frames: int, rope: str, sinks: int = 0) -> None:
    """A video's worth of blocks through a cache with kernels and one without, compared after every
    step; `sinks` are those of memory heads.
    """
    blocks = 7
    memory = RolePolicy(sinks, recent_frames=3, episodic_frames=episodic_frames)
    method = HeadForcing(
        memory=memory, rope=rope, episodic=EpisodicPolicy(admission="uniform", update_interval=1)
    )
    rows = 4
    columns = 6
    head_dim = 20
    frames = 3
    shape = CacheShape(roles, method, rows, columns, head_dim, frames, total_frames=frames * blocks)
    layers = shape.layers
    heads = shape.heads
    plain = HeadCache(shape, torch.float32, "cpu", explicit)
    fused = HeadCache(
        shape, torch.float32, "cpu", attention_function("triton", "cpu", torch.float32, 20)
    )
    for buffer in fused.flat:
        buffer.fill_(torch.nan)  # reading a row that was never written shows
    generator = torch.Generator().manual_seed(1)

    def noise(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    prompt = PromptKV(
        [(noise(1, heads, 7, head_dim), noise(1, heads, 7, head_dim)) for _ in roles],
        valid_tokens=5,
        text=torch.empty(7, heads * head_dim),
    )
    weights = noise(layers, 2, heads * head_dim)
    for _ in range(blocks):
        with using("reference"):
            plain.begin_block()
        fused.begin_block()
        for layer in range(layers):
            q, k, v = noise(3, frames * rows * columns, heads, head_dim)
            found = fused.attend(
                layer, fused.write_and_rotate(layer, k, v, q, (*weights[layer], 1e-6))
            )
            q_weight, k_weight = weights[layer].view(2, heads, head_dim)
            q = F.rms_norm(q, q.shape[1:], q_weight, 1e-6)
            k = F.rms_norm(k, k.shape[1:], k_weight, 1e-6)
            with using("reference"):
                expected = plain.attend(layer, plain.write_and_rotate(layer, k, v, q))
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
        event = fused.commit(prompt)
        with using("reference"):
            expected = plain.commit(prompt)
        assert (event and (event.frame, event.merged)) == (
            expected and (expected.frame, expected.merged)
        )
        for ours, other in zip(fused.groups, plain.groups, strict=True):
            assert ours.sources == other.sources
            for layer in range(layers):
                torch.testing.assert_close(ours.context(layer), other.context(layer))
