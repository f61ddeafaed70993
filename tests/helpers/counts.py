"""Promises about resuming, damage and memory, and the tests that hold each. The count is printed after a test run."""

# a promise, and how the names of its tests begin, as FILE::TEST
PROMISES: dict[str, tuple[str, ...]] = {
    "killed at 20 random moments and resumed: the same bits, and the video plays": (
        "test_run.py::test_twenty_kills",
        "test_video.py::test_a_video_that_is_killed",
    ),
    "interrupted, out of memory or out of disk at any stage: a clean end, nothing leaks, the next run completes it": (
        "test_nodes_faults.py::",
        "test_run.py::test_an_interruption_anywhere",
        "test_run.py::test_a_full_disk",
        "test_run.py::test_a_disk_too_full",
        "test_run.py::test_a_folder_that_cannot_be_written",
        "test_video.py::test_a_full_disk",
        "test_video.py::test_a_locked_file",
        "test_video.py::test_errors_name_what_is_wrong",
    ),
    "five minutes take the memory of 30 s, and memory does not grow with the number of frames": (
        "test_long_videos.py::",
        "test_video.py::test_memory_does_not_grow",
        "test_needs.py::test_length_and_number",
    ),
    "bit flips and truncation in every file of a run are named, a newer format is refused": (
        "test_run_files.py::test_a_damaged_file",
        "test_run_files.py::test_looking_at_a_run",
        "test_run_files.py::test_another_format",
    ),
    "no widget reaches a file outside ComfyUI's folders": (
        "test_containment.py::",
        "test_nodes.py::test_no_file_name",
        "test_nodes.py::test_unknown_and_hostile",
        "test_nodes_stream.py::test_no_name_of",
        "test_nodes_stream.py::test_no_name_of_a_run",
    ),
    "extending equals rendering at once, a changed prompt leaves the blocks before it": (
        "test_run.py::test_a_stopped_render",
        "test_run.py::test_a_changed_story",
        "test_run.py::test_a_render_with_a_switch",
        "test_switching.py::test_blocks_before_a_switch",
    ),
    "in real ComfyUI: cancel, go on, watch the growing video": (
        "test_nodes.py::test_a_cancelled_render",
        "test_nodes.py::test_interrupt",
        "test_nodes_stream.py::test_it_can_be_watched",
        "test_nodes_stream.py::test_a_cancelled_one",
        "test_nodes_stream.py::test_a_server_that_is_killed",
        "test_nodes_stream.py::test_a_decoder_that_fails",
    ),
}


def of_promise(patterns: tuple[str, ...], node_id: str) -> bool:
    """Whether a collected test belongs to a promise."""
    file, _, test = node_id.partition("::")
    name = f"{file.rpartition('/')[2]}::{test}"
    return any(name.startswith(pattern) for pattern in patterns)


# What tests count while they run (`record_property`), and how much docs/reliability.md says it is at least.
COUNTED = {"faults of the file system injected": 80, "renders killed": 20, "malformed files and texts tried": 300}
