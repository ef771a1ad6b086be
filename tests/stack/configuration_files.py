"""Configuration files of servers: filled from templates, and read by their owner alone."""

from collections.abc import Mapping
from pathlib import Path


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    """Write a configuration file that only its owner reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def fill(template: str, values: Mapping[str, object]) -> str:
    """Replace `{{name}}` in a template; braces elsewhere stay (YAML and JSON are full of them)."""
    for name, value in values.items():
        template = template.replace("{{" + name + "}}", str(value))
    return template
