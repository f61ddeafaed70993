"""What tests count while they run (`record_property`), and how much docs/reliability.md says it is
at least.
"""

COUNTED = {
    "faults of the file system injected": 79,
    "renders killed": 20,
    "malformed files and texts tried": 300,
}
