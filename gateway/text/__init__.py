"""Text front end: long or growing text in; out come segments to speak, normalised and with their positions."""

from gateway.text.front_end import SpokenSegment, TextFrontEnd, TextStream, load_text_front_end, plain_front_end
from gateway.text.options import Normalization, TextOptions
from gateway.text.splitter import INTERLEAVED_TEXT, LIVE_TEXT, WHOLE_TEXT, Segment

__all__ = [
    "INTERLEAVED_TEXT",
    "LIVE_TEXT",
    "WHOLE_TEXT",
    "Normalization",
    "Segment",
    "SpokenSegment",
    "TextFrontEnd",
    "TextOptions",
    "TextStream",
    "load_text_front_end",
    "plain_front_end",
]
