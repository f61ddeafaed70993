"""The command `live`: a video that goes on while one types what happens next."""

from __future__ import annotations

import re
import sys
import threading
from argparse import Namespace
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from tqdm import tqdm

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import Fields, check_writable, claimed, live_path
from ..headforcing_core.live.file import ShownVideo
from ..headforcing_core.live.performance import (
    MORE_SECONDS,
    Performance,
    Placed,
    check_endless,
    with_kept_scenes,
)
from ..headforcing_core.live.story import Said
from ..headforcing_core.plan.options import RenderOptions
from ..headforcing_core.plan.request import RenderRequest
from ..headforcing_core.timeline.timeline import Timeline, parse_timeline
from .arguments import Result
from .parser import story_path
from .render import SourceStory, prepare, result_of, save_story
from .source import Source

COMMANDS = "/cut, /dissolve, /back NUMBER, /again and /stop"
_COMMAND = re.compile(r"/(\w*)\s*(.*)", re.DOTALL)


def live(args: Namespace) -> Result:
    """Render until `/stop` or the end of the input, and write the finished video with its story."""
    if args.weights is not None and args.vae is None:
        raise HeadForcingError("live needs --vae, the Wan 2.1 VAE: what is typed answers a picture")
    check_writable(args.out)
    source = Source.of(args)
    source.note_unlike_training(source.request.timeline)
    source = source.with_request(options=_options(source.request))
    check_endless(source.request, source.request.plan())
    story_file = story_path(args.out)
    with claimed(args.out, story_file):
        prepared = prepare(source, args.out)
        source = prepared.source
        performance = _performance(args, source)
        _tell(f"{live_path(args.out)} grows while the video is made; any player shows it")
        _tell(f"type what happens next and press Enter; {COMMANDS}")
        threading.Thread(target=_read_lines, args=(performance,), daemon=True).start()
        quiet = replace(prepared.loaded.machine, quiet=True)  # a bar would cross what is typed
        command = "demo" if args.weights is None else "generate"
        try:
            result = replace(prepared.loaded, machine=quiet).render(
                prepared.job,
                prepared.needs,
                args.out,
                edits=performance,
                file_class=ShownVideo,
                repeat=f"render the story {story_file} with `headforcing {command}`",
            )
        finally:
            if performance.has_begun:
                save_story(story_file, performance.story.text_with_length)
                _tell(f"the story is {story_file}")
    result = replace(result, advice=prepared.advice, notes=prepared.notes)
    found = result_of(source, prepared.needs, result)
    found.json["story"] = performance.story.text_with_length
    return found


def _options(request: RenderRequest) -> RenderOptions:
    """The options of the request for a video that begins with enough seconds, and whose scenes can
    come back.
    """
    options = request.options
    length = max(MORE_SECONDS, options.seconds or request.timeline.seconds)
    return with_kept_scenes(replace(options, seconds=length))


def _performance(args: Namespace, source: Source) -> Performance:
    """The performance of the story of `--prompts`."""
    request = source.request
    references = request.timeline.references
    arguments = request.options.timeline_arguments

    def read(text: str, seconds: float | None) -> Timeline:
        return parse_timeline(text, **{**arguments, "seconds": seconds}, references=references)

    host = _Typed(source)
    performance = Performance(
        source.text,
        read,
        host,
        lead=args.lead,
        video_folder=args.out.absolute().parent,
        scale=source.scale * source.files.picture_scale,
    )
    host.performance = performance
    return performance


class _Typed(SourceStory):
    """A story whose prompts are typed."""

    performance: Performance

    def refused(self, error: HeadForcingError) -> None:
        _tell(str(error))

    def about(self) -> Fields:
        story = self.performance.taking or self.performance.story
        return {"story": story.text}


def said_in(line: str) -> Said | None:
    """The prompt of a line that was typed; None for `/stop`. Raises HeadForcingError for another
    command.
    """
    command = _COMMAND.fullmatch(line)
    if command is None:
        return Said(line)
    name, words = command.groups()
    number = re.fullmatch(r"(\d{1,4})\s*(.*)", words, re.DOTALL)
    if name == "stop" and not words:
        return None
    if name == "cut" and words:
        return Said(words, "cut")
    if name == "dissolve" and words:
        return Said(words, "dissolve 1.5s")
    if name == "back" and number is not None:
        return Said(number[2], recall=int(number[1]))
    if name == "again" and not words:
        return Said()
    raise HeadForcingError(
        f"{line[:40]!r} is no command; write {COMMANDS}. /cut, /dissolve and /back NUMBER stand "
        "before the words"
    )


def _read_lines(performance: Performance) -> None:
    """Give the lines of the input to a performance, until they end."""
    try:
        for line in sys.stdin:
            typed = line.strip()
            if not typed:
                continue
            try:
                said = said_in(typed)
            except HeadForcingError as error:
                _tell(str(error))
                continue
            if said is None:
                break
            future = performance.perform(said.words, said.tag, said.recall)
            future.add_done_callback(partial(_tell_taken, performance))
    except UnicodeDecodeError as error:
        _tell(f"the input ends here: it is no text in {error.encoding}")
    finally:
        performance.stop()


def _tell_taken(performance: Performance, future: Future[Placed]) -> None:
    """Say in one line where a prompt begins, or why it does not."""
    error = future.exception()
    if error is not None:
        _tell(f"not taken: {error}")
        return
    story = performance.story
    block = story.timeline.clock.block_at(future.result().seconds)
    _tell(story.lines[story.shown(block)])


def _tell(sentence: str) -> None:
    tqdm.write(sentence, file=sys.stderr)
