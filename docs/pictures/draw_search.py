"""Draws search.png: how the bins of four stages narrow down to a depth (python docs/pictures/draw_search.py).

The bins are those of gbinet.model.search, with a classifier that makes one mistake, at stage 2.
"""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from gbinet.model import search
from gbinet.model.search import SearchGrid

NEAR, FAR, TRUTH = 1.0, 5.0, 2.84
STAGES, WRONG_STAGE = 4, 2
WIDTH, HEIGHT, SHARPER = 1000, 520, 2  # drawn at twice the size, then reduced
LEFT, RIGHT, TOP, STEP, BAR = 130, 950, 70, 105, 44
INK, GREY = (40, 44, 52), (150, 155, 165)
BIN, TOLERANCE, CHOSEN, WRONG = (214, 228, 245), (240, 240, 240), (88, 150, 225), (232, 150, 88)
LINE = (200, 50, 60)


def x_of(depth: float) -> float:
    return SHARPER * (LEFT + (RIGHT - LEFT) * (depth - NEAR) / (FAR - NEAR))


def draw() -> Image.Image:
    image = Image.new("RGB", (SHARPER * WIDTH, SHARPER * HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(SHARPER * 17)
    small = ImageFont.load_default(SHARPER * 14)
    state = search.start(SearchGrid(4, 4), torch.tensor([[NEAR, FAR]]), 1, 1)
    truth = torch.full((1, 1, 1), TRUTH)
    for stage in range(1, STAGES + 1):
        borders = search.edges(state)[0, :, 0, 0].tolist()
        right = int(search.label(state, truth)[0])
        choice = right + 1 if stage == WRONG_STAGE else right
        top = SHARPER * (TOP + STEP * (stage - 1))
        bottom = top + SHARPER * BAR
        for j in range(state.num_bins):
            tolerance = stage > 1 and j in (0, state.num_bins - 1)
            fill = TOLERANCE if tolerance else BIN
            if j == choice:
                fill = CHOSEN if choice == right else WRONG
            box = (x_of(borders[j]), top, x_of(borders[j + 1]), bottom)
            pen.rectangle(box, fill=fill, outline=INK, width=SHARPER)
        middle = (top + bottom) / 2
        pen.text((SHARPER * 20, middle), f"stage {stage}", fill=INK, font=font, anchor="lm")
        if stage == WRONG_STAGE:
            place = (x_of(borders[-1]) + SHARPER * 14, middle)
            pen.text(place, "wrong choice, corrected by a tolerance bin", fill=GREY, font=small, anchor="lm")
        state = search.descend(state, torch.full((1, 1, 1), choice))
        if stage < STAGES:  # what the next stage looks at
            following = search.edges(state)[0, :, 0, 0].tolist()
            next_top = top + SHARPER * STEP
            for edge, place in ((borders[choice], following[1]), (borders[choice + 1], following[-2])):
                pen.line((x_of(edge), bottom, x_of(place), next_top), fill=GREY, width=SHARPER)
    foot = SHARPER * (TOP + STEP * (STAGES - 1) + BAR + 16)
    pen.line((x_of(TRUTH), SHARPER * (TOP - 16), x_of(TRUTH), foot), fill=LINE, width=SHARPER * 2)
    pen.text((x_of(TRUTH), SHARPER * (TOP - 22)), "true depth", fill=LINE, font=font, anchor="mb")
    pen.text((x_of(NEAR), SHARPER * (TOP - 22)), "near", fill=GREY, font=font, anchor="lb")
    pen.text((x_of(FAR), SHARPER * (TOP - 22)), "far", fill=GREY, font=font, anchor="rb")
    legend = {
        "chosen": CHOSEN,
        "wrong choice": WRONG,
        "halves of the chosen bin": BIN,
        "tolerance bins": TOLERANCE,
    }
    left = SHARPER * LEFT
    for words, colour in legend.items():
        box = (left, foot + SHARPER * 24, left + SHARPER * 20, foot + SHARPER * 44)
        pen.rectangle(box, fill=colour, outline=INK)
        pen.text((left + SHARPER * 28, foot + SHARPER * 34), words, fill=INK, font=small, anchor="lm")
        left += SHARPER * 50 + pen.textlength(words, font=small)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    draw().quantize(64).save(Path(__file__).with_name("search.png"), optimize=True)
