"""Echo-Forcing: sinks that play the scene's first frames, tokens of the past chosen by score, and a memory of scenes.

The window holds sinks, tokens chosen from the last 21 frames, the block before, and the current block; keys are
stored without rotary embedding and rotated to their slots. A new prompt begins a scene: the cache is rebuilt from a
memory frame of an earlier scene, which fades and is dropped after a few blocks (`echo_scenes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache.method import RolloutInputs, VideoFacts, block_by_block
from ..cache.options import NO_OPTION
from ..cache.scenes import Recall
from ..devices import upload
from ..errors import HeadForcingError
from ..model.rope import by_head
from ..rollout.loop import Block, JointModel
from ..rollout.rows import Script
from ..timeline.switch import Switch
from .base import MethodCache, MethodPolicy, MethodShape, WriteClean
from .echo_layers import History, Layer, TokenScores
from .echo_scenes import Scene, plan_scenes
from .frames import played

CANDIDATES = range(0, 12, 4)  # frames of a scene from which its memory frame is made
FIRST_SHARE = 0.9  # of the first candidate in a memory frame
MAX_KEPT = 3  # frames that a scene begins with: the memory frame and the last two


@dataclass(frozen=True)
class EchoForcing(MethodPolicy):
    """Echo-Forcing's settings (arXiv 2605.16003), in latent frames.

    Attributes:
        compressed_frames: frames' worth of chosen tokens in the window.
        cycle_blocks: sinks are replaced by this many first blocks, played backwards and forwards.
        max_reuse: how many blocks may choose a token; 0: no limit.
        takes_maximum: a token's score is the maximum over heads and offsets instead of the mean.
        amplitude, gated: whether scores count the spread of queries, and less where queries have drifted.
        compares_words: scenes are alike by the words of their prompts, the rare ones most ("IDF"), instead of by the
            embeddings of what is left of the prompts without common words.
        scenes: of the video; 1 for a single prompt.
    """

    switch, cuts, recalls, rope = "flush", True, True, "contiguous"
    resumes_from = (
        "state",
    )  # tokens are chosen with queries of a block's noisiest pass, which no clean pass reproduces
    window_frames: int = 21
    sink_frames: int = 12
    compressed_frames: int = 3
    cycle_blocks: int = 4
    max_reuse: int = 8
    takes_maximum: bool = False
    amplitude: bool = True
    gated: bool = True
    drift: float = 3.0
    compares_words: bool = False
    scenes: int = field(default=1, metadata=NO_OPTION)  # only for the size of the cache

    def for_video(self, video: VideoFacts) -> EchoForcing:
        return replace(self, scenes=video.prompts)

    def played_frames(self, frames_per_block: int) -> int:
        return self.cycle_blocks * frames_per_block

    def frames_per_head(self, layer: int, role: str, frames_per_block: int) -> float:
        first = self.played_frames(frames_per_block) + MAX_KEPT
        queries = 1  # their sums, in float32, are much less than a frame
        return 2 * self.window_frames + first + len(CANDIDATES) + queries + self.scenes - 1

    def check(self, shape: MethodShape) -> None:
        block = shape.frames_per_block
        if self.sink_frames + self.compressed_frames + 2 * block != self.window_frames or self.sink_frames % block:
            raise HeadForcingError(
                f"Echo-Forcing's window of {self.window_frames} frames must hold {self.sink_frames} sinks in whole "
                f"blocks, {self.compressed_frames} compressed frames and two blocks of {block}; choose a chunkwise "
                "model family"
            )
        if not 0 < self.played_frames(block) <= self.window_frames:
            raise HeadForcingError(f"Echo-Forcing plays 1 to {self.window_frames // block} blocks in its sinks")

    def recalled(self, script: Script) -> dict[int, tuple[int, ...]]:
        scenes, switches = plan_scenes(script, self.compares_words), (row.switch for row in script.rows)
        recalls = [block for block, switch in enumerate(switches) if switch is not None and switch.recall is not None]
        return {block: (scenes[block][1].source + 1, scenes[block][1].jump) for block in recalls}

    def rollout(self, model: JointModel, cache: Any, video: RolloutInputs) -> Iterator[Block]:
        # asked at every switch, because the rows of later blocks may be replaced while the video is made
        cache.scenes = lambda: plan_scenes(video.script, self.compares_words)
        return block_by_block(model, cache, video)


class EchoForcingCache(MethodCache, of=EchoForcing):
    policy: EchoForcing
    reads_queries = True  # their statistics decide which tokens are chosen
    scenes: Callable[[], dict[int, tuple[int, Scene]]]

    def begin_video(self) -> None:
        self.filled = 0
        self.memory: dict[int, list[tuple[Tensor, Tensor]]] = {}  # of every scene, per layer
        self.memory_of: dict[int, list[int]] = {}  # the frames from which it was made
        self.recalled: list[Recall] = []
        self.window, self.sinks = self.policy.window_frames, self.policy.sink_frames
        self.period = self.policy.played_frames(self.shape.frames_per_block)
        self.scores = TokenScores(self.policy, self.shape.head_dim, self.device)
        self._begin_scene(None)

    @property
    def recalls(self) -> list[Recall]:
        return self.recalled

    def _begin_scene(self, scene: Scene | None) -> None:
        """Empty state of a scene that begins with the next block."""
        self.scene, self.scene_start, self.scene_blocks = scene, self.frames_seen, 0
        self.kept = 0
        self.ready = False  # whether the query statistics are complete
        self.query_count = self.scene_query_count = 0
        heads, s, d = self.shape.heads, self.rope.frame_tokens, self.shape.head_dim
        first = self.period + MAX_KEPT
        none = torch.zeros(heads, 0, d, dtype=self.dtype, device=self.device)
        numbers = torch.zeros(0, dtype=torch.long, device=self.device)

        def sums(width: int) -> Tensor:
            return torch.zeros(heads, width, device=self.device)

        self.layers = [
            Layer(
                k,
                v,
                first_k,
                first_v,
                history=History(none, none, numbers, numbers),
                query_sum=sums(d),
                query_size=sums(d // 2),
                scene_queries=sums(d),
                candidates=[],
                weights=torch.ones(0, s, device=self.device),
            )
            for k, v, first_k, first_v in zip(*map(self.zeros, (self.window, self.window, first, first)), strict=True)
        ]

    def saved(self) -> Any:
        names = ("filled", "memory", "memory_of", "scene_start", "scene_blocks", "kept", "ready")
        counts = ("query_count", "scene_query_count")
        fields = {name: vars(self)[name] for name in (*names, *counts)}
        return {"fields": fields, "scene": self.scene, "recalls": self.recalled, "layers": self.layers}

    def load(self, saved: Any) -> None:
        for name, value in saved["fields"].items():
            setattr(self, name, value)
        self.scene = None if saved["scene"] is None else Scene(**saved["scene"])
        self.recalled = [Recall(**{**recall, "frames": tuple(recall["frames"])}) for recall in saved["recalls"]]
        self.layers = [Layer(**{**state, "history": History(**state["history"])}) for state in saved["layers"]]

    # --- a call

    def open(self) -> None:
        self.local = self.start - self.scene_start + self.kept
        self.rolls = self.local + self.frames > self.window
        self.filled = min(self.local + self.frames, self.window)
        self._undecided: set[int] = set(range(self.shape.layers)) if self.rolls else set()
        if self.rolls:  # the last sinks take the scene's first frames, forwards and backwards in turn
            begun = self.local - (self.window - self.period)
            playing = played(range(begun, begun + self.frames), self.period)
            self._playing = upload(torch.tensor(playing), self.device)  # a list would be waited for in every layer

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        state, frames = self.layers[layer], self.frames
        if self.first_pass(layer) and self.rolls:
            self._roll(state)
        keys, values = (by_head(x, self.shape.frame_tokens) for x in (k, v))
        current = slice(self.filled - frames, self.filled)
        state.k[:, current], state.v[:, current] = keys, values
        if not self.rolls and self.local < state.first_k.shape[1]:
            place = slice(self.local, min(self.local + frames, state.first_k.shape[1]))
            count = place.stop - place.start
            state.first_k[:, place], state.first_v[:, place] = keys[:, :count], values[:, :count]

    def _roll(self, state: Layer) -> None:
        """Move the block before to the recent slots, and play the next first frames in the last sinks."""
        recent = self.sinks + self.policy.compressed_frames
        for slots, first in ((state.k, state.first_k), (state.v, state.first_v)):
            slots[:, : self.sinks - self.frames] = slots[:, self.frames : self.sinks].clone()
            slots[:, self.sinks - self.frames : self.sinks] = first[:, self._playing]
            slots[:, recent : recent + self.frames] = slots[:, self.window - self.frames :].clone()

    def attend(self, layer: int, q: Tensor) -> Tensor:
        state, queries = self.layers[layer], by_head(q, self.shape.frame_tokens)
        if layer in self._undecided:
            self._undecided.discard(layer)
            self._compress(layer, queries)
        if self.clean:
            self._take_clean_pass(layer, queries)
        current = range(self.filled - self.frames, self.filled)
        jump = self.scene.jump if self.scene is not None and not self.scene_blocks else 0
        at = [*range(current.start), *(index + jump for index in current)]
        k = self.rope.rotate(state.k[:, : self.filled], at)
        v = state.v[:, : self.filled]
        if self.kept:
            weights = state.weights[None, ..., None].to(v.dtype)
            v = v.clone()
            k[:, : self.kept] *= weights
            v[:, : self.kept] *= weights
        rotated = self.rope.rotate(queries, [index + jump for index in current])
        return self.attention_over(rotated, k, v).transpose(0, 1)

    def _take_clean_pass(self, layer: int, queries: Tensor) -> None:
        """Take a clean pass into history, query statistics and candidates."""
        state = self.layers[layer]
        total = queries.float().sum(dim=(1, 2))
        state.scene_queries += total
        if not self.ready:
            state.query_sum += total
            state.query_size += queries.float().unflatten(-1, (-1, 2)).norm(dim=-1).sum(dim=(1, 2))
        own = slice(self.filled - self.frames, self.filled)
        k, v = state.k[:, own], state.v[:, own]
        state.history.append(k, v, range(self.start, self.end), self.window * self.rope.frame_tokens)
        for place, frame in enumerate(range(self.start - self.scene_start, self.end - self.scene_start)):
            if frame in CANDIDATES:
                state.candidates.append((k[:, place].clone(), v[:, place].clone()))

    # --- the choice of tokens

    def _compress(self, layer: int, queries: Tensor) -> None:
        """Fill the compressed slots with the tokens of the history that have the highest scores, in order of age."""
        state, s = self.layers[layer], self.rope.frame_tokens
        if not self.ready:
            return
        chosen = self.choose(layer, queries)
        state.history.uses[chosen] += 1
        slots = slice(self.sinks, self.sinks + self.policy.compressed_frames)
        # as in the authors' code they take the rows and columns of the places where they land
        for held, of_history in ((state.k, state.history.k), (state.v, state.history.v)):
            held[:, slots] = of_history[:, chosen].unflatten(1, (-1, s))

    def choose(self, layer: int, queries: Tensor) -> Tensor:
        """Indices of the chosen tokens of the history, ascending. `queries` are those of the noisiest pass."""
        state, count = self.layers[layer], self.policy.compressed_frames * self.rope.frame_tokens
        scores = self.scores.of(state, queries, self.query_count)
        scores[-self.frames * self.rope.frame_tokens :] = -torch.inf
        if self.policy.max_reuse:
            scores[state.history.uses >= self.policy.max_reuse] = -torch.inf
        return scores.topk(count).indices.sort().values

    @property
    def occupied(self) -> int:
        first = min(self.period + MAX_KEPT, self.filled) if self.block else 0
        per_head = (self.filled if self.block else 0) + first + len(self.memory)
        lists = sum(
            state.history.v[0].numel() + sum(v[0].numel() for _, v in state.candidates) for state in self.layers
        )
        numbers = self.rope.frame_tokens * self.shape.head_dim
        return (per_head * self.shape.layers + -(-lists // numbers)) * self.shape.heads

    # --- scenes

    def finish(self, prompt: object) -> None:
        tokens = self.frames * self.rope.frame_tokens
        self.scene_query_count += tokens
        if not self.ready:
            self.query_count += tokens
            self.ready = self.local + self.frames >= self.window
        if self.kept and self.scene is not None:
            for state in self.layers:
                self._fade(state, self.scene)
            if self.scene_blocks + 1 == self.scene.kept_blocks:
                self._drop_kept()
        self.scene_blocks += 1

    def _fade(self, state: Layer, scene: Scene) -> None:
        if state.rates is None:
            new, old = (state.k[:, slot].float().transpose(0, 1).flatten(1) for slot in (self.kept, 0))
            change = 1 - F.cosine_similarity(new, old, dim=-1)
            low, high = change.min(), change.max()
            change = (change - low) / (high - low) if high - low > 1e-6 else torch.zeros_like(change)
            state.rates = scene.slowest - (scene.slowest - scene.fastest) * change
        state.weights *= state.rates

    def _drop_kept(self) -> None:
        kept, self.kept = self.kept, 0
        for state in self.layers:
            for slots in (state.k, state.v, state.first_k, state.first_v):
                slots[:, : slots.shape[1] - kept] = slots[:, kept:].clone()

    def switch_prompt(self, switch: Switch, write_clean: WriteClean, latest: Tensor) -> None:
        ended, scene = self.scenes()[self.block]
        self.memory[ended] = [self._memory_frame(state) for state in self.layers]
        candidates = CANDIDATES[: len(self.layers[0].candidates)]
        self.memory_of[ended] = [self.scene_start + frame for frame in candidates]
        if switch.recall is not None:
            self.recalled.append(Recall(self.block, scene.source + 1, tuple(self.memory_of[scene.source])))
        last = slice(self.filled - scene.kept_frames, self.filled)
        stay = [(state.k[:, last], state.v[:, last]) for state in self.layers]
        self._begin_scene(scene)
        self.kept = 1 + scene.kept_frames
        for state, memory, rest in zip(self.layers, self.memory[scene.source], stay, strict=True):
            for slots, first, frame, frames in zip(
                (state.k, state.v), (state.first_k, state.first_v), memory, rest, strict=True
            ):
                slots[:, 0], slots[:, 1 : self.kept] = frame, frames
                first[:, : self.kept] = slots[:, : self.kept]
            state.weights = torch.full((self.kept, self.rope.frame_tokens), scene.first_weight, device=self.device)

    def _memory_frame(self, state: Layer) -> tuple[Tensor, Tensor]:
        """The finished scene as one frame: mostly its first, and some of the others by likeness to its queries."""
        k, v = (torch.stack([pair[i] for pair in state.candidates]).float() for i in (0, 1))
        queries = state.scene_queries / self.scene_query_count
        share = (k * queries[:, None]).sum(dim=-1).mean(dim=1).softmax(dim=0)[:, None, :, None]
        k, v = (FIRST_SHARE * x[0] + (1 - FIRST_SHARE) * (share * x).sum(dim=0) if len(x) > 1 else x[0] for x in (k, v))
        return k.to(self.dtype), v.to(self.dtype)
