"""What is said of a wrong setting: sentences.txt holds every sentence, to be reviewed as prose.

`python tasks.py test --record tests/unit/test_sentences.py` writes the file anew.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from headforcing.headforcing_core.cache.roles import EpisodicPolicy, RolePolicy
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.head_forcing import HeadForcing
from headforcing.headforcing_core.methods.options import read_pairs
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.rollout.schedule import Schedule, schedule
from headforcing.headforcing_core.timeline.paste.paste import read_any
from headforcing.headforcing_core.timeline.switch import Switch
from headforcing.headforcing_core.timeline.timeline import BlockClock
from method_renders import SMALL, STRIPES

FILE = Path(__file__).with_name("sentences.txt")


def planned(method: str, options: str) -> object:
    """A render whose method options no cache can have is refused when it is planned."""
    asked = RenderOptions(
        method_name=method, width=96, height=64, method_options=read_pairs(options)
    )
    return RenderPlan.of(SMALL, asked, read_any("a red ball", 9.0), profile=STRIPES)


def drafted(recent_frames: int | None = 3, start_frames: int = 0) -> object:
    """A plan by itself, without the options of a command."""
    method = HeadForcing(memory=RolePolicy(recent_frames=recent_frames, episodic_frames=5))
    options = RenderOptions(given_method=method, width=64, height=64)
    return RenderPlan.of(WanConfig(), options, read_any("a"), start_frames)


FIELDS: dict[Callable[..., object], list[dict[str, object]]] = {
    RolePolicy: [
        {"sink_frames": -1},
        {"recent_frames": -2},
        {"episodic_frames": -5},
        {"episodic_frames": 1},
    ],
    EpisodicPolicy: [
        {"admission": "yes"},
        {"eviction": "lru"},
        {"token_selection": ""},
        {"update_interval": 0},
        {"novelty_threshold": 2.5},
        {"novelty_threshold": math.nan},
    ],
    HeadForcing: [
        {"rope": "relative"},
        {"local": RolePolicy(episodic_frames=2)},
        {"anchor": RolePolicy(episodic_frames=2)},
    ],
    Schedule: [
        {"sigmas": ()},
        {"sigmas": (1.0, 0.5), "frames_per_block": 0},
        {"sigmas": (1.0, 0.5), "frames_per_block": 65},
        {"sigmas": (1.0,), "first_block_sigmas": (0.5, 0.7)},
    ],
    Schedule.parse: [
        {"text": text}
        for text in ("one, two", "0.5, 1", "1.5", "-1", "0", "nan", "1e999", "1, 0x1")
    ],
    schedule: [{"name": "euler"}],
    Switch: [{"kind": "cut"}, {"blend_blocks": 17}, {"blend_blocks": -1}],
    BlockClock: [
        {"frames_per_block": 0},
        {"frames_per_block": 2.5},
        {"frames_per_block": True},
        {"fps": 0},
    ],
    RenderOptions: [
        *({"width": width} for width in (-16, 0, 8, 831, 4112)),
        *({"height": height} for height in (-16, 0, 8, 831, 4112)),
        *({"seconds": seconds} for seconds in (-1.0, -0.0001, math.nan, math.inf, 36_001)),
        {"state_seconds": -1.0},
        {"method_name": "no_such"},
        {"roles": "no_such"},
        {"model_family": "no_such"},
        {"sigmas": "1, two"},
        *(
            {"method_name": "longlive", "method_options": read_pairs(options)}
            for options in (
                "windw=3",
                "window_frames=9, window_frames=12",
                "window_frames=9.5",
                "window_frames=",
                "window_frames=none",
                "infinite=1",
            )
        ),
        *(
            {"method_name": method, "method_options": read_pairs(options)}
            for method, options in (
                ("reward_forcing", "kept_share=nan"),
                ("reward_forcing", "kept_share=1e999"),
                ("deep_forcing", "budget_frames=x"),
                ("rolling_forcing", "steps=4"),
                ("id_forcing", "clean_reads=recent"),
                ("longlive", "clean_reads=some"),
                ("longlive", "clean_reads=recent, keeps_sinks=false"),
                ("dummy_forcing", "seed=4"),
                ("head_forcing", "kept_scenes=4"),
                ("head_forcing", "rope=round"),
                ("head_forcing", "memory.episodic_frames=1"),
                ("head_forcing", "episodic.update_interval=0"),
                ("head_forcing", "episodic.novelty_threshold=3.0"),
            )
        ),
    ],
    read_pairs: [{"text": "window_frames"}, {"text": "window_frames=9, sink"}],
    method_named: [{"name": "nope"}],
    drafted: [*({"start_frames": frames} for frames in (1, 4, 11)), {"recent_frames": None}],
    planned: [
        {"method": method, "options": options}
        for method, options in (
            ("forcing_kv", "chunks_per_frame=0"),
            ("forcing_kv", "kept_share=2"),
            ("dummy_forcing", "window_frames=0"),
            ("tethercache", "window_frames=20"),
            ("tethercache", "window_frames=6"),
            ("tethercache", "temperature=0.0, alignment=1.5"),
            ("swift", "shortest_window_frames=5"),
            ("swift", "after_switch_frames=-1.0"),
            ("swift", "segment_frames=0"),
            ("swift", "injection_decay=1.5"),
            ("swift", "partial_recache_frames=13"),
            ("pyramid_forcing", "period=0"),
            ("pyramid_forcing", "patch=0"),
            ("pyramid_forcing", "merged_blocks=0"),
            ("deep_forcing", "max_reuse=-1"),
            ("longlive", "window_frames=2"),
            ("longlive", "window_frames=5"),
            ("infinity_rope", "sink_frames=0"),
            ("deep_forcing", "sink_frames=14"),
            ("memflow", "bank_frames=1"),
            ("dummy_forcing", "mid_blocks=0"),
            ("forcing_kv", "static_frames=4"),
        )
    ],
}


def sentence(make: Callable[..., object], options: dict[str, object]) -> str:
    """A line of the file: what was tried, and what is said of it."""
    with pytest.raises(HeadForcingError) as error:
        make(**options)
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"{make.__qualname__}({given})\n    {error.value}"


def test_every_sentence_about_a_setting_is_the_reviewed_one():
    said = []
    for make, tried in FIELDS.items():
        said += [sentence(make, options) for options in tried]
    assert all("\n" not in line.partition("\n    ")[2] for line in said)
    if os.environ.get("RECORD"):
        FILE.write_text("\n".join(said) + "\n", encoding="utf-8")
    assert "\n".join(said) + "\n" == FILE.read_text(encoding="utf-8"), (
        "review what is said, then run python tasks.py test --record tests/unit/test_sentences.py"
    )
