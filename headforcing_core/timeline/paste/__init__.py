"""Stories in other forms than the written one, translated into it once: subtitles, JSON, schedules
of other programs, lists, what chat programs write. Each form is a file of `forms`.
"""
