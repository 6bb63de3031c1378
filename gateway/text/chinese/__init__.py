"""Written Chinese into words, by rules of our own alone: dates, codes, quantities, and every number that is left."""

from gateway.text.chinese.forms import ChineseNormalizer, chinese_forms

__all__ = ["ChineseNormalizer", "chinese_forms"]
