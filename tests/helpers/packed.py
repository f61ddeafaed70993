"""The archive that the registry gets."""

import subprocess
import zipfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]

OPTIONAL = set(
    "triton flash_attn flash_attn_interface sageattention xformers matplotlib transformers "
    "torchvision diffusers "
    "sentencepiece ftfy ray opentimelineio".split()
)
"""Packages that are imported only when they are used."""


def packed_files() -> list[str]:
    """The files that `comfy node pack` packs: what git tracks but for what .comfyignore names in
    git's patterns.
    """

    def listed(*options: str) -> set[str]:
        command = ["git", "ls-files", "-z", *options]
        return set(
            subprocess.run(
                command, cwd=REPO, capture_output=True, text=True, check=True
            ).stdout.split("\0")
        )

    files = listed() - listed("--cached", "--ignored", "--exclude-from=.comfyignore")
    return sorted(name for name in files if name and (REPO / name).is_file())


def pack(target: Path) -> Path:
    """Write the archive."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in packed_files():
            archive.write(REPO / name, name)
    return target
