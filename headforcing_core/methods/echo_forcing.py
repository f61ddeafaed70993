"""Echo-Forcing: sinks that play the scene's first frames, tokens of the past chosen by score, and a
memory of scenes.

The window holds sinks, tokens chosen from the last 21 frames, the block before, and the current
block; keys are stored without rotary embedding and rotated to their slots. `echo_scenes` tells how
a prompt begins a scene.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache.scenes import Recall, RecalledScene, RecalledScenes
from ..cache.state import Saved, check_fields
from ..devices import upload
from ..model.rope import angles
from ..rollout.loop import Block, RolloutInputs, VideoModel
from ..rollout.rows import Script
from ..timeline.switch import Switch
from .base import BaseMethod, MethodCache, MethodShape, Requirements, played
from .echo_layers import History, Layer
from .echo_scenes import Scene, ScenePlan, plan_scenes
from .method import VideoFacts
from .options import NO_OPTION

CANDIDATES = range(0, 12, 4)  # frames of a scene from which its memory frame is made
FIRST_SHARE = 0.9  # of the first candidate in a memory frame
MAX_KEPT = 3  # frames that a scene begins with: the memory frame and the last two


@dataclass(frozen=True)
class EchoForcing(BaseMethod):
    """Echo-Forcing's settings (arXiv 2605.16003), in latent frames.

    Attributes:
        compressed_frames: frames' worth of chosen tokens in the window.
        cycle_blocks: sinks are replaced by this many first blocks, played backwards and forwards.
        max_reuse: how many blocks may choose a token; 0: no limit.
        takes_maximum: a token's score is the maximum over heads and offsets instead of the mean.
        amplitude, gated: whether scores count the spread of queries, and less where queries have
            drifted.
        compares_words: scenes are alike by the words of their prompts, the rare ones most ("IDF"),
            instead of by the embeddings of what is left of the prompts without common words.
        scenes: of the video; 1 for a single prompt.
    """

    # class attributes, not options: they have no types
    switch = "flush"
    cuts = True
    recalls = True
    rope = "contiguous"
    # tokens are chosen with queries of a block's noisiest pass, which no clean pass reproduces
    resumes_from = ("state",)
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

    recalls_by_likeness = True

    def for_video(self, video: VideoFacts) -> EchoForcing:
        return replace(self, scenes=video.prompts)

    def played_frames(self, frames_per_block: int) -> int:
        return self.cycle_blocks * frames_per_block

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        first = self.played_frames(shape.frames_per_block) + MAX_KEPT
        queries = 1  # their sums, in float32, are much less than a frame
        return 2 * self.window_frames + first + len(CANDIDATES) + queries + self.scenes - 1

    def requirements(self, shape: MethodShape) -> Requirements:
        block = shape.frames_per_block
        return {
            f"window_frames of sink_frames in whole blocks of {block}, compressed_frames and two "
            "blocks (choose a chunkwise model family)": (
                self.sink_frames + self.compressed_frames + 2 * block == self.window_frames
                and self.sink_frames % block == 0
            ),
            f"cycle_blocks from 1 to {self.window_frames // block}": (
                0 < self.played_frames(block) <= self.window_frames
            ),
        }

    def recalled(self, script: Script) -> RecalledScenes:
        scenes = plan_scenes(script, self.compares_words)
        recalled: RecalledScenes = {}
        for block, row in enumerate(script.rows):
            if row.switch is not None and row.switch.recall is not None:
                scene = scenes[block][1]
                recalled[block] = RecalledScene(scene.source + 1, (scene.jump,))
        return recalled

    def rollout(  # type: ignore[override]  # its own cache
        self, model: VideoModel, cache: EchoForcingCache, video: RolloutInputs
    ) -> Iterator[Block]:
        # asked at every switch, because the rows of later blocks may be replaced while the video is
        # made
        cache.scenes = lambda: plan_scenes(video.script, self.compares_words)
        return super().rollout(model, cache, video)


@dataclass(frozen=True)
class TokenScores:
    """Scores the tokens of a layer's history: how much the first window's queries would attend to
    each. Their mean is turned by the distance in time to a key; how far queries are from their mean
    adds to the product.

    `frequencies`: of the rotation in time, one per pair of channels.
    """

    frequencies: Tensor
    method: EchoForcing

    def of(self, state: Layer, queries: Tensor, counted: int) -> Tensor:
        """`[tokens]`; `queries [heads, frames, s, head_dim]` are the current ones, `counted` those
        in the sums.
        """
        history = state.history
        mean = state.query_sum / counted
        m_real, m_imag = mean.unflatten(-1, (-1, 2))[:, None].unbind(-1)  # [heads, 1, pairs]
        # [heads, tokens, pairs]
        k_real, k_imag = history.kv[0].float().unflatten(-1, (-1, 2)).unbind(-1)
        real = m_real * k_real + m_imag * k_imag
        imag = m_imag * k_real - m_real * k_imag
        temporal = len(self.frequencies)
        still = real[..., temporal:].sum(dim=-1)
        if self.method.amplitude:
            spread = state.query_size[:, None] / counted - torch.hypot(m_real, m_imag)
            still = still + self._gate(mean, queries) * (spread * torch.hypot(k_real, k_imag)).sum(
                dim=-1
            )
        distance = history.frame[-1] + 1 - history.frame
        found = []
        for power in range(self.method.window_frames.bit_length()):
            turn = (distance + 2**power)[:, None] * self.frequencies
            moving = real[..., :temporal] * turn.cos() - imag[..., :temporal] * turn.sin()
            found.append(moving.sum(dim=-1) + still)
        scores = torch.stack(found)
        return scores.amax(dim=(0, 1)) if self.method.takes_maximum else scores.mean(dim=(0, 1))

    def _gate(self, mean: Tensor, queries: Tensor) -> float:
        """Less than 1 where the current queries point elsewhere than those of the scene's
        beginning.
        """
        if not self.method.gated:
            return 1.0
        cosine = F.cosine_similarity(
            queries.float().mean(dim=(1, 2)).flatten(), mean.flatten(), dim=0
        )
        return float(torch.exp(-self.method.drift * (1 - cosine.clamp(-1, 1))))


class EchoForcingCache(MethodCache, of=EchoForcing):
    """Keys and values of a scene by layer, and the memory frames of earlier scenes.

    Attributes:
        memory: by the number of a scene, its memory frame `[2, heads, s, head_dim]` per layer.
        memory_of: the frames from which it was made.
        filled: slots of the window in use.
        kept: how many of them, the first ones, are kept of earlier scenes and fade.
        scene: the beginning of the current scene; None for the first.
        scene_start, scene_blocks: its first latent frame, and its blocks so far.
        query_count: queries in the layers' statistics; `ready` tells whether these are complete.
    """

    method: EchoForcing
    rotates_spatially = False
    state_classes = (Layer, History, Scene, Recall)
    reads_queries = True  # their statistics decide which tokens are chosen
    scenes: Callable[[], ScenePlan]

    def begin_video(self) -> None:
        self.memory: dict[int, list[Tensor]] = {}
        self.memory_of: dict[int, list[int]] = {}
        self.recalled: list[Recall] = []
        self.filled = 0
        self.window = self.method.window_frames
        self.sinks = self.method.sink_frames
        self.period = self.method.played_frames(self.shape.frames_per_block)
        frequencies = angles(torch.arange(2), self.rope.temporal_dim)[1].float().to(self.device)
        self.scores = TokenScores(frequencies, self.method)
        self._begin_scene(None)

    @property
    def saved(self) -> Saved:
        return {
            "filled": self.filled,
            "memory": self.memory,
            "memory_of": self.memory_of,
            "recalled": self.recalled,
            "scene": self.scene,
            "scene_start": self.scene_start,
            "scene_blocks": self.scene_blocks,
            "kept": self.kept,
            "ready": self.ready,
            "query_count": self.query_count,
            "layers": self.layers,
        }

    @saved.setter
    def saved(self, saved: Saved) -> None:
        check_fields(saved, self.saved)
        self.filled = saved["filled"]
        self.memory = saved["memory"]
        self.memory_of = saved["memory_of"]
        self.recalled = saved["recalled"]
        self.scene = saved["scene"]
        self.scene_start = saved["scene_start"]
        self.scene_blocks = saved["scene_blocks"]
        self.kept = saved["kept"]
        self.ready = saved["ready"]
        self.query_count = saved["query_count"]
        self.layers = saved["layers"]

    @property
    def recalls(self) -> list[Recall]:
        return self.recalled

    def _begin_scene(self, scene: Scene | None) -> None:
        """Empty state of a scene that begins with the next block."""
        self.scene = scene
        self.scene_start = self.frames_seen
        self.scene_blocks = 0
        self.kept = self.query_count = 0
        self.ready = False
        heads = self.shape.heads
        s = self.rope.frame_tokens
        d = self.shape.head_dim
        numbers = torch.zeros(0, dtype=torch.long, device=self.device)
        parts = (self.zeros(self.window), self.zeros(self.period + MAX_KEPT), self.zeros(0))
        self.layers = [
            Layer(
                kv,
                first,
                history=History(none.flatten(2, 3), numbers, numbers),
                query_sum=torch.zeros(heads, d, device=self.device),
                query_size=torch.zeros(heads, d // 2, device=self.device),
                scene_queries=torch.zeros(heads, d, device=self.device),
                candidates=[],
                weights=torch.ones(0, s, device=self.device),
            )
            for kv, first, none in zip(*parts, strict=True)
        ]

    # --- a call

    def open(self) -> None:
        self.local = self.start - self.scene_start + self.kept
        self.rolls = self.local + self.frames > self.window
        self.filled = min(self.local + self.frames, self.window)
        # the last sinks take the scene's first frames, forwards and backwards in turn
        if self.rolls:
            begun = self.local - (self.window - self.period)
            playing = played(range(begun, begun + self.frames), self.period)
            # a list would be waited for in every layer
            self._playing = upload(torch.tensor(playing), self.device)

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        state = self.layers[layer]
        frames = self.frames
        self._rolled = self.rolls and self.first_pass(layer)
        if self._rolled:
            self._roll(state)
        kv = torch.stack((k, v))
        state.kv[:, :, self.filled - frames : self.filled] = kv
        if not self.rolls:
            first = state.first[:, :, self.local : self.local + frames]
            first[:] = kv[:, :, : first.shape[2]]

    def _roll(self, state: Layer) -> None:
        """Move the block before to the recent slots, and play the next first frames in the last
        sinks.
        """
        kv = state.kv
        frames = self.frames
        recent = self.sinks + self.method.compressed_frames
        kv[:, :, : self.sinks - frames] = kv[:, :, frames : self.sinks].clone()
        kv[:, :, self.sinks - frames : self.sinks] = state.first[:, :, self._playing]
        kv[:, :, recent : recent + frames] = kv[:, :, self.window - frames :].clone()

    def context(self, layer: int, q: Tensor) -> Tensor:
        state = self.layers[layer]
        if self._rolled and self.ready:
            self._compress(layer, q)
        if self.clean:
            self._take_clean_pass(state, q)
        current = range(self.filled - self.frames, self.filled)
        jump = self.scene.jump if self.scene is not None and not self.scene_blocks else 0
        own = [index + jump for index in current]
        k, v = state.kv[:, :, : self.filled]
        k = self.rope.rotate(k, [*range(current.start), *own])
        if self.kept:
            weights = state.weights[None, ..., None].to(v.dtype)
            v = v.clone()
            k[:, : self.kept] *= weights
            v[:, : self.kept] *= weights
        return self.attention_over(self.rope.rotate(q, own), k, v)

    def _take_clean_pass(self, state: Layer, queries: Tensor) -> None:
        """Take a clean pass into history, query statistics and candidates."""
        total = queries.float().sum(dim=(1, 2))
        state.scene_queries += total
        if not self.ready:
            state.query_sum += total
            state.query_size += queries.float().unflatten(-1, (-1, 2)).norm(dim=-1).sum(dim=(1, 2))
        kv = state.kv[:, :, self.filled - self.frames : self.filled]
        state.history.append(kv, range(self.start, self.end), self.window * self.rope.frame_tokens)
        for place in range(self.frames):
            if self.start + place - self.scene_start in CANDIDATES:
                state.candidates.append(kv[:, :, place].clone())

    # --- the choice of tokens

    def _compress(self, layer: int, queries: Tensor) -> None:
        """Fill the compressed slots with the tokens of the history that have the highest scores, in
        order of age.
        """
        state = self.layers[layer]
        slots = slice(self.sinks, self.sinks + self.method.compressed_frames)
        chosen = self.choose(layer, queries)
        state.history.uses[chosen] += 1
        # as in the authors' code they take the rows and columns of the places where they land
        state.kv[:, :, slots] = state.history.kv[:, :, chosen].unflatten(
            2, (-1, self.rope.frame_tokens)
        )

    def choose(self, layer: int, queries: Tensor) -> Tensor:
        """Indices of the chosen tokens of the history, ascending. `queries` are those of the
        noisiest pass.
        """
        state = self.layers[layer]
        count = self.method.compressed_frames * self.rope.frame_tokens
        scores = self.scores.of(state, queries, self.query_count)
        scores[-self.frames * self.rope.frame_tokens :] = -torch.inf
        if self.method.max_reuse:
            scores[state.history.uses >= self.method.max_reuse] = -torch.inf
        return scores.topk(count).indices.sort().values

    # --- scenes

    def finish(self) -> None:
        if not self.ready:
            self.query_count += self.frames * self.rope.frame_tokens
            self.ready = self.local + self.frames >= self.window
        self.scene_blocks += 1
        if self.kept and self.scene is not None:
            for state in self.layers:
                self._fade(state, self.scene)
            if self.scene_blocks == self.scene.kept_blocks:
                self._drop_kept()

    def _fade(self, state: Layer, scene: Scene) -> None:
        if state.rates is None:
            keys = state.kv[0].transpose(0, 2)  # [s, slots, heads, head_dim]
            new = keys[:, self.kept].float().flatten(1)
            old = keys[:, 0].float().flatten(1)
            change = 1 - F.cosine_similarity(new, old, dim=-1)
            low = change.min()
            span = change.max() - low
            change = change - low
            if span > 1e-6:
                change = change / span
            else:
                change = torch.zeros_like(change)
            state.rates = scene.slowest - (scene.slowest - scene.fastest) * change
        state.weights *= state.rates

    def _drop_kept(self) -> None:
        kept = self.kept
        self.kept = 0
        for state in self.layers:
            for slots in (state.kv, state.first):
                slots[:, :, : slots.shape[2] - kept] = slots[:, :, kept:].clone()

    def switch_prompt(self, switch: Switch) -> None:
        ended, scene = self.scenes()[self.block]
        self.memory[ended] = [self._memory_frame(state) for state in self.layers]
        candidates = CANDIDATES[: len(self.layers[0].candidates)]
        self.memory_of[ended] = [self.scene_start + frame for frame in candidates]
        if switch.recall is not None:
            self.recalled.append(Recall(self.block, scene.source + 1, self.memory_of[scene.source]))
        stay = [
            state.kv[:, :, self.filled - scene.kept_frames : self.filled] for state in self.layers
        ]
        self._begin_scene(scene)
        self.kept = 1 + scene.kept_frames
        for state, memory, rest in zip(self.layers, self.memory[scene.source], stay, strict=True):
            kept = torch.cat((memory[:, :, None], rest), dim=2)
            state.kv[:, :, : self.kept] = state.first[:, :, : self.kept] = kept
            state.weights = torch.full(
                (self.kept, self.rope.frame_tokens), scene.first_weight, device=self.device
            )

    def _memory_frame(self, state: Layer) -> Tensor:
        """The finished scene as one frame: mostly its first, and some of the others by likeness to
        its queries.
        """
        kv = torch.stack(state.candidates, dim=1).float()  # [2, candidates, heads, s, d]
        queries = state.scene_queries / (
            self.scene_blocks * self.shape.frames_per_block * self.rope.frame_tokens
        )
        share = (kv[0] * queries[:, None]).sum(dim=-1).mean(dim=1).softmax(dim=0)[:, None, :, None]
        one = kv[:, 0]
        if kv.shape[1] > 1:
            one = FIRST_SHARE * one + (1 - FIRST_SHARE) * (share * kv).sum(dim=1)
        return one.to(self.dtype)
