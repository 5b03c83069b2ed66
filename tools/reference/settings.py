"""The page with all settings. The last column of the table in docs/configuration.md says what each setting means."""

from __future__ import annotations

from aioproducer.settings.table import SETTINGS, Setting
from tools.reference.markdown import code, rows_of, section

HEADING = "## All settings"
HEAD = ["setting", "type and unit", "default", "Java", "librdkafka", "aiokafka", "meaning"]


def default_of(setting: Setting) -> str:
    """Return the default as the page shows it."""
    if setting.name == "enable_idempotence":
        return "on if `acks` is all"
    if setting.name == "delivery_timeout_ms":
        return "`120000`"
    if setting.default is None:
        return ""
    if isinstance(setting.default, tuple | dict):
        return code(*map(str, setting.default))
    return f"`{setting.default}`"


def row_for(setting: Setting) -> list[str]:
    """Return a row of the guide's table without the meaning, which only the guide contains."""
    return [
        code(setting.name),
        setting.value_type.described.replace("|", "\\|"),
        default_of(setting),
        code(setting.java),
        code(*setting.librdkafka),
        code(setting.aiokafka),
    ]


def meanings(guide: str) -> dict[str, str]:
    """Return the meaning of each setting, by name, from the text of docs/configuration.md."""
    return {row[0].strip("`"): row[6] for row in rows_of(section(guide, HEADING))}


def page(guide: str) -> str:
    """Return the reference page.

    Args:
        guide: the text of docs/configuration.md.
    """
    found = meanings(guide)
    parts = [
        "# Settings",
        "Each setting is a keyword argument of `Producer`. `from_config`, `from_env` and `from_properties` also "
        "accept the names of Java's client and of librdkafka. Durations are in milliseconds and can be fractions. "
        "[Configuration](configuration.md) describes the sources of settings, and the contradictions between them.",
    ]
    for setting in SETTINGS.values():
        facts = [setting.value_type.described]
        if default := default_of(setting):
            facts.append(f"default: {default}")
        for client, names in (
            ("Java", code(setting.java)),
            ("librdkafka", code(*setting.librdkafka)),
            ("aiokafka", code(setting.aiokafka)),
        ):
            if names:
                facts.append(f"{client}: {names}")
        meaning = found[setting.name].replace("](#", "](configuration.md#")
        parts += [f"## {setting.name}", meaning, " · ".join(facts)]
    return "\n\n".join(parts) + "\n"
