"""Stories in other forms than the written one, translated into it once: subtitles, JSON, schedules
of other programs, lists, what chat programs write. A reader a form, each in a file of its own.
"""
