"""What a model gets to see of an example: the full image, or the privileged crop."""

from __future__ import annotations

from PIL import Image

from bas_opd.data.images import open_crop, open_image
from bas_opd.types import Example


def full_view(example: Example) -> tuple[Image.Image, str]:
    """Return the full image and the question: what the student sees."""
    return open_image(example.image), example.question


def crop_view(example: Example) -> tuple[Image.Image, str]:
    """Return the crop and the question: what the teacher sees."""
    return open_crop(example), example.question
