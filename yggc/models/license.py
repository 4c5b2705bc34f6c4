"""The licence a source states about itself: model card, GGUF metadata or licence file; never
guessed.
"""

from __future__ import annotations

import re
from pathlib import Path

UNKNOWN = "unknown"
_TITLES = (
    (r"apache license\s+version 2\.0", "apache-2.0"),
    (r"mit license", "mit"),
    (r"llama 3\.1 community license", "llama3.1"),
    (r"llama 3\.2 community license", "llama3.2"),
    (r"gemma terms of use", "gemma"),
)


def directory_license(directory: Path) -> str:
    """From the front matter of README.md, else the title of a licence file, else `unknown`."""
    card = directory / "README.md"
    if card.is_file():
        front = re.match(r"---\s*\n(.*?)\n---", card.read_text(errors="replace"), re.DOTALL)
        named = {}
        for key in ("license", "license_name"):
            found = front and re.search(rf"^{key}:\s*['\"]?([^'\"\n]+)", front[1], re.MULTILINE)
            if found:
                named[key] = found[1].strip()
        if named.get("license") not in (None, "other"):
            return named["license"]
        if "license_name" in named:
            return named["license_name"]
    for path in sorted(directory.glob("LICEN[SC]E*")):
        head = " ".join(path.read_text(errors="replace")[:500].lower().split())
        for title, name in _TITLES:
            if re.search(title, head):
                return name
        return f"see {path.name}"
    return UNKNOWN
