"""The machine of a rank: one of several processes that make one video together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from ..headforcing_core.distributed.cache import parallel_forward
from ..headforcing_core.distributed.division import check_division
from ..headforcing_core.distributed.peers import Peers
from ..headforcing_core.distributed.ranks import (
    MeasuredRanks,
    check_rank_memory,
    check_ranks,
    rank_place,
)
from ..headforcing_core.distributed.sharded import shard
from ..headforcing_core.model.wan import WanConfig, WanModel
from ..headforcing_core.plan.plan import RenderPlan
from ..headforcing_core.plan.request import RenderJob, RenderRequest
from ..headforcing_core.plan.resources import MemorySavings, Needs
from ..headforcing_core.render.render import Place
from ..headforcing_core.rollout.loop import WanVideoModel
from .loaded import Machine


@dataclass(frozen=True)
class RankMachine(Machine):
    """A machine of a command with `peers`; `shard_weights`: each rank keeps a share of them."""

    peers: Peers
    shard_weights: bool

    @classmethod
    def of_rank(cls, peers: Peers, args: Any, *given: Any) -> Machine:
        """Take the fields as `Machine.of` does; rank 0 alone shows progress."""
        machine = cls.of(args, *given, peers=peers, shard_weights=args.shard_weights)
        return machine if peers.leads else replace(machine, quiet=True)

    @property
    def is_alone(self) -> bool:
        return False

    @property
    def leads(self) -> bool:
        return self.peers.leads

    @property
    def out_of_memory(self) -> str:
        rank = f"rank {self.peers.rank} of {self.peers.world} ({self.device})"
        return f"{rank}: {super().out_of_memory}"

    def check_plan(self, plan: RenderPlan) -> None:
        check_division(plan.shape, self.peers.world, self.peers.speeds)

    def check_job(self, job: RenderJob) -> None:
        check_ranks(job, self.peers)

    def check_needs(
        self,
        needs: Needs,
        request: RenderRequest,
        plan: RenderPlan,
        room: int | None,
        savings: MemorySavings,
    ) -> Needs:
        needs = super().check_needs(needs, request, plan, None, savings)
        if room is not None and self.device.type != "cuda":
            room //= self.peers.world  # all ranks are on this machine
        return check_rank_memory(needs, plan, self.peers, sharded=self.shard_weights, room=room)

    def load(self, config: WanConfig, state_dict: dict[str, Tensor]) -> Any:
        if not self.shard_weights:
            return super().load(config, state_dict)
        # divided on the host, so that the device never holds more than it needs
        backbone = WanModel.from_state_dict(config, state_dict, self.dtype, "cpu")
        shard(backbone, self.device)
        return backbone

    def video_model(self, backbone: Any) -> WanVideoModel:
        model = super().video_model(backbone)
        model.forward = partial(parallel_forward, forward=model.forward)
        return model

    def place(self, plan: RenderPlan) -> Place:
        # not timed: each of them could choose another backend
        return rank_place(self.peers, self.device, self.attention, self.attention_choice)

    def reporters(self) -> dict[str, MeasuredRanks]:
        return {"ranks": MeasuredRanks()}
