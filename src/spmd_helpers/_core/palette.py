"""The colors of drawings, widgets and cards, light and dark."""

# One color a mesh axis, in mesh order; further axes are drawn without a hue.
LIGHT = ("#2468DB", "#C2560F", "#00492C", "#951B86")
DARK = ("#3CABFF", "#F8B55B", "#A5F9D8", "#F364AB")
# One color a shard, light and dark alike, and the color of the label on it.
SHARDS = (
    ("#2468DB", "#ffffff"),
    ("#F8B55B", "#14181e"),
    ("#00492C", "#ffffff"),
    ("#F46CB1", "#14181e"),
    ("#C2560F", "#ffffff"),
    ("#3CABFF", "#14181e"),
    ("#951B86", "#ffffff"),
    ("#A5F9D8", "#14181e"),
)
INK = ("#14181e", "#f3f4f5")  # of a file of its own: light, dark
PAPER = ("#ffffff", "#14181e")

DARK_PAGES = (
    'html[data-theme="dark"]',
    'html[theme="dark"]',
    'body[data-jp-theme-light="false"]',
    ".vscode-dark",
    ".vscode-high-contrast:not(.vscode-high-contrast-light)",
)


def shard_variables() -> str:
    """The shards' colors as CSS variables, the same light and dark."""
    return " ".join(f"--shard-{i}: {color};" for i, (color, _) in enumerate(SHARDS))


def axis_variables(colors: tuple[str, ...]) -> str:
    """The axes' colors as CSS variables."""
    return " ".join(f"--axis-{i}: {color};" for i, color in enumerate(colors))
