"""One video on several GPUs (docs/several_gpus.md), and many videos on a farm
(docs/many_videos.md).
"""
